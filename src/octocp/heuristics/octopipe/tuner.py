"""OctoPipe's tuner: a beam of layouts, each dispatched by its rule, then bubble-aware steps from the best of them.

Two forms of one method, one after the other. First what is released as SimPipe: of each stage count the most even
partitions with several placements, ranked by load; the best are simulated, some of every stage count; then rounds in
which the ops with the most idle time before them may no longer be put off. Then the paper's Algorithm 1 (arXiv
2509.23722): see which part of the plan the idle time comes from, change that part, keep what helps.

All limits are numbers of simulations and of simulated ops: the result depends on nothing but the problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise

from octocp.heuristics.base import Attempt, NotApplicableError, describe_excess
from octocp.heuristics.dispatch import Dispatch, Tables, dispatch
from octocp.heuristics.octopipe.beam import Loads, most_even, neighbours, placements, stage_counts
from octocp.heuristics.octopipe.rule import OCTOPIPE_RULE, SOURCE
from octocp.heuristics.partition import balanced, uniform
from octocp.problem import F, Problem
from octocp.schedule import Layout
from octocp.timing import time_orders

Protected = frozenset[tuple[int, int]]
Options = Iterator[tuple[Layout, Protected]]


@dataclass(frozen=True)
class Effort:
    """How much the tuner tries.

    Attributes
    ----------
    partitions, placements : int
        Width of the beam: partitions per stage count, placements per partition.
    simulated, per_count : int
        Layouts of the beam that are simulated, and how many of every stage count at least.
    rounds : int
        Rounds per layout in which more ops may no longer be put off.
    seeds : int
        Layouts that go on to those rounds and to Algorithm 1.
    tries : int
        Simulations in one step of Algorithm 1; 0 leaves it out.
    ops : int
        Ops simulated in all, about (simulations that are cut short count in full); one simulation always ends.
    chunks, stages : int
        Stages per device, and stages, up to the larger of which stage counts are tried.
    """

    partitions: int = 4
    placements: int = 8
    simulated: int = 160
    per_count: int = 2
    rounds: int = 4
    seeds: int = 4
    tries: int = 32
    ops: int = 800_000
    chunks: int = 8
    stages: int = 64

    def times(self, factor: int) -> Effort:
        """Return an effort with so many times the simulations and ops, and a wider beam."""
        return Effort(
            partitions=self.partitions * factor,
            placements=self.placements * factor,
            simulated=self.simulated * factor,
            per_count=self.per_count * factor,
            rounds=self.rounds,
            seeds=self.seeds * factor,
            tries=self.tries * factor,
            ops=self.ops * factor,
            chunks=self.chunks,
            stages=self.stages,
        )


@dataclass(frozen=True)
class Tuner:
    """OctoPipe's tuner with an effort; unlike a `Heuristic` it decides on partition and placement itself.

    Attributes
    ----------
    admission : bool
        Keep memory limits while dispatching. Without it, as published, plans above a limit are dropped afterwards.
    """

    name: str = "octopipe"
    source: str = SOURCE
    effort: Effort = Effort()
    admission: bool = True

    def run(self, problem: Problem) -> Attempt:
        """Return the best plan found, or why there is none."""
        try:
            return _Run(problem, self).attempt()
        except NotApplicableError as error:
            return Attempt(self.name, "", "not-applicable", reason=str(error))


OCTOPIPE = Tuner()
RELEASED = Effort(simulated=32, tries=0)
"""What SimPipe does: 32 simulations of the beam and no Algorithm 1."""


@dataclass(frozen=True)
class _State:
    """A layout with what may not be put off, and what became of it."""

    layout: Layout
    protected: Protected
    tables: Tables
    made: Dispatch
    value: int
    idle: int


class _Run:
    """One run of the tuner."""

    def __init__(self, problem: Problem, tuner: Tuner) -> None:
        self.problem, self.tuner, self.effort = problem, tuner, tuner.effort
        self.loads = Loads(problem)
        self.left = self.effort.ops
        self.simulations = 0
        self.seen: set[tuple[Layout, Protected]] = set()
        # (excess, device, need) of the layout that is least short of memory, in memory units.
        self.short: tuple[int, int, int] | None = None
        self.span = problem.objective == "span"
        edges = [begin for begin, _ in problem.units] + [problem.n_layers]
        self.edges, self.unit_of = edges, {edge: unit for unit, edge in enumerate(edges)}
        self.least_layer = min(sum(row[layer] for row in problem.layer_ticks) for layer in range(problem.n_layers))

    def attempt(self) -> Attempt:
        """Run all phases."""
        beam = self._beam()
        found = self._simulate(beam)
        if not found:
            assert self.short is not None
            _, device, need = self.short
            return Attempt(self.tuner.name, "", "infeasible", reason=describe_excess(self.problem, device, need))
        found = [self._protect(state) for state in found[: self.effort.seeds]]
        if self.effort.tries:
            found = [self._improve(state) for state in found]
        timed = [time_orders(self.problem, state.layout, state.made.orders) for state in found]
        best = min(timed, key=lambda schedule: schedule.value)
        return Attempt(self.tuner.name, "beam", "feasible", best)

    # ---- the beam ------------------------------------------------------------------------------

    def _beam(self) -> list[Layout]:
        """Return the layouts to simulate, those that every stage count is entitled to first, then by load proxy."""
        problem, effort = self.problem, self.effort
        counts = stage_counts(problem, max(effort.chunks * problem.n_devices, effort.stages))
        ranked: list[tuple[tuple[float, float], int, Layout]] = []
        bounds: tuple[int, ...] = ()
        for count, partitions in most_even(problem, counts, effort.partitions).items():
            for bounds in dict.fromkeys([*partitions, balanced(problem, count), uniform(problem, count)]):
                for placement in placements(problem, self.loads, bounds, effort.placements):
                    layout = Layout(bounds, placement)
                    ranked.append((self.loads.proxy(layout), count, layout))
        if not ranked:
            cyclic = tuple(stage % problem.n_devices for stage in range(len(bounds) - 1))
            broken = Layout(bounds, problem.placement_for(len(cyclic)) or cyclic).violation(problem)
            raise NotApplicableError(f"no layout of its beam meets the stage rules: {broken}")
        ranked.sort(key=lambda item: item[0])
        taken: dict[int, int] = {}
        first: list[Layout] = []
        rest: list[Layout] = []
        for _, count, layout in ranked:
            taken[count] = taken.get(count, 0) + 1
            (first if taken[count] <= effort.per_count else rest).append(layout)
        return first + rest

    def _simulate(self, beam: list[Layout]) -> list[_State]:
        """Simulate the first layouts of the beam that have room for a microbatch; return the outcomes, best first."""
        found: list[_State] = []
        for layout in beam:
            if self.left <= 0 or (found and self.simulations >= self.effort.simulated):
                break
            limit = None
            if len(found) >= self.effort.seeds:
                limit = sorted(state.value for state in found)[self.effort.seeds - 1]
            state = self._try(layout, frozenset(), limit)
            if state is not None:
                found.append(state)
        return sorted(found, key=lambda state: (state.value, state.idle))

    def _try(self, layout: Layout, protected: Protected, limit: int | None) -> _State | None:
        """Simulate a layout; None where it was before, breaks the memory limit, or is not below `limit`."""
        if (layout, protected) in self.seen:
            return None
        self.seen.add((layout, protected))
        problem = self.problem
        tables = Tables(problem, layout, admission=self.tuner.admission)
        if problem.has_memory_limit:
            short = tables.shortage()
            if short is not None:
                device, need = short
                excess = need - (problem.capacity[device] or 0)
                if self.short is None or excess < self.short[0]:
                    self.short = (excess, device, need)
                if tables.admission:
                    return None
        self.simulations += 1
        self.left -= len(problem.kinds) * layout.stages * problem.n_microbatches
        made = dispatch(tables, OCTOPIPE_RULE, protected=protected, give_up=None if self.span else limit)
        if made is None:
            return None
        if problem.has_memory_limit and not tables.admission:
            over = time_orders(problem, layout, made.orders).memory_excess()
            if over is not None:
                device, need, cap = over
                if self.short is None or need - cap < self.short[0]:
                    self.short = (need - cap, device, need)
                return None
        value = made.span if self.span else made.makespan
        if limit is not None and value >= limit:
            return None
        return _State(layout, protected, tables, made, value, _idle_inside(tables, made))

    # ---- what may not be put off ---------------------------------------------------------------

    def _protect(self, state: _State) -> _State:
        """Go through the rounds in which one more (kind, microbatch) may no longer be put off."""
        tried: set[tuple[int, int]] = set()
        for _ in range(self.effort.rounds):
            if self.left <= 0:
                break
            group = next((one for one in self._waiting(state) if one not in state.protected | tried), None)
            if group is None:
                break
            tried.add(group)
            after = self._try(state.layout, state.protected | {group}, None)
            if after is not None and (after.value, after.idle) < (state.value, state.idle):
                state = after
        return state

    def _waiting(self, state: _State) -> list[tuple[int, int]]:
        """Return the (kind, microbatch) whose ops have idle time before them, the most first."""
        idle: dict[tuple[int, int], int] = {}
        ticks = state.tables.ticks
        start = state.made.start
        for order in state.made.orders:
            end = 0
            for position, (kind, stage, microbatch) in enumerate(order):
                begin = start[kind][stage][microbatch]
                if position and begin > end:
                    idle[kind, microbatch] = idle.get((kind, microbatch), 0) + begin - end
                end = begin + ticks[kind][stage][microbatch]
        return sorted(idle, key=lambda group: (-idle[group], group))

    # ---- Algorithm 1 ---------------------------------------------------------------------------

    def _improve(self, state: _State) -> _State:
        """Change the part that the idle time comes from for as long as that, or else another part, helps."""
        while self.left > 0:
            after = None
            for part in self._parts(state):
                after = self._step(state, part(state))
                if after is not None:
                    break
            if after is None:
                break
            state = after
        return state

    def _parts(self, state: _State) -> list[Callable[[_State], Options]]:
        """Return the three parts, the one to blame first.

        Partition where the devices' idle times differ by more than the smallest layer takes; else placement where more
        idle time is at the devices' beginnings and ends than inside; else the order.
        """
        by_device = state.tables.load
        boundary = sum(state.made.makespan - load for load in by_device) - state.idle
        parts: list[Callable[[_State], Options]] = [self._partitions, self._placements, self._orders]
        if max(by_device) - min(by_device) > self.least_layer * self.problem.n_microbatches:
            return parts
        if boundary > state.idle:
            return [parts[1], parts[2], parts[0]]
        return [parts[2], parts[1], parts[0]]

    def _step(self, state: _State, options: Options) -> _State | None:
        """Return the first option that is better than the state."""
        for layout, protected in islice(options, self.effort.tries):
            if self.left <= 0:
                return None
            after = self._try(layout, protected, state.value)
            if after is not None:
                return after
        return None

    def _partitions(self, state: _State) -> Options:
        """Yield the layouts that take a unit from one stage and give one to another, by load proxy.

        All cuts between the two move by one, so the stages between them keep their number of layers.
        """
        problem, layout = self.problem, state.layout
        if problem.partition is not None:
            return
        cuts = [self.unit_of[bound] for bound in layout.bounds]
        found = []
        for donor in range(layout.stages):
            for taker in range(layout.stages):
                if donor == taker:
                    continue
                moved = list(cuts)
                for cut in range(min(donor, taker) + 1, max(donor, taker) + 1):
                    moved[cut] += 1 if taker < donor else -1
                if any(end <= begin for begin, end in pairwise(moved)):
                    continue
                found.append(Layout(tuple(self.edges[cut] for cut in moved), layout.placement))
        yield from ((one, state.protected) for one in self._ranked(found))

    def _placements(self, state: _State) -> Options:
        """Yield the layouts that move or swap stages, or cut one in two, by load proxy."""
        problem, layout = self.problem, state.layout
        found = []
        if problem.family == "free":
            costs = self.loads.stage_costs(layout.bounds)
            found = [Layout(layout.bounds, one) for one in neighbours(self.loads, costs, layout.placement)]
            found += [
                Layout(layout.bounds, _swapped(layout.placement, stage))
                for stage in range(layout.stages - 1)
                if layout.placement[stage] != layout.placement[stage + 1]
            ]
            if problem.partition is None and layout.stages < problem.max_stages:
                found += self._cut(layout)
        yield from ((one, state.protected) for one in self._ranked(found))

    def _cut(self, layout: Layout) -> Iterator[Layout]:
        """Yield the layouts with one stage cut in the middle and one half on the least loaded device."""
        by_device = self.loads.by_device(self.loads.stage_costs(layout.bounds), layout.placement)
        light = min(range(len(by_device)), key=by_device.__getitem__)
        for stage, device in enumerate(layout.placement):
            begin, end = (self.unit_of[bound] for bound in layout.bounds[stage : stage + 2])
            if end - begin < 2 or device == light:
                continue
            middle = self.edges[(begin + end) // 2]
            bounds = (*layout.bounds[: stage + 1], middle, *layout.bounds[stage + 1 :])
            for halves in ((device, light), (light, device)):
                yield Layout(bounds, (*layout.placement[:stage], *halves, *layout.placement[stage + 1 :]))

    def _orders(self, state: _State) -> Options:
        """Yield the layout with one more or one less (kind, microbatch) that may not be put off."""
        for group in self._waiting(state):
            yield state.layout, state.protected ^ {group}

    def _ranked(self, layouts: list[Layout]) -> list[Layout]:
        """Return those that meet the stage rules, by load proxy."""
        return sorted((one for one in layouts if one.violation(self.problem) is None), key=self.loads.proxy)


def _swapped(placement: tuple[int, ...], stage: int) -> tuple[int, ...]:
    return (*placement[:stage], placement[stage + 1], placement[stage], *placement[stage + 2 :])


def _idle_inside(tables: Tables, made: Dispatch) -> int:
    """Return the idle ticks between the first and the last op, summed over the devices."""
    idle = 0
    for order, load in zip(made.orders, tables.load, strict=True):
        last = order[-1]
        end = made.start[last.kind][last.stage][last.microbatch] + tables.ticks[last.kind][last.stage][last.microbatch]
        idle += end - made.start[F][order[0].stage][order[0].microbatch] - load
    return idle
