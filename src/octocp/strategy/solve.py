"""One strategy for every size: bounds, heuristics, search, joint model; each phase feeds the next."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field

from octocp.bounds import Bound, all_bounds
from octocp.cpsat.joint import build_joint, tightened
from octocp.cpsat.packing import Packing, pack
from octocp.cpsat.run import Outcome, run
from octocp.errors import InfeasibleError, NoPlanError
from octocp.heuristics import HEURISTICS, SERIAL, attempts
from octocp.heuristics.base import describe_excess
from octocp.problem import Problem
from octocp.progress import Event, Progress
from octocp.schedule import Schedule

# Intervals up to which the joint model is tried before any search, and alone where the placement is given; and
# beyond which the joint model over every stage count is too large to be of use.
SMALL_JOINT = 400
SMALL_SECONDS = 1.0
MEDIUM_JOINT = 2_000
LARGEST_JOINT = 60_000
PACKING_SECONDS = 20.0
LEAST_SEARCH_SECONDS = 0.5
COMPILED_SOON = 1.5
MOST_CHUNKS = 8


@dataclass(frozen=True)
class Answer:
    """What the strategy ends with.

    Attributes
    ----------
    schedule : Schedule
        The best one.
    bound : Bound
        Valid for every plan of the instance.
    """

    schedule: Schedule
    bound: Bound
    found_by: str
    seconds: float
    trace: list[Event] = field(default_factory=list)

    @property
    def optimal(self) -> bool:
        """Whether the value equals the bound."""
        return self.schedule.value == self.bound.value


def solve_problem(
    problem: Problem,
    progress: Progress,
    *,
    workers: int,
    seed: int,
    without: Collection[str] = (),
    phases: Collection[str] = ("heuristics", "search", "joint"),
) -> Answer:
    """Solve a problem within the limits of `progress`.

    KeyboardInterrupt ends the search and keeps the best plan.

    Parameters
    ----------
    without : collection of str
        Constraint families of the joint model to leave out.
    phases : collection of str
        Phases to run, for ablation.

    Raises
    ------
    InfeasibleError
        Proven: no plan exists; says which constraint cannot be met and by how much.
    NoPlanError
        No plan was found in time.
    """
    try:
        _search(problem, progress, workers, seed, without, phases)
    except KeyboardInterrupt:
        progress.stop.set()
    if progress.schedule is None:
        raise NoPlanError(f"no plan found in {progress.seconds:.1f} s; proven lower bound {progress.bound.value} ticks")
    return Answer(progress.schedule, progress.bound, progress.found_by, progress.seconds, progress.trace)


def _search(
    problem: Problem,
    progress: Progress,
    workers: int,
    seed: int,
    without: Collection[str],
    phases: Collection[str],
) -> None:
    progress.enter("bounds")
    for bound in all_bounds(problem):
        progress.prove(bound)
    if "heuristics" in phases:
        progress.enter("heuristics")
        for heuristic in HEURISTICS:
            for attempt in attempts(heuristic, problem):
                if attempt.status == "feasible" and attempt.schedule is not None:
                    progress.offer(tightened(attempt.schedule), heuristic.name)
    if progress.done:
        return
    compiled = _Compiler() if "search" in phases and progress.left > LEAST_SEARCH_SECONDS else None
    if progress.schedule is None:
        _first_plan(problem, progress, seed)
    joint = "joint" in phases
    if compiled is not None and not compiled.ready.wait(min(COMPILED_SOON, progress.left)) and joint:
        # First run on this machine: the joint model works while the evaluator compiles.
        _joint(problem, progress, workers, seed, without, until=compiled.ready)
    if joint and _size(problem) <= SMALL_JOINT and not progress.done:
        _joint(problem, progress, workers, seed, without, seconds=SMALL_SECONDS)
    # With the placement given, the joint model closes most instances that are not large: leave it alone then.
    decided = problem.family != "free" or problem.max_stages == problem.n_devices
    for share in (DECIDED_SHARE,) if decided and _size(problem) <= MEDIUM_JOINT else SHARES:
        if progress.done:
            return
        if compiled is not None and compiled.wait(progress):
            _local_search(problem, progress, seed, share.search * progress.limit)
        if joint and not progress.done:
            last = share.joint >= 1
            seconds = progress.left if last else min(progress.left, share.joint * progress.limit)
            _joint(problem, progress, workers, seed, without, seconds=seconds)
    while compiled is not None and not joint and not progress.done:
        _local_search(problem, progress, seed, progress.left)


@dataclass(frozen=True)
class _Share:
    """Parts of the time limit for one round of search and joint model."""

    search: float
    joint: float


SHARES = (_Share(0.04, 0.4), _Share(0.3, 1.0))
DECIDED_SHARE = _Share(0.04, 1.0)


def _size(problem: Problem) -> int:
    """Return the number of intervals of the joint model."""
    places = problem.n_devices if problem.family == "free" else 1
    return problem.max_stages * problem.n_microbatches * len(problem.kinds) * places


class _Compiler:
    """Loads or compiles the evaluator in the background; compiling happens once per machine and version."""

    def __init__(self) -> None:
        self.ready = threading.Event()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        from octocp.search.local import warm_up

        warm_up()
        self.ready.set()

    def wait(self, progress: Progress) -> bool:
        """Wait for the evaluator; False when the time is over first."""
        while not self.ready.wait(0.05):
            if progress.done:
                return False
        return True


def _first_plan(problem: Problem, progress: Progress, seed: int) -> None:
    """Find a layout that fits in memory and run one microbatch at a time, or prove that nothing fits."""
    progress.enter("packing")
    packing = pack(problem, seconds=max(1.0, min(PACKING_SECONDS, progress.left)), seed=seed)
    refuse(problem, packing)
    balanced = pack(problem, seconds=max(0.5, min(2.0, progress.left)), seed=seed, balance=True)
    for found in (balanced, packing):
        if found.status == "fits" and found.layout is not None:
            progress.offer(SERIAL.run(problem, found.layout), "serial")


def refuse(problem: Problem, packing: Packing) -> None:
    """Raise `InfeasibleError` where a packing proves that no plan exists."""
    if packing.status == "no layout":
        raise InfeasibleError(_contradiction(problem))
    if packing.status == "impossible":
        told = describe_excess(problem, packing.device, packing.need, packing.cap)
        unit = float(problem.memory_unit_gb)
        short = (packing.need - packing.cap) * unit
        raise InfeasibleError(f"memory cannot fit: in the best layout {told}; {short:.6g} GB too much")


def _contradiction(problem: Problem) -> str:
    if problem.colocate:
        groups = ", ".join(str(list(group)) for group in problem.colocate)
        return (
            f"colocate cannot be met: no partition into {problem.min_stages} to {problem.max_stages} stages on "
            f"{problem.n_devices} devices, at most {problem.max_per_device} each, puts the layers {groups} together"
        )
    return f"no partition and placement meets the stage rules with {problem.max_stages} stages at most"


def _local_search(problem: Problem, progress: Progress, seed: int, seconds: float) -> None:
    """Search for incumbents on the compiled evaluator."""
    from octocp.search.local import search

    progress.enter("local search")
    search(
        problem,
        progress,
        min(seconds, progress.left),
        seed + len(progress.trace),
        MOST_CHUNKS * problem.n_devices,
    )


def _joint(
    problem: Problem,
    progress: Progress,
    workers: int,
    seed: int,
    without: Collection[str],
    *,
    seconds: float | None = None,
    until: threading.Event | None = None,
) -> None:
    """Run the joint model over every stage count; where that is too large, over the incumbent's stage count."""
    least, most = problem.min_stages, problem.max_stages
    whole = _size(problem) <= LARGEST_JOINT
    if not whole and progress.schedule is not None:
        least = most = progress.schedule.layout.stages
    scope = "" if whole else f" with {most} stages"
    progress.enter("joint model" + scope)
    build = build_joint(
        problem,
        incumbent=progress.schedule,
        stages=(least, most),
        lower=progress.bound.value,
        without=without,
    )

    def proven(value: int) -> None:
        if whole:
            progress.prove(Bound("joint model", value, "CP-SAT on the whole instance"))

    def offered(schedule: Schedule) -> None:
        progress.offer(schedule)

    outcome = run(
        build,
        seconds=progress.left if seconds is None else seconds,
        workers=workers,
        seed=seed,
        stopped=lambda: progress.stop.is_set() or (until is not None and until.is_set()),
        on_solution=offered,
        on_bound=proven,
        gap=progress.gap,
    )
    _conclude(problem, progress, outcome, whole, seed)


def _conclude(problem: Problem, progress: Progress, outcome: Outcome, whole: bool, seed: int) -> None:
    if outcome.schedule is not None:
        progress.offer(outcome.schedule)
    if not whole:
        return
    if outcome.status == "infeasible" and progress.schedule is None:
        refuse(problem, pack(problem, seconds=PACKING_SECONDS, seed=seed))
        raise InfeasibleError("no plan exists: CP-SAT proved that the constraints cannot all be met")
    progress.prove(Bound("joint model", outcome.bound, "CP-SAT on the whole instance"))
