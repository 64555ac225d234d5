"""What every op waits for, and why: the edges that the timing pass keeps, each with its cause.

Also what a device holds along its order, and the ops of a cycle where orders wait for each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from octocp.problem import KIND_NAMES, B, F, Problem, W
from octocp.schedule import Layout, Op, Schedule

Cause = Literal["start", "forward", "gradient", "own", "device", "memory", "lead"]
"""Why an op starts no earlier: nothing was before it; the forward or the gradient that it needs; its own F or B;
its device was busy; only what ran before it made room in memory; or nothing, and it is held back."""

# A cycle of orders is told up to this many ops.
MOST_TOLD = 6


class Link(NamedTuple):
    """One thing that an op waits for: the op before, the ticks on the way, and the cause."""

    before: Op
    delay: int
    cause: Cause


def name(op: Op) -> str:
    """Name an op as changes do: kind, stage and microbatch."""
    return f"{KIND_NAMES[op.kind]}({op.stage},{op.microbatch})"


def inputs(problem: Problem, layout: Layout, op: Op, *, fused: bool) -> list[Link]:
    """Return what must have ended before an op may start, its device's order left out.

    Parameters
    ----------
    fused : bool
        Whether the gradient is handed on when W ends instead of when B ends.
    """
    kind, stage, microbatch = op
    if kind == W:
        return [Link(Op(B, stage, microbatch), 0, "own")]
    placement = layout.placement
    if kind == F:
        if not stage:
            return []
        delay = problem.delay(layout.bounds[stage], placement[stage - 1], placement[stage], microbatch)
        return [Link(Op(F, stage - 1, microbatch), delay, "forward")]
    found = [Link(Op(F, stage, microbatch), 0, "own")]
    if stage + 1 < layout.stages:
        delay = problem.delay(layout.bounds[stage + 1], placement[stage], placement[stage + 1], microbatch)
        found.append(Link(Op(W if fused and problem.split else B, stage + 1, microbatch), delay, "gradient"))
    return found


def sequence_of(schedule: Schedule) -> list[Op]:
    """Return all ops by start, in an order that keeps every precedence also where ops take no time."""
    last = schedule.layout.stages - 1
    start, end = schedule.start.tolist(), schedule.end.tolist()

    def place(op: Op) -> tuple[int, int, int, int]:
        kind, stage, microbatch = op
        rank = stage if kind == F else 2 * last + 1 - stage if kind == B else 3 * last + 2
        return start[kind][stage][microbatch], end[kind][stage][microbatch], rank, microbatch

    kinds, stages, microbatches = schedule.start.shape
    ops = (Op(k, s, m) for k in range(kinds) for s in range(stages) for m in range(microbatches))
    return sorted(ops, key=place)


def glued(sequence: Iterable[Op]) -> list[Op]:
    """Return a sequence with every W right after its B, as a fused backward runs them."""
    made = []
    for op in sequence:
        if op.kind != W:
            made.append(op)
        if op.kind == B:
            made.append(Op(W, op.stage, op.microbatch))
    return made


def by_device(layout: Layout, sequence: Iterable[Op], devices: int) -> list[list[Op]]:
    """Split a sequence of all ops into each device's order."""
    orders: list[list[Op]] = [[] for _ in range(devices)]
    for op in sequence:
        orders[layout.placement[op.stage]].append(op)
    return orders


def change_of(problem: Problem, layout: Layout, op: Op) -> int:
    """Return the memory units that a device holds more after an op than before it."""
    begin, end = layout.bounds[op.stage : op.stage + 2]
    _, activation, weight = problem.stage_memory(begin, end, op.microbatch)
    if op.kind == F:
        return activation
    if op.kind == B:
        return (weight if problem.split else 0) - activation
    return -weight


def levels(problem: Problem, layout: Layout, device: int, order: Sequence[Op]) -> list[int]:
    """Return the memory units that a device holds before each op of its order, and after the last; static included."""
    level = sum(problem.stage_memory(*layout.bounds[stage : stage + 2])[0] for stage in layout.stages_on(device))
    found = [level]
    for op in order:
        level += change_of(problem, layout, op)
        found.append(level)
    return found


def cycle(problem: Problem, layout: Layout, orders: Sequence[Sequence[Op]], *, fused: bool) -> str:
    """Say which ops wait for each other in a circle; "" where none do."""
    waits: dict[Op, list[tuple[Op, str]]] = {}
    after: dict[Op, list[Op]] = {}
    for device, order in enumerate(orders):
        for place, op in enumerate(order):
            links = [(link.before, _why(link.cause)) for link in inputs(problem, layout, op, fused=fused)]
            if place:
                links.append((order[place - 1], f"before it on device {device}"))
            waits[op] = links
            for before, _ in links:
                after.setdefault(before, []).append(op)
    left = {op: len(links) for op, links in waits.items()}
    ready = deque(op for op, count in left.items() if not count)
    while ready:
        op = ready.popleft()
        del left[op]
        for other in after.get(op, []):
            left[other] -= 1
            if not left[other]:
                ready.append(other)
    if not left:
        return ""
    # Whatever is left waits for something that is left: going back from anywhere ends in a circle.
    walk: dict[Op, int] = {}
    steps: list[tuple[Op, str]] = []
    op = next(iter(left))
    while op not in walk:
        walk[op] = len(steps)
        before, why = next((before, why) for before, why in waits[op] if before in left)
        steps.append((before, why))
        op = before
    told = [f"{name(before)} ({why})" for before, why in steps[walk[op] :]]
    if len(told) > MOST_TOLD:
        told = [*told[: MOST_TOLD - 1], f"{len(told) - MOST_TOLD} more", told[-1]]
    return f"{name(op)} waits for {', that for '.join(told)}"


def _why(cause: Cause) -> str:
    return {"forward": "its forward", "gradient": "its gradient"}.get(cause, "its input")
