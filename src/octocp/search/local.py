"""The local search on one problem: states, starts, and the way back to a `Schedule`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from octocp.heuristics.partition import balanced, uniform
from octocp.problem import Problem, family_device
from octocp.schedule import Layout, Schedule
from octocp.search.evaluator import AGE_FORWARD, ALTERNATE, NEVER, PRIORITY_ROWS, RULES, Floats, Ints, new_scratch
from octocp.search.measure import (
    S_DEVICES,
    S_FAMILY,
    S_FREE_CUTS,
    S_HELD,
    S_KINDS,
    S_LEAST,
    S_LIMITED,
    S_MICROBATCHES,
    S_MOST,
    S_SPAN,
    S_UNITS,
    SHAPE,
)
from octocp.search.moves import CYCLIC, FIXED, FREE, WAVE, anneal, score
from octocp.search.orders import anneal_orders

UNLIMITED = 1 << 58
FAMILIES = {"free": FREE, "linear": CYCLIC, "interleaved": CYCLIC, "wave": WAVE, "fixed": FIXED}


@dataclass
class State:
    """One point of the search; arrays are sized for the largest number of stages."""

    stages: int
    cuts: Ints
    place: Ints
    priority: Floats
    rules: Floats
    value: int = NEVER

    def copy(self) -> State:
        """Return an independent copy."""
        return State(
            self.stages,
            self.cuts.copy(),
            self.place.copy(),
            self.priority.copy(),
            self.rules.copy(),
            self.value,
        )


class LocalSearch:
    """The local search on one problem.

    Parameters
    ----------
    most_stages : int
        Largest number of stages to try.
    """

    def __init__(self, problem: Problem, most_stages: int) -> None:
        self.problem = problem
        self.most = min(problem.max_stages, max(most_stages, problem.min_stages))
        units = problem.units
        edges = [begin for begin, _ in units] + [problem.n_layers]
        self.edges_of = edges
        self.unit_of = {edge: index for index, edge in enumerate(edges)}
        shape = np.zeros(SHAPE, dtype=np.int64)
        shape[S_UNITS], shape[S_DEVICES] = len(units), problem.n_devices
        shape[S_MICROBATCHES], shape[S_KINDS] = problem.n_microbatches, len(problem.kinds)
        shape[S_LEAST], shape[S_MOST], shape[S_HELD] = problem.min_stages, self.most, problem.max_per_device
        shape[S_FREE_CUTS] = problem.partition is None
        shape[S_FAMILY] = FAMILIES[problem.family]
        shape[S_LIMITED] = problem.has_memory_limit
        shape[S_SPAN] = problem.objective == "span"
        self.shape = shape
        scale, overhead = problem.scale[0][0], problem.overhead
        common = scale.denominator * overhead.denominator
        self.scaling = np.array(
            [scale.numerator * overhead.denominator, overhead.numerator * scale.denominator, common],
            dtype=np.int64,
        )
        rows = (
            *problem.prefix_ticks,
            problem.prefix_static,
            problem.prefix_activation[0],
            problem.prefix_weight_activation[0],
        )
        self.prefix = np.array([[row[edge] for edge in edges] for row in rows], dtype=np.int64)
        self.link_class = np.array(problem.link_class, dtype=np.int64)
        self.delays = np.array(
            [[by_class[0][edge] for edge in edges] for by_class in problem.delay_ticks], dtype=np.int64
        )
        self.capacity = np.array([UNLIMITED if cap is None else cap for cap in problem.capacity], dtype=np.int64)
        widest = max((len(group) for group in problem.colocate), default=0)
        self.groups = np.full((len(problem.colocate), widest + 1), -1, dtype=np.int64)
        for row, group in enumerate(problem.colocate):
            for column, layer in enumerate(group):
                self.groups[row, column] = max(u for u, edge in enumerate(edges[:-1]) if edge <= layer)

    # ---- states ------------------------------------------------------------------------------

    def state(self, layout: Layout, alternate: bool = False) -> State:
        """Return the state of a layout under a simple rule.

        By default B before F before W, later stages first. With `alternate`, as OctoPipe dispatches: a B after an F and
        an F after a B, W last; F by microbatch and stage, B from the last stage on.
        """
        stages = layout.stages
        cuts = np.zeros(self.most + 2, dtype=np.int64)
        cuts[: stages + 1] = [self.unit_of[bound] for bound in layout.bounds]
        place = np.zeros(self.most + 1, dtype=np.int64)
        place[:stages] = layout.placement
        priority = np.zeros((PRIORITY_ROWS, self.most + 1), dtype=np.float64)
        for stage in range(stages):
            lift = 0.5 * stage / stages
            priority[0, stage] = 2 - lift if alternate else 2 + lift
            priority[1, stage] = 2 + lift if alternate else 3 - lift
            priority[2, stage] = -NEVER if alternate else 1 - lift
        rules = np.zeros(RULES, dtype=np.float64)
        if alternate:
            rules[AGE_FORWARD], rules[ALTERNATE] = 1.0, 4.0 * self.problem.n_microbatches
        return State(stages, cuts, place, priority, rules)

    def layout(self, state: State) -> Layout:
        """Return a state's partition and placement."""
        bounds = tuple(self.edges_of[cut] for cut in state.cuts[: state.stages + 1])
        return Layout(bounds, tuple(int(device) for device in state.place[: state.stages]))

    def schedule(self, state: State) -> Schedule | None:
        """Return the schedule that the evaluator makes of a state, or None where it makes none."""
        start = np.zeros((3, self.most, self.problem.n_microbatches), dtype=np.int64)
        if self._score(state, NEVER, start) >= NEVER:
            return None
        kinds = len(self.problem.kinds)
        return Schedule(self.problem, self.layout(state), start[:kinds, : state.stages].copy())

    def value(self, state: State, give_up: int) -> int:
        """Return a state's objective in ticks; `NEVER` or more where it breaks a rule or passes `give_up`.

        For the span, a value above `give_up` may be returned as it is.
        """
        return self._score(state, give_up, np.zeros((3, self.most, self.problem.n_microbatches), dtype=np.int64))

    def _score(self, state: State, give_up: int, start: Ints) -> int:
        most = self.most
        return score(
            self.shape, self.scaling, self.prefix, self.link_class, self.delays, self.capacity, self.groups,
            state.stages, state.cuts, state.place, state.priority, state.rules, give_up,
            np.zeros((3, most), dtype=np.int64), np.zeros(most + 1, dtype=np.int64),
            np.zeros((2, most), dtype=np.int64), np.zeros(self.problem.n_devices, dtype=np.int64),
            start, np.zeros(start.size, dtype=np.int64), new_scratch(most, self.problem.n_devices),
        )  # fmt: skip

    def starts(self) -> Iterator[State]:
        """Yield starting states: stage counts in rising order, both partition rules, placements of the family."""
        problem = self.problem
        devices = problem.n_devices
        counts = sorted({*range(devices, self.most + 1, devices), problem.min_stages, self.most})
        for stages in counts:
            if not problem.min_stages <= stages <= self.most:
                continue
            dictated = problem.placement_for(stages)
            placements = (
                [dictated]
                if dictated
                else [
                    tuple(family_device(family, stage, devices) for stage in range(stages))
                    for family in ("interleaved", "wave")
                ]
            )
            rules = [balanced, uniform] if stages == devices else [balanced]
            if stages > devices and problem.partition is None:
                rules.append(thin_entry)
            for placement in dict.fromkeys(placements):
                for rule in rules:
                    layout = Layout(rule(problem, stages), placement)
                    if max(placement.count(d) for d in range(devices)) <= problem.max_per_device:
                        yield self.state(layout)
                        yield self.state(layout, alternate=True)

    def improve(
        self, state: State, best: State, moves: int, hot: float, cold: float, target: int, seed: int
    ) -> tuple[State, State]:
        """Anneal a copy of a state; return where it ends and the best state seen, or `best` where that is no worse.

        Parameters
        ----------
        moves : int
            Moves to simulate.
        hot, cold : float
            Temperatures at the start and the end, as shares of the value.
        target : int
            Stop at this value, ticks.
        """
        now, best = state.copy(), best.copy()
        now.value, now.stages, best.value, best.stages = anneal(
            self.shape, self.scaling, self.prefix, self.link_class, self.delays, self.capacity, self.groups,
            now.stages, now.cuts, now.place, now.priority, now.rules,
            best.value, best.stages, best.cuts, best.place, best.priority, best.rules,
            moves, hot, cold, target, seed,
        )  # fmt: skip
        return now, best


