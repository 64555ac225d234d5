"""One strategy for every size: bounds, heuristics, search, joint model; each phase feeds the next."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from octocp.bounds import Bound, all_bounds
from octocp.cpsat.assignment import assignment_bound
from octocp.cpsat.build import Build
from octocp.cpsat.families import FAMILIES
from octocp.cpsat.for_order import best_partition
from octocp.cpsat.joint import build_joint, tightened
from octocp.cpsat.packing import pack
from octocp.cpsat.run import Outcome, run
from octocp.errors import InfeasibleError, NoPlanError
from octocp.heuristics import ALL_HEURISTICS, HEURISTICS, OCTOPIPE, SERIAL, attempts
from octocp.problem import Problem
from octocp.progress import Event, Progress
from octocp.schedule import Layout, Schedule
from octocp.strategy.compiler import Compiler
from octocp.strategy.infeasible import PACKING_SECONDS, no_order, refuse
from octocp.strategy.layouts import LayoutByLayout
from octocp.strategy.neighbourhoods import neighbourhoods

if TYPE_CHECKING:
    from octocp.search.anytime import Search

CORE_FAMILIES = frozenset(family.name for family in FAMILIES if family.role == "core")
PHASES = ("heuristics", "balance", "tuner", "search", "layouts", "neighbourhoods", "joint")

# Intervals up to which the joint model is tried before any search; up to which it gets all the time where the
# placement is given, and a share of it where not; and beyond which only the incumbent's stage count is modelled.
SMALL_JOINT = 400
MEDIUM_JOINT = 2_000
LARGEST_JOINT = 60_000
HOPELESS_JOINT = 150_000

# Seconds, and shares of the time limit.
SMALL_SECONDS = 1.0
COMPILED_SOON = 1.5
LEAST_SEARCH_SECONDS = 0.5
BALANCE_SHARE = 0.06
# It gets more, once, where the first search has left a gap; on small models, where a proof is near, the most.
MORE_BALANCE_SHARE = 0.08
SMALL_BALANCE_SHARE = 0.25
FIRST_SEARCH_SHARE = 0.04
FIRST_SEARCH_SECONDS = 3.0
LEAST_SLICE_SECONDS = 0.01
SEARCH_SHARE = 0.16
LAYOUTS_SHARE = 0.25
NEIGHBOURHOOD_SHARE = 0.03
JOINT_SHARE = 0.25

# Layouts of the balanced-load models that the search tries, each time: every one costs it an anneal or two.
MOST_SUGGESTED = 2

# Stages that the local search starts from, at most: fine cuts pay with few devices too.
MOST_CHUNKS = 8
MANY_STAGES = 64

# OctoPipe's tuner takes up to three seconds: it is run where that is little of the time, and so are other schedules.
TUNER_LEAST_SECONDS = 6.0
KNOWN_SHARE = 0.02
SLOW_HEURISTICS = frozenset({"v-half", "v-min"})


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
    phases: Collection[str] = PHASES,
) -> Answer:
    """Solve a problem within the limits of `progress`.

    KeyboardInterrupt ends the search and keeps the best plan.

    Parameters
    ----------
    without : collection of str
        Constraint families of the joint model, and bounds by name, to leave out.
    phases : collection of str
        Phases to run, for ablation.

    Raises
    ------
    InfeasibleError
        Proven: no plan exists; says which constraint cannot be met and by how much.
    NoPlanError
        No plan was found in time.
    """
    bounds = {bound.name for bound in all_bounds(problem)} & set(without) if without else set()
    families = frozenset(without) - bounds
    strategy = _Strategy(problem, progress, workers, seed, families, frozenset(phases), frozenset(bounds))
    try:
        strategy.run()
    except KeyboardInterrupt:
        progress.stop.set()
    if progress.schedule is None:
        raise NoPlanError(f"no plan found in {progress.seconds:.1f} s; proven lower bound {progress.bound.value} ticks")
    return Answer(progress.schedule, progress.bound, progress.found_by, progress.seconds, progress.trace)


@dataclass
class _Strategy:
    """The phases on one problem, in the order of `run`."""

    problem: Problem
    progress: Progress
    workers: int
    seed: int
    without: frozenset[str]
    phases: frozenset[str]
    without_bounds: frozenset[str] = frozenset()
    _local: Search | None = None
    _turn: int = 0
    # Value of the incumbent whose neighbourhoods were tried last: they seldom give anything a second time.
    _visited: int | None = None
    # Layouts of the balanced-load models' best assignments, for the search to try.
    _suggested: list[Layout] = field(default_factory=list)
    _by_layout: LayoutByLayout | None = None

    def run(self) -> None:
        """Run every phase that the instance's size makes worth its time."""
        progress = self.progress
        progress.enter("bounds")
        for bound in all_bounds(self.problem):
            if bound.name not in self.without_bounds:
                progress.prove(bound)
        self._heuristics()
        if progress.done:
            return
        compiler = Compiler() if "search" in self.phases and progress.left > LEAST_SEARCH_SECONDS else None
        if progress.schedule is None:
            self._first_plan()
        self._tuner()
        self._balance(BALANCE_SHARE)
        size = self._size(self.problem.max_stages)
        # On large models without memory limits it has never raised a bound the second time.
        more_balance = size <= MEDIUM_JOINT or self.problem.has_memory_limit
        if compiler is not None and not compiler.ready.wait(min(COMPILED_SOON, progress.left)) and size <= MEDIUM_JOINT:
            # First run on this machine: the joint model works while the evaluator compiles. A large one would only
            # slow the compiler down.
            self._joint(until=compiler.ready)
        if size <= SMALL_JOINT:
            self._joint(seconds=SMALL_SECONDS)
        if compiler is not None and compiler.compiling and not compiler.ready.is_set():
            progress.enter("compiling the search, once per machine")
        searching = compiler is not None and compiler.wait(lambda: progress.done)
        if searching:
            self._search(min(FIRST_SEARCH_SHARE, FIRST_SEARCH_SECONDS / progress.limit))
        self._layouts(LAYOUTS_SHARE)
        # With the placement given, the joint model closes most instances that are not large: it gets the time.
        decided = self.problem.family != "free" or self.problem.max_stages == self.problem.n_devices
        if (decided and size <= MEDIUM_JOINT) or not searching:
            self._joint()
        elif size <= MEDIUM_JOINT:
            self._joint(seconds=JOINT_SHARE * progress.limit)
        while searching and not progress.done:
            began, before = progress.seconds, progress.value
            self._search(SEARCH_SHARE)
            self._layouts(LAYOUTS_SHARE)
            if more_balance:
                self._balance(SMALL_BALANCE_SHARE if size <= MEDIUM_JOINT else MORE_BALANCE_SHARE, thorough=True)
                more_balance = False
            # Under a memory limit the order matters more, and a second look may find more.
            if progress.value == before and (progress.value != self._visited or self.problem.has_memory_limit):
                self._visited = progress.value
                self._neighbourhoods(NEIGHBOURHOOD_SHARE)
            if progress.seconds - began < LEAST_SLICE_SECONDS:
                self._joint()
                return

    # ---- phases --------------------------------------------------------------------------------

    def _heuristics(self) -> None:
        if "heuristics" not in self.phases:
            return
        self.progress.enter("heuristics")
        for heuristic in HEURISTICS:
            for attempt in attempts(heuristic, self.problem):
                if self.progress.done and self.progress.schedule is not None:
                    return
                if attempt.status == "feasible" and attempt.schedule is not None:
                    self.progress.offer(tightened(attempt.schedule), heuristic.name)

    def _first_plan(self) -> None:
        """Find a layout that fits in memory and run one microbatch at a time, or prove that nothing fits."""
        problem, progress = self.problem, self.progress
        progress.enter("packing")
        packing = pack(problem, seconds=max(1.0, min(PACKING_SECONDS, progress.left)), seed=self.seed)
        refuse(problem, packing)
        balanced = pack(problem, seconds=max(0.5, min(2.0, progress.left)), seed=self.seed, balance=True)
        for found in (balanced, packing):
            if found.status == "fits" and found.layout is not None:
                progress.offer(SERIAL.run(problem, found.layout), "serial")
        if progress.schedule is None and not progress.done:
            # Where weight parts exceed activations, the serial schedule needs more than what every plan needs.
            packing = pack(
                problem, seconds=max(0.5, min(PACKING_SECONDS, progress.left / 2)), seed=self.seed, serial=True
            )
            if packing.status == "fits" and packing.layout is not None:
                progress.offer(SERIAL.run(problem, packing.layout), "serial")

    def _balance(self, share: float, *, thorough: bool = False) -> None:
        """Prove the bound of the best assignment of layers to devices."""
        progress = self.progress
        if progress.done or "balance" not in self.phases:
            return
        progress.enter("balanced load")
        bound = assignment_bound(
            self.problem,
            known=progress.bound.value,
            upper=progress.value,
            seconds=min(share * progress.limit, progress.left),
            workers=self.workers,
            seed=self.seed,
            stopped=progress.stop.is_set,
            thorough=thorough,
            on_layout=self._suggested.append,
        )
        progress.prove(bound)

    def _tuner(self) -> None:
        """Run the known schedules that take longer, and OctoPipe's tuner.

        On models of a hundred layers its layouts are good ones to search from; and no plan shall be worse than what
        `octocp compare` shows beside it.
        """
        progress = self.progress
        if progress.done or progress.left < TUNER_LEAST_SECONDS or "tuner" not in self.phases:
            return
        if self._size(self.problem.max_stages) <= SMALL_JOINT:
            return
        progress.enter("known schedules")
        ends = progress.seconds + KNOWN_SHARE * progress.limit
        for heuristic in ALL_HEURISTICS:
            if heuristic.quick or heuristic.name in SLOW_HEURISTICS:
                continue
            for attempt in attempts(heuristic, self.problem):
                if attempt.status == "feasible" and attempt.schedule is not None:
                    progress.offer(attempt.schedule, heuristic.name)
                if progress.done:
                    return
            if progress.seconds > ends:
                break
        progress.enter("octopipe")
        found = OCTOPIPE.run(self.problem)
        if found.status == "feasible" and found.schedule is not None:
            progress.offer(found.schedule, "octopipe")

    def _search(self, share: float) -> None:
        """Search for incumbents on the compiled evaluator."""
        progress = self.progress
        if progress.done:
            return
        if self._local is None:
            from octocp.search.anytime import Search

            most = max(MOST_CHUNKS * self.problem.n_devices, MANY_STAGES)
            self._local = Search(self.problem, seed=self.seed, workers=self.workers, most_stages=most)
        # The last ones are the best assignments.
        for layout in list(dict.fromkeys(reversed(self._suggested)))[:MOST_SUGGESTED]:
            self._local.suggest(layout)
        self._suggested.clear()
        progress.enter("local search")
        self._local.run(progress, min(share * progress.limit, progress.left))

    def _layouts(self, share: float) -> None:
        """Order every layout that could be better exactly, where there are few."""
        progress = self.progress
        if "layouts" not in self.phases or self.without:
            return
        if self._by_layout is None:
            self._by_layout = LayoutByLayout(self.problem)
        if self._by_layout.applies(progress):
            progress.enter("layout by layout")
            self._by_layout.run(
                progress,
                share * progress.limit,
                lambda build, seconds: self._solve(build, seconds=seconds, whole=False),
            )

    def _neighbourhoods(self, share: float) -> None:
        """Re-solve parts of the incumbent exactly."""
        incumbent = self.progress.schedule
        if self.progress.done or incumbent is None or "neighbourhoods" not in self.phases:
            return
        if self._size(incumbent.layout.stages) > LARGEST_JOINT:
            return
        self.progress.enter("neighbourhoods")
        seed = self.seed * 7919 + self._turn
        exact_cuts = partial(best_partition, workers=self.workers, seed=self.seed) if not self.without else None
        self._turn += neighbourhoods(
            self.problem,
            self.progress,
            seconds=share * self.progress.limit,
            seed=seed,
            exact_cuts=exact_cuts,
            without=self.without,
            solve=lambda build, seconds: self._solve(build, seconds=seconds, whole=False),
        )

    def _joint(self, *, seconds: float | None = None, until: threading.Event | None = None) -> None:
        """Run the joint model over every stage count; where that is too large, over the incumbent's stage count."""
        problem, progress = self.problem, self.progress
        if progress.done or "joint" not in self.phases:
            return
        least, most = problem.min_stages, problem.max_stages
        whole = self._size(most) <= LARGEST_JOINT
        if not whole and progress.schedule is not None:
            least = most = progress.schedule.layout.stages
        if self._size(most) > HOPELESS_JOINT:
            return
        progress.enter("joint model" if whole else f"joint model with {most} stages")
        build = build_joint(
            problem,
            incumbent=progress.schedule,
            stages=(least, most),
            lower=progress.bound.value,
            without=self.without,
        )
        outcome = self._solve(build, seconds=progress.left if seconds is None else seconds, whole=whole, until=until)
        if whole and outcome.status == "infeasible" and progress.schedule is None:
            refuse(problem, pack(problem, seconds=PACKING_SECONDS, seed=self.seed))
            raise InfeasibleError(no_order(problem))

    # ---- helpers -------------------------------------------------------------------------------

    def _solve(self, build: Build, *, seconds: float, whole: bool, until: threading.Event | None = None) -> Outcome:
        """Run CP-SAT on a model; `whole` tells that its bounds are valid for the whole instance."""
        progress = self.progress

        relaxed = bool(self.without & CORE_FAMILIES)

        def offered(schedule: Schedule) -> None:
            if not relaxed:  # of a model with the layout given, too, it is one of the whole problem
                progress.offer(Schedule(self.problem, schedule.layout, schedule.start))

        def proven(value: int) -> None:
            if whole:
                progress.prove(Bound("joint model", value, "CP-SAT on the whole instance"))

        # Without a core family the model is a relaxation: its bounds hold, its schedules need not.
        outcome = run(
            build,
            seconds=min(seconds, progress.left),
            workers=self.workers,
            seed=self.seed,
            stopped=lambda: progress.stop.is_set() or (until is not None and until.is_set()),
            on_solution=offered,
            on_bound=proven,
            gap=progress.gap if whole else 0.0,
        )
        if outcome.schedule is not None:
            offered(outcome.schedule)
        if outcome.status in ("optimal", "feasible"):
            proven(outcome.bound)
        return outcome

    def _size(self, stages: int) -> int:
        """Return the number of intervals of the joint model with that many stages."""
        places = self.problem.n_devices if self.problem.family == "free" else 1
        return stages * self.problem.n_microbatches * len(self.problem.kinds) * places
