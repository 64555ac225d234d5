"""The Python interface: load, solve, compare, check."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import octocp
from octocp.bounds import Bound, all_bounds
from octocp.checker import check_plan
from octocp.comparison import (
    Added,
    Choice,
    Comparison,
    PartitionEffort,
    Row,
    compare_instance,
    file_and_partition,
    read_added,
)
from octocp.costs import build_problem
from octocp.decode import checked
from octocp.errors import InputError
from octocp.heuristics import HEURISTICS, attempts
from octocp.problem import Problem
from octocp.progress import Event, Progress
from octocp.schema import Instance, Plan, SolveInfo
from octocp.schema.files import as_instance, as_plan, load_instance, load_plan, write_plan
from octocp.schema.plan import TracePoint
from octocp.strategy import PHASES, Answer, solve_problem

DEFAULT_TIME_LIMIT = 60.0
MAX_WORKERS = 1000
# The known schedules are run once more for the sentence that compares with them, where that is quick.
MOST_COMPARED_OPS = 200_000
COMPARING_SECONDS = 0.5
COMPARING_SHARE = 0.04
TITLES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved-1f1b": "interleaved 1F1B", "zb-h1": "ZB-H1"}


def default_workers() -> int:
    """Return how many threads CP-SAT uses unless told: all cores of a small machine, at most 8 of a large one."""
    return max(1, min(8, os.cpu_count() or 1))


@dataclass(frozen=True)
class Baseline:
    """The best known schedule on an instance, as `compare` has it.

    Attributes
    ----------
    method : str
        The heuristic that gives it.
    value : int
        Its objective, ticks.
    among : tuple of str
        The heuristics that have a plan on this instance.
    """

    method: str
    value: int
    among: tuple[str, ...]

    def words(self) -> str:
        """Name what it is the best of."""
        names = [TITLES.get(name, name) for name in self.among]
        return names[0] if len(names) == 1 else f"the best of {', '.join(names[:-1])} and {names[-1]}"


@dataclass(frozen=True)
class SolveResult:
    """A checked plan and how good it is.

    Attributes
    ----------
    plan : Plan
        Everything, as written to a file.
    status : str
        "optimal" or "feasible".
    value, lower_bound : int
        Objective and proven bound, ticks.
    bound_name : str
        The argument that gives the bound.
    trace : list of Event
        Incumbent, bound and phase over time.
    baseline : Baseline or None
        The best of the known schedules; None where none applies or it would take long to know.
    """

    plan: Plan
    status: Literal["optimal", "feasible"]
    value: int
    lower_bound: int
    bound_name: str
    seconds: float
    trace: list[Event] = field(default_factory=list)
    baseline: Baseline | None = None

    @property
    def gap(self) -> float:
        """(value - lower bound) / value."""
        return self.plan.gap

    @property
    def gain(self) -> float | None:
        """How far the plan is below the best known schedule, as a share of that; None where it is not known."""
        if self.baseline is None or not self.baseline.value:
            return None
        return (self.baseline.value - self.value) / self.baseline.value

    def sentence(self) -> str:
        """Say in one sentence how good the plan is."""
        ms = self.value * self.plan.tick_us / 1000
        what = f"{self.plan.objective} {self.value} ticks ({ms:.6g} ms)"
        if self.baseline is not None and self.gain is not None:
            share = f"{100 * self.gain:.1f} % below" if self.gain >= 0.0005 else "no better than"
            what += f", {share} {self.baseline.words()}"
        if self.status == "optimal":
            return f"Optimal: {what}; no partition, placement or order of this instance is better ({self.bound_name})."
        bound = f"bound {self.lower_bound}: {self.bound_name}"
        return f"Feasible: {what}; at most {100 * self.gap:.2f} % from optimal ({bound})."


def solve(
    instance: Instance | str | Path,
    *,
    time_limit: float = DEFAULT_TIME_LIMIT,
    workers: int | None = None,
    seed: int = 0,
    gap: float = 0.0,
    on_event: Callable[[Event], None] | None = None,
    without: Collection[str] = (),
    phases: Collection[str] = PHASES,
) -> SolveResult:
    """Plan an instance: partition, placement and ordering, with a bound.

    Parameters
    ----------
    instance : Instance, str or Path
        From `load_instance`, or built in Python; or what `load_instance` is to load.
    time_limit : float
        Seconds.
    workers : int, optional
        Threads; by default every core, up to 8.
    seed : int
        With one worker, the same seed repeats the same search.
    gap : float
        Stop at this relative gap.
    on_event : callable, optional
        Called with an `Event` at every improvement and phase, from any thread.
    without, phases : collections of str
        For ablation: families of the joint model and bounds (by name) to leave out, phases to run.

    Returns
    -------
    SolveResult
        Its plan has passed the independent checker.

    Raises
    ------
    InputError, UnsupportedError
        The instance asks for what cannot be done.
    InfeasibleError
        No plan exists.
    NoPlanError
        None was found in time.
    """
    _check_options(time_limit, workers, seed, gap)
    instance = as_instance(instance)
    problem = build_problem(instance)
    threads = workers or default_workers()
    progress = Progress(time_limit, gap, on_event)
    answer = solve_problem(problem, progress, workers=threads, seed=seed, without=without, phases=phases)
    baseline = None
    try:
        if _comparing_seconds(answer) <= max(COMPARING_SECONDS, COMPARING_SHARE * time_limit):
            baseline = _baseline(problem)
        return _result(answer, instance, threads, seed, baseline)
    except KeyboardInterrupt:  # the search is over; a late Ctrl-C must not cost the plan
        return _result(answer, instance, threads, seed, baseline)


def _comparing_seconds(answer: Answer) -> float:
    """Return about how long the known schedules take to run: what their phase of the search took."""
    began = next((event.seconds for event in answer.trace if event.phase == "heuristics"), None)
    if began is None:
        return float("inf")
    ended = (event.seconds for event in answer.trace if event.seconds >= began and event.phase not in _BEFORE_SEARCH)
    return next(ended, answer.seconds) - began


_BEFORE_SEARCH = ("start", "bounds", "heuristics")


def _baseline(problem: Problem) -> Baseline | None:
    """Return the best plan of the known schedules with every partition rule, if they are few enough to run again."""
    if len(problem.kinds) * problem.n_devices * problem.n_microbatches > MOST_COMPARED_OPS:
        return None
    best: dict[str, int] = {}
    for heuristic in HEURISTICS:
        for attempt in attempts(heuristic, problem):
            if attempt.status == "feasible" and attempt.schedule is not None:
                value = attempt.schedule.value
                best[heuristic.name] = min(value, best.get(heuristic.name, value))
    if not best:
        return None
    method = min(best, key=lambda name: best[name])
    return Baseline(method, best[method], tuple(best))


def _check_options(time_limit: float, workers: int | None, seed: int, gap: float) -> None:
    if not (math.isfinite(time_limit) and time_limit > 0):
        raise InputError(f"{time_limit} is not a time limit", place="time_limit", right="seconds, more than 0")
    if workers is not None and not 1 <= workers <= MAX_WORKERS:
        raise InputError(f"{workers} is not a number of workers", place="workers", right=f"1 to {MAX_WORKERS}")
    if not 0 <= seed < 2**31:
        raise InputError(f"{seed} is not a seed", place="seed", right="0 to 2147483647")
    if not 0 <= gap < 1:
        raise InputError(f"{gap} is not a gap", place="gap", right="a share from 0 to below 1")


def _result(
    answer: Answer, instance: Instance, workers: int, seed: int, baseline: Baseline | None = None
) -> SolveResult:
    info = SolveInfo(
        seconds=round(answer.seconds, 3),
        seed=seed,
        workers=workers,
        ortools=version("ortools"),
        octocp=octocp.__version__,
        bound_name=answer.bound.name,
        bound_scope="whole instance",
        found_by=answer.found_by,
        trace=[
            TracePoint(seconds=e.seconds, incumbent=e.incumbent, bound=e.bound, phase=e.phase) for e in answer.trace
        ],
    )
    plan = checked(answer.schedule, instance, method="cp-sat", lower_bound=answer.bound.value, solve=info)
    return SolveResult(
        plan,
        plan.status,
        plan.value,
        plan.lower_bound,
        answer.bound.name,
        answer.seconds,
        list(answer.trace),
        baseline,
    )


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan file (JSON), as `octocp solve` does; it appears whole or not at all.

    Raises
    ------
    InputError
        The place cannot be written to.
    """
    write_plan(plan, path)