def thin_entry(problem: Problem, stages: int) -> tuple[int, ...]:
    """Cut so that every device can start soon: one unit for each of the first P stages, the rest evenly by cost."""
    edges = [begin for begin, _ in problem.units] + [problem.n_layers]
    thin = min(problem.n_devices, stages - 1)
    rest = stages - thin
    cost = [sum(prefix[edge] for prefix in problem.prefix_ticks) for edge in edges]
    cuts = list(range(thin + 1))
    for stage in range(1, rest):
        aim = cost[thin] + (cost[-1] - cost[thin]) * stage / rest
        nearest = min(range(thin, len(edges)), key=lambda u: abs(cost[u] - aim))
        cuts.append(min(max(nearest, cuts[-1] + 1), len(edges) - 1 - (rest - stage)))
    return tuple(edges[cut] for cut in [*cuts, len(edges) - 1])


def warm_up() -> None:
    """Load the compiled evaluator, or compile it (once per machine and version)."""
    ints, floats = np.zeros(3, dtype=np.int64), np.zeros((PRIORITY_ROWS, 2), dtype=np.float64)
    table = np.zeros((6, 2), dtype=np.int64)
    shape = np.zeros(SHAPE, dtype=np.int64)
    shape[[S_UNITS, S_DEVICES, S_MICROBATCHES, S_KINDS, S_LEAST, S_MOST, S_HELD]] = (1, 1, 1, 2, 1, 1, 1)
    scaling = np.array([1, 0, 1], dtype=np.int64)
    cuts = np.array([0, 1, 0], dtype=np.int64)
    anneal(
        shape, scaling, table, table[:1, :1].copy(), table, ints.copy(), np.full((1, 1), -1, dtype=np.int64),
        1, cuts, ints.copy(), floats, np.zeros(RULES),
        NEVER, 1, cuts.copy(), ints.copy(), floats.copy(), np.zeros(RULES), 0, 0.01, 0.001, 0, 0,
    )  # fmt: skip
    anneal_orders(
        shape, scaling, table, table[:1, :1].copy(), table, ints.copy(), np.full((1, 1), -1, dtype=np.int64),
        1, cuts, ints.copy(), table[:1].copy(), ints.copy(), cuts.copy(), table[:1].copy(),
        np.zeros((3, 1, 1), dtype=np.int64), 0, 0.01, 0.001, 0, 0,
    )  # fmt: skip
