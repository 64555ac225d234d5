"""Hanayo: the pipeline as a wave that runs to and fro over the devices (Liu et al., SC 2023)."""

from __future__ import annotations

from octocp.heuristics.base import Heuristic, NotApplicableError, chunked
from octocp.heuristics.serial import backward_ops
from octocp.problem import B, F, Problem
from octocp.schedule import Layout, Op, Orders

MOST_WAVES = 4
UNITS = {F: 1, B: 2}


def _placements(problem: Problem) -> list[tuple[int, ...]]:
    found, reason = [], None
    for waves in range(1, MOST_WAVES + 1):
        try:
            found.append(chunked(problem, "wave", 2 * waves))
        except NotApplicableError as error:
            reason = reason or error
    if not found and reason is not None:
        raise reason
    return found


def hanayo(problem: Problem, layout: Layout) -> Orders:
    """Order by running F as one unit and B as two, as the paper does: B first, then the F that has come furthest.

    A device takes the oldest microbatch's B if one has arrived, else the F of its latest stage. A microbatch
    enters only while fewer than P are under way, so that no device holds more than P of each of its stages. Units
    stand for costs, so the order does not depend on the instance's.
    """
    devices, stages, microbatches = problem.n_devices, layout.stages, problem.n_microbatches
    at_hand: list[dict[Op, int]] = [{} for _ in range(devices)]  # and from when on, units
    orders: list[list[Op]] = [[] for _ in range(devices)]
    free = [0] * devices
    entrance = layout.placement[0]
    for microbatch in range(min(devices, microbatches)):
        at_hand[entrance][Op(F, 0, microbatch)] = 0
    entered = len(at_hand[entrance])
    for _ in range(2 * stages * microbatches):
        # The earliest start over all devices: what arrives later cannot start before it.
        start, device = min((max(free[one], min(ops.values())), one) for one, ops in enumerate(at_hand) if ops)
        op = min((op for op, ready in at_hand[device].items() if ready <= start), key=_priority)
        del at_hand[device][op]
        free[device] = start + UNITS[op.kind]
        orders[device] += [op] if op.kind == F else backward_ops(problem, op.stage, op.microbatch)
        following = _following(op, stages)
        if following is not None:
            at_hand[layout.placement[following.stage]][following] = free[device]
        elif entered < microbatches:
            at_hand[entrance][Op(F, 0, entered)] = free[device]
            entered += 1
    return orders


def _priority(op: Op) -> tuple[int, int, int]:
    return (0, op.microbatch, -op.stage) if op.kind == B else (1, -op.stage, op.microbatch)


def _following(op: Op, stages: int) -> Op | None:
    """Return the op that waits for this one on the microbatch's way down the stages and back."""
    if op.kind == F:
        return Op(F, op.stage + 1, op.microbatch) if op.stage + 1 < stages else Op(B, op.stage, op.microbatch)
    return Op(B, op.stage - 1, op.microbatch) if op.stage else None


HANAYO = Heuristic(
    "hanayo",
    "Liu et al., Hanayo: Harnessing Wave-like Pipeline Parallelism, SC 2023",
    _placements,
    hanayo,
    fused=True,
    needs="2, 4, 6 or 8 stages on every device in wave order (1 to 4 waves)",
)