def import_plan(instance: Instance | str | Path, path: str | Path, *, partition: Sequence[int] | None = None) -> Plan:
    """Return a schedule from a file as a checked plan, timed on an instance; its method is "imported".

    Parameters
    ----------
    path : str or Path
        A PyTorch CSV, a Megatron layout, a SimPipe file or a plan.
    partition : sequence of int, optional
        Layers per stage, for a PyTorch CSV, which has none; by default the instance's, or an even one.

    Raises
    ------
    InputError
        The file is missing or wrong, does not fit the instance, or needs more memory than there is.
    """
    # Reading formats of other projects is of no use to most callers.
    from octocp.importers import read_as_plan

    return read_as_plan(as_instance(instance), path, partition=partition)[0]


def check(plan: Plan | str | Path) -> list[str]:
    """Return every violation of a plan, one line each; an empty list means that it is valid."""
    return check_plan(as_plan(plan))


def bounds(instance: Instance | str | Path) -> list[Bound]:
    """Return every analytic lower bound of an instance, best first; ticks."""
    return all_bounds(build_problem(as_instance(instance)))


def compare(
    instance: Instance | str | Path,
    *,
    time_limit: float = DEFAULT_TIME_LIMIT,
    workers: int | None = None,
    seed: int = 0,
    solver: bool = True,
    methods: Collection[str] | str = (),
    best_partition: bool = False,
    added: Sequence[Added | str | Path] | str | Path = (),
    on_event: Callable[[Event], None] | None = None,
    on_step: Callable[[str], None] | None = None,
) -> list[Row]:
    """Run every known schedule with every partition rule, OctoPipe's tuner and the solver, on one instance.

    Methods are named by heuristic with the uniform partition (``1f1b``) and with the balanced one
    (``1f1b-balanced``). Further partition rules have a row where they are better than both (``1f1b-memory``). All
    rows carry the same, best bound. Every plan passes the independent checker.

    Parameters
    ----------
    instance : Instance, str or Path
        From `load_instance`, or built in Python; or what `load_instance` is to load.
    time_limit : float
        Seconds for the solver; all partitions that `best_partition` asks for share as many again.
    workers, seed : int
        As for `solve`.
    solver : bool
        Whether the solver has a row.
    methods : collection of str, or str
        Known schedules (``1f1b``), or single rows of them (``1f1b-balanced``); all where it is empty.
    best_partition : bool
        Also find the exact best partition for each known schedule's orders; a row (``1f1b-best``) where it is better.
    added : sequence of Added, str or Path
        Schedules of one's own, from `octocp.comparison.read_added`; or their files, as for ``--add``.
    on_event : callable, optional
        As for `solve`.
    on_step : callable, optional
        Called with a few words when another method begins.

    Returns
    -------
    list of Row
        In a fixed order; after a KeyboardInterrupt, those that are done.

    Raises
    ------
    InputError
        The instance is wrong, or there is no such method.
    InfeasibleError
        No plan exists.
    """
    return compare_all(
        instance,
        time_limit=time_limit,
        workers=workers,
        seed=seed,
        solver=solver,
        methods=methods,
        best_partition=best_partition,
        added=added,
        on_event=on_event,
        on_step=on_step,
    ).rows


