"""Run CP-SAT on a model: anytime, interruptible, statuses mapped before any number is read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from ortools.sat.python import cp_model

from octocp.cpsat.build import Build
from octocp.cpsat.joint import decode
from octocp.schedule import Schedule

Status = Literal["optimal", "feasible", "infeasible", "unknown"]
POLL_SECONDS = 0.05


@dataclass
class Outcome:
    """What a run of CP-SAT ended with.

    Attributes
    ----------
    status : str
        "optimal", "feasible", "infeasible" or "unknown".
    schedule : Schedule or None
        Best one found in this run.
    bound : int
        Proven lower bound for the model, in ticks; at least the model's own lower limit.
    """

    status: Status
    schedule: Schedule | None
    bound: int
    seconds: float
    log: str = ""


class ModelError(RuntimeError):
    """CP-SAT refused the model: a bug in OctoCP."""


class _Solutions(cp_model.CpSolverSolutionCallback):
    def __init__(self, build: Build, found: Callable[[Schedule], None]) -> None:
        super().__init__()
        self._build, self._found = build, found

    def on_solution_callback(self) -> None:
        self._found(decode(self._build, self.value))


def new_solver(*, seconds: float, workers: int, seed: int, gap: float = 0.0) -> cp_model.CpSolver:
    """Return a solver with the settings that every model of OctoCP uses."""
    solver = cp_model.CpSolver()
    settings = solver.parameters
    settings.max_time_in_seconds = max(seconds, 0.01)
    settings.num_workers = workers
    settings.random_seed = seed
    settings.catch_sigint_signal = False
    if gap:
        settings.relative_gap_limit = gap
    return solver


def solve_model(
    model: cp_model.CpModel,
    solver: cp_model.CpSolver,
    *,
    stopped: Callable[[], bool] | None = None,
    callback: cp_model.CpSolverSolutionCallback | None = None,
) -> Any:
    """Solve a model in a thread of its own and return CP-SAT's status.

    So Ctrl-C reaches the caller at once; the search ends either way.

    Raises
    ------
    ModelError
        The model is not valid.
    """
    failure: list[BaseException] = []
    status: list[Any] = []
    over = threading.Event()

    def work() -> None:
        try:
            status.append(solver.solve(model, callback))
        except BaseException as error:  # handed to the caller below
            failure.append(error)
        finally:
            over.set()

    threading.Thread(target=work, daemon=True).start()
    try:
        # Not Thread.join: interrupted, it takes a running thread for a finished one (bpo-45274).
        while not over.wait(POLL_SECONDS):
            if stopped is not None and stopped():
                solver.stop_search()
    except BaseException:
        # Python may end only after CP-SAT's threads have.
        while not over.is_set():
            solver.stop_search()
            with suppress(KeyboardInterrupt):
                over.wait(POLL_SECONDS)
        raise
    if failure:
        raise failure[0]
    if status[0] == cp_model.MODEL_INVALID:
        raise ModelError(f"CP-SAT calls the model invalid: {model.validate()}")
    return status[0]


def whole_bound(solver: cp_model.CpSolver) -> int:
    """Return the proven bound on an integer objective, after a status that has one.

    CP-SAT tells it as a float, which may read 126.00000000000001 for 126: round up only what is clearly above.
    """
    bound = solver.best_objective_bound
    slack = 1e-6 + 1e-12 * abs(bound)
    return -int(-(bound - slack) // 1)


def run(
    build: Build,
    *,
    seconds: float,
    workers: int,
    seed: int,
    stopped: Callable[[], bool] | None = None,
    on_solution: Callable[[Schedule], None] | None = None,
    on_bound: Callable[[int], None] | None = None,
    gap: float = 0.0,
    parameters: dict[str, Any] | None = None,
) -> Outcome:
    """Solve the joint model until it is closed, `seconds` have passed, or `stopped()` is true.

    Raises
    ------
    ModelError
        The model is not valid.
    """
    solver = new_solver(seconds=seconds, workers=workers, seed=seed, gap=gap)
    for name, setting in (parameters or {}).items():
        setattr(solver.parameters, name, setting)
    began = time.monotonic()
    best: list[Schedule] = []

    def found(schedule: Schedule) -> None:
        if not best or schedule.value < best[-1].value:
            best.append(schedule)
            if on_solution:
                on_solution(schedule)

    if on_bound:
        solver.best_bound_callback = lambda bound: on_bound(max(build.lower, round(bound)))
    status = solve_model(build.model, solver, stopped=stopped, callback=_Solutions(build, found))
    return _outcome(build, solver, status, best[-1] if best else None, time.monotonic() - began)


def _outcome(build: Build, solver: Any, status: Any, schedule: Schedule | None, seconds: float) -> Outcome:
    """Map the status first: with UNKNOWN, CP-SAT's objective and bound both read 0.0."""
    if status == cp_model.INFEASIBLE:
        return Outcome("infeasible", None, build.lower, seconds)
    if status == cp_model.UNKNOWN:
        return Outcome("unknown", schedule, build.lower, seconds)
    bound = max(build.lower, whole_bound(solver))
    if schedule is None:
        schedule = decode(build, solver.value)
    return Outcome("optimal" if status == cp_model.OPTIMAL else "feasible", schedule, bound, seconds)
