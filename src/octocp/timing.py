"""The one timing pass: per-device orders to the earliest start of every op.

Heuristics and exact methods say *in which order*; this says *when*. The peak memory of a
device depends on its order alone: its activations are taken and freed by its own ops, and those
run one after the other.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from octocp.problem import B, F, Problem, W
from octocp.schedule import Layout, Op, Orders, Schedule

# Ops up to which the least span for given orders is worth its time.
EXACT_SPAN_OPS = 3_000

Fused = bool | frozenset[tuple[int, int]]


class DeadlockError(ValueError):
    """The orders of the devices wait for each other; the text names an op of each device that waits."""


class _Graph:
    """Precedence as successor lists over numbered ops: durations, delays and device orders in one."""

    def __init__(self, problem: Problem, layout: Layout, orders: Orders, fused: Fused) -> None:
        self.shape = (len(problem.kinds), layout.stages, problem.n_microbatches)
        self.duration = layout.durations(problem).ravel()
        count = self.duration.size
        self.following: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        self.waiting = [0] * count
        stages = layout.stages
        for microbatch in range(problem.n_microbatches):
            for stage in range(stages):
                boundary = layout.bounds[stage]
                if stage:
                    here, before = layout.placement[stage], layout.placement[stage - 1]
                    delay = problem.delay(boundary, before, here, microbatch)
                    self._edge((F, stage - 1, microbatch), (F, stage, microbatch), delay)
                    whole = fused if isinstance(fused, bool) else (stage, microbatch) in fused
                    hands_on = W if whole and problem.split else B
                    self._edge((hands_on, stage, microbatch), (B, stage - 1, microbatch), delay)
                self._edge((F, stage, microbatch), (B, stage, microbatch), 0)
                if problem.split:
                    self._edge((B, stage, microbatch), (W, stage, microbatch), 0)
        self.rows = [[self.number(op) for op in order] for order in orders]
        for row in self.rows:
            for one, other in zip(row, row[1:], strict=False):
                self.following[one].append((other, 0))
                self.waiting[other] += 1

    def number(self, op: Op | tuple[int, int, int]) -> int:
        kind, stage, microbatch = op
        return (kind * self.shape[1] + stage) * self.shape[2] + microbatch

    def _edge(self, one: tuple[int, int, int], other: tuple[int, int, int], delay: int) -> None:
        number = self.number(other)
        self.following[self.number(one)].append((number, delay))
        self.waiting[number] += 1

    def topological(self) -> list[int]:
        waiting = list(self.waiting)
        ready = deque(number for number, left in enumerate(waiting) if not left)
        sequence = []
        while ready:
            one = ready.popleft()
            sequence.append(one)
            for other, _ in self.following[one]:
                waiting[other] -= 1
                if not waiting[other]:
                    ready.append(other)
        if len(sequence) < len(waiting):
            done = set(sequence)
            stuck = [next((number for number in row if number not in done), None) for row in self.rows]
            names = ", ".join(
                f"device {device} at {'FBW'[number // (self.shape[1] * self.shape[2])]} of stage "
                f"{number // self.shape[2] % self.shape[1]}, microbatch {number % self.shape[2]}"
                for device, number in enumerate(stuck)
                if number is not None
            )
            raise DeadlockError(f"the orders wait for each other: {names}")
        return sequence


def time_orders(problem: Problem, layout: Layout, orders: Orders, *, fused: Fused = False) -> Schedule:
    """Start every op as early as its predecessors and its device's order allow.

    Parameters
    ----------
    orders : sequence of sequences of Op
        Every op exactly once, on the device that holds its stage.
    fused : bool or set of (stage, microbatch)
        On a split instance: hand the gradient on when W ends, as a runtime with a fused backward does
        (the order then runs each W right after its B); a set says which backwards are fused.

    Returns
    -------
    Schedule
        Earliest starts; for the span objective, then as late as keeps every device's last end, and up to
        `EXACT_SPAN_OPS` ops the least span that the orders admit.

    Raises
    ------
    DeadlockError
        The orders wait for each other.
    ValueError
        An op is missing, given twice, or on the wrong device.
    """
    _validate(problem, layout, orders)
    graph = _Graph(problem, layout, orders, fused)
    sequence = graph.topological()
    start = [0] * len(sequence)
    _push(graph, sequence, start)
    if problem.objective == "span":
        if len(sequence) <= EXACT_SPAN_OPS:
            _compress(graph, sequence, start)
        else:
            _delay(graph, sequence, start)
    return Schedule(problem, layout, np.array(start, dtype=np.int64).reshape(graph.shape))


def _validate(problem: Problem, layout: Layout, orders: Orders) -> None:
    seen: set[Op] = set()
    for device, order in enumerate(orders):
        for op in order:
            if layout.placement[op.stage] != device:
                raise ValueError(f"{op} is on device {device}, its stage on {layout.placement[op.stage]}")
            if op in seen:
                raise ValueError(f"{op} is given twice")
            seen.add(op)
    expected = len(problem.kinds) * layout.stages * problem.n_microbatches
    if len(seen) != expected:
        raise ValueError(f"{len(seen)} ops in the orders; {expected} expected")


def _push(graph: _Graph, sequence: list[int], start: list[int]) -> None:
    """Raise starts to the least fixpoint at or above `start`: one pass, in topological order."""
    for one in sequence:
        end = start[one] + int(graph.duration[one])
        for other, delay in graph.following[one]:
            start[other] = max(start[other], end + delay)


def _delay(graph: _Graph, sequence: list[int], start: list[int]) -> None:
    """Start every op as late as its followers allow, in place; the last op of each device stays."""
    last = {row[-1] for row in graph.rows if row}
    for one in reversed(sequence):
        if one not in last:
            latest = min(start[other] - delay for other, delay in graph.following[one])
            start[one] = latest - int(graph.duration[one])


def _compress(graph: _Graph, sequence: list[int], start: list[int]) -> None:
    """Lower the span for the given orders to its least value, in place.

    For a target T, "last end - first start <= T on every device" is one more difference constraint per
    device, an edge back from its last op to its first. Raising first ops to ``last end - T`` and pushing, in
    rounds, gives the least fixpoint. A longest path without cycles uses each of the P back edges at most
    once, so ops that are still late after P + 1 rounds prove a positive cycle: T is out of reach. T is
    found by bisection.
    """
    ends = [(row[0], row[-1]) for row in graph.rows if row]
    load = max(int(sum(graph.duration[number] for number in row)) for row in graph.rows if row)

    def reach(target: int) -> list[int] | None:
        trial = list(start)
        for _ in range(len(ends) + 1):
            late = [
                (first, trial[last] + int(graph.duration[last]) - target)
                for first, last in ends
                if trial[last] + int(graph.duration[last]) - trial[first] > target
            ]
            if not late:
                return trial
            for first, least in late:
                trial[first] = max(trial[first], least)
            _push(graph, sequence, trial)
        return None

    low, high = load, max(start[last] + int(graph.duration[last]) - start[first] for first, last in ends)
    best = list(start)
    while low < high:
        middle = (low + high) // 2
        found = reach(middle)
        if found is None:
            low = middle + 1
        else:
            high, best = middle, found
    start[:] = best
