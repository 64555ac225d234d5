"""Orders by simulation: a pattern says what should come next, memory what may, and W fills the gaps.

For the schedules that no closed form gives: zero-bubble's automatic scheduler and the V schedules. Ops are
committed in the order of their starts, so that whatever has arrived by then is known; what arrives later is known as
soon as its producer has started.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Literal

from octocp.problem import B, F, Problem, W
from octocp.schedule import Layout, Op, Orders

# Ops simulated over all tries of a schedule; beyond, only the first try, which is the best one most often.
MOST_OPS = 150_000

Early = Literal["never", "fits", "always"]
"""When an op may run though another should come first: never, where it does not delay that one as far as is known,
or whenever that one is not ready."""


@dataclass(frozen=True)
class Choices:
    """The discrete choices of a simulation.

    Attributes
    ----------
    forward, backward, weight : str
        When F, B and W may run before what the pattern has next. "idlest", for W: as "fits", and also on the device
        that has been idle longest.
    alternate : bool
        After the first B of a device, F and B take turns, whatever the pattern says.
    reserve : float
        Memory that an F of a device's first stage leaves free when it runs early.
    """

    forward: Early = "never"
    backward: Early = "never"
    weight: Literal["fits", "always", "idlest"] = "always"
    alternate: bool = False
    reserve: float = 0


@dataclass(frozen=True)
class Filled:
    """Orders with the makespan and the span of their simulation, ticks."""

    orders: Orders
    makespan: int
    span: int


class _Simulation:
    """Every stage and kind in microbatch order; one candidate per device."""

    def __init__(
        self,
        problem: Problem,
        layout: Layout,
        pattern: Orders,
        held: list[tuple[float, float]],
        limits: list[float],
        choices: Choices,
    ) -> None:
        self.problem, self.layout, self.choices, self.held, self.limits = problem, layout, choices, held, limits
        self.microbatches = problem.n_microbatches
        self.ticks = layout.durations(problem).tolist()
        self.rank = {op: position for order in pattern for position, op in enumerate(order)}
        self.stages = [layout.stages_on(device) for device in range(problem.n_devices)]
        self.following = [[0] * layout.stages for _ in range(3)]
        self.ready: list[list[list[int]]] = [[[-1] * self.microbatches for _ in range(layout.stages)] for _ in range(3)]
        self.ready[F][0] = [0] * self.microbatches
        self.free = [0] * problem.n_devices
        self.first: list[int | None] = [None] * problem.n_devices
        self.idle = [0] * problem.n_devices
        self.memory = [0.0] * problem.n_devices
        self.last = [W] * problem.n_devices
        self.orders: list[list[Op]] = [[] for _ in range(problem.n_devices)]

    def run(self) -> Filled | None:
        """Return the orders, or None where the memory left cannot hold what must come next."""
        devices = range(self.problem.n_devices)
        candidates = [self.candidate(device) for device in devices]
        for _ in range(3 * self.layout.stages * self.microbatches):
            device = min(devices, key=lambda one: candidates[one][0])
            start, op = candidates[device]
            if op is None:
                return None
            for changed in self.commit(device, int(start), op):
                candidates[changed] = self.candidate(changed)
        spans = [free - (first or 0) for free, first in zip(self.free, self.first, strict=True)]
        return Filled(self.orders, max(self.free), max(spans))

    def candidate(self, device: int) -> tuple[float, Op | None]:
        """Return the earliest start and the op that the device would run next as far as is known."""
        choices, now = self.choices, self.free[device]
        waiting: list[tuple[int, Op, float]] = []  # rank, op, ready
        weights: list[tuple[int, Op]] = []
        for stage in self.stages[device]:
            for kind in (F, B, W):
                microbatch = self.following[kind][stage]
                if microbatch == self.microbatches:
                    continue
                op, ready = Op(kind, stage, microbatch), self.ready[kind][stage][microbatch]
                if kind != W:
                    waiting.append((self.rank[op], op, inf if ready < 0 else max(now, ready)))
                elif ready >= 0:
                    weights.append((self.rank[op], op))
        if not waiting:
            return (now, min(weights)[1]) if weights else (inf, None)
        due: float
        if choices.alternate and self.following[B][self.stages[device][0]]:
            turn = B if self.last[device] == F else F
            waiting.sort(key=lambda each: (each[1].kind != turn, each[0]))
        else:
            waiting.sort()
        _, head, due = waiting[0]
        if not self.fits(device, head, 0):
            due = inf
        if due <= now:
            return now, head
        best: tuple[float, Op | None] = (due, head if due < inf else None)
        for _, op, since in waiting[1:]:
            mode = choices.forward if op.kind == F else choices.backward
            reserve = choices.reserve if op.stage == self.stages[device][0] and len(self.stages[device]) > 1 else 0
            if mode == "never" or since >= best[0] or not self.fits(device, op, reserve):
                continue
            if mode == "always" or since + self.ticks[op.kind][op.stage][op.microbatch] <= due:
                best = since, op
        if weights and best[0] > now:
            op = min(weights)[1]
            gap = best[0] - now
            if (
                choices.weight == "always"
                or self.ticks[W][op.stage][op.microbatch] <= gap
                or (choices.weight == "idlest" and self.idle[device] + gap >= max(self.idle))
            ):
                return now, op
        return best

    def fits(self, device: int, op: Op, reserve: float) -> bool:
        """Whether the memory of an op fits; W frees, and so does B once F has set the larger of both parts aside."""
        return op.kind != F or self.memory[device] + max(self.held[op.stage]) + reserve <= self.limits[device]

    def commit(self, device: int, start: int, op: Op) -> set[int]:
        """Run an op, and return the devices whose candidate may be another one now."""
        kind, stage, microbatch = op
        end = start + self.ticks[kind][stage][microbatch]
        if self.first[device] is None:
            self.first[device] = start
        else:
            self.idle[device] += start - self.free[device]
        self.free[device] = end
        self.orders[device].append(op)
        self.following[kind][stage] += 1
        activation, weight = self.held[stage]
        if kind == F:
            self.memory[device] += max(activation, weight)
        elif kind == B:
            self.memory[device] -= max(activation, weight) - weight
        else:
            self.memory[device] -= weight
        if kind == W:
            return {device}
        self.last[device] = kind
        if kind == B:
            self.ready[W][stage][microbatch] = end
        arrives_at = stage + 1 if kind == F else stage - 1
        if kind == F and arrives_at == self.layout.stages:
            self.ready[B][stage][microbatch] = end
            return {device}
        if arrives_at < 0:
            return {device}
        other = self.layout.placement[arrives_at]
        boundary = self.layout.bounds[max(stage, arrives_at)]
        self.ready[kind][arrives_at][microbatch] = end + self.problem.delay(boundary, device, other, microbatch)
        return {device, other}


def fill(
    problem: Problem,
    layout: Layout,
    pattern: Orders,
    held: list[tuple[float, float]],
    limits: list[float],
    choices: Choices,
) -> Filled | None:
    """Simulate a pattern on the problem's own costs.

    Parameters
    ----------
    pattern : Orders
        Every op of every device, in the order preferred; a split backward.
    held : list of (float, float)
        Per stage, what a microbatch holds from F to the end of B and from there to the end of W.
    limits : list of float
        Per device, what may be held at any time, in the same unit.
    choices : Choices
        What may run before its turn.

    Returns
    -------
    Filled or None
        None where the simulation comes to a stop: memory is full of microbatches that wait for each other.
    """
    return _Simulation(problem, layout, pattern, held, limits, choices).run()


@dataclass(frozen=True)
class Try:
    """One simulation to make: the arguments of `fill`."""

    pattern: Orders
    held: list[tuple[float, float]]
    limits: list[float]
    choices: Choices


def best_fill(problem: Problem, layout: Layout, tries: Iterable[Try]) -> Orders | None:
    """Return the orders with the least objective over the tries, as far as `MOST_OPS` go; None where all stop."""
    best: tuple[int, Orders] | None = None
    ops = 0
    for one in tries:
        if best is not None and ops > MOST_OPS:
            break
        filled = fill(problem, layout, one.pattern, one.held, one.limits, one.choices)
        ops += len(problem.kinds) * layout.stages * problem.n_microbatches
        if filled is None:
            continue
        value = filled.makespan if problem.objective == "makespan" else filled.span
        if best is None or value < best[0]:
            best = value, filled.orders
    return best and best[1]