def compare_all(
    instance: Instance | str | Path,
    *,
    time_limit: float = DEFAULT_TIME_LIMIT,
    workers: int | None = None,
    seed: int = 0,
    solver: bool = True,
    methods: Collection[str] | str = (),
    best_partition: bool = False,
    added: Sequence[Added | str | Path] | str | Path = (),
    on_event: Callable[[Event], None] | None = None,
    on_step: Callable[[str], None] | None = None,
) -> Comparison:
    """Compare as `compare` does, and also tell whether it got through."""
    _check_options(time_limit, workers, seed, 0.0)
    threads = workers or default_workers()
    given = as_instance(instance)

    def by_solver() -> Plan:
        return solve(given, time_limit=time_limit, workers=threads, seed=seed, on_event=on_event).plan

    effort = PartitionEffort(time_limit, threads, seed) if best_partition else None
    return compare_instance(
        given,
        Choice([methods] if isinstance(methods, str) else methods),
        by_solver if solver else None,
        added=_read_own(given, added),
        partitions=effort,
        on_step=on_step,
    )


def _read_own(instance: Instance, added: Sequence[Added | str | Path] | str | Path) -> list[Added]:
    found: list[Added] = []
    for one in [added] if isinstance(added, str | Path) else added:
        if isinstance(one, str | Path):
            path, partition = file_and_partition(one)
            found.append(read_added(instance, path, [each.name for each in found], partition))
        elif isinstance(one, Added):
            found.append(one)
        else:
            raise TypeError(f"added has files and what read_added returns; this is {type(one).__name__}")
    return found


__all__ = [
    "Baseline",
    "Row",
    "SolveResult",
    "bounds",
    "check",
    "checked",
    "compare",
    "compare_all",
    "default_workers",
    "import_plan",
    "load_instance",
    "load_plan",
    "save_plan",
    "solve",
]
