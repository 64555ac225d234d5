"""Interleaved 1F1B in Megatron's exact order (Narayanan et al., SC 2021, 2.2; Megatron-Core's schedule table)."""

from __future__ import annotations

from octocp.heuristics.base import Heuristic, NotApplicableError, chunked, stages_allowed
from octocp.heuristics.serial import backward_ops
from octocp.problem import F, Problem
from octocp.schedule import Layout, Op, Orders
from octocp.timing import time_orders

MOST_CHUNKS = 8
# Group sizes to try, and ops to time over all of them.
MOST_GROUPS = 8
MOST_TIMED_OPS = 200_000


def cyclic_placements(problem: Problem) -> list[tuple[int, ...]]:
    """Return every cyclic placement with the same number of stages, 2 to `MOST_CHUNKS`, on every device."""
    found = []
    for chunks in range(2, MOST_CHUNKS + 1):
        try:
            found.append(chunked(problem, "interleaved", chunks))
        except NotApplicableError:
            if problem.n_devices == 1:
                raise
    if not found:
        raise NotApplicableError(
            "needs the same number of stages, at least 2, on every device, in cyclic order; the instance allows "
            f"{stages_allowed(problem)}"
        )
    return found


def _placements(problem: Problem) -> list[tuple[int, ...]]:
    devices, microbatches = problem.n_devices, problem.n_microbatches
    if microbatches % devices:
        raise NotApplicableError(
            f"needs microbatches divisible by devices; {microbatches} is not a multiple of {devices}"
        )
    return cyclic_placements(problem)


def legal_groups(devices: int, microbatches: int) -> list[int]:
    """Return Megatron's legal group sizes: at least P, at most M, and a remainder of M is 0 or at least P.

    A smaller remainder would run dry on the way through the devices before it comes back for its next chunk.
    """
    return [
        group
        for group in range(devices, microbatches + 1)
        if microbatches % group == 0 or microbatches % group >= devices
    ]


def _grouped_placements(problem: Problem) -> list[tuple[int, ...]]:
    devices, microbatches = problem.n_devices, problem.n_microbatches
    if len(legal_groups(devices, microbatches)) < 2:
        raise NotApplicableError(
            f"needs a group of more microbatches than devices; {microbatches} microbatches on {devices} devices "
            "leave no choice"
        )
    return cyclic_placements(problem)


def interleaved(problem: Problem, layout: Layout, group: int | None = None) -> Orders:
    """Order by chunk-major groups of microbatches.

    Rank r warms up with min(MV, 2(P - r - 1) + (V - 1) group) forwards, then alternates. Without `group` it is
    P, and Megatron's condition on the remainder is not asked for: `_placements` has checked it.

    Parameters
    ----------
    group : int, optional
        Megatron's microbatch_group_size_per_vp_stage.

    Raises
    ------
    NotApplicableError
        The group size is not legal.
    """
    if group is not None and group not in legal_groups(problem.n_devices, problem.n_microbatches):
        raise NotApplicableError(
            f"needs a group of at least {problem.n_devices} and at most {problem.n_microbatches} microbatches, and "
            f"none or at least {problem.n_devices} left over; {problem.n_microbatches} in groups of {group} are not so"
        )
    devices, microbatches = problem.n_devices, problem.n_microbatches
    group = group or devices
    chunks = layout.stages // devices
    forward, backward = [], []
    for first in range(0, microbatches, group):
        members = range(first, min(first + group, microbatches))
        forward += [(chunk, microbatch) for chunk in range(chunks) for microbatch in members]
        backward += [(chunk, microbatch) for chunk in reversed(range(chunks)) for microbatch in members]
    orders = []
    for rank in range(devices):
        total = len(forward)
        warm_up = min(total, 2 * (devices - rank - 1) + (chunks - 1) * group)
        ops = [Op(F, chunk * devices + rank, microbatch) for chunk, microbatch in forward[:warm_up]]
        for position, (chunk, microbatch) in enumerate(backward):
            if position + warm_up < total:
                ahead, its_microbatch = forward[position + warm_up]
                ops.append(Op(F, ahead * devices + rank, its_microbatch))
            ops += backward_ops(problem, chunk * devices + rank, microbatch)
        orders.append(ops)
    return orders


def interleaved_grouped(problem: Problem, layout: Layout) -> Orders:
    """Return the order of the best legal group size above P: larger groups hide link delays and hold more.

    Multiples of P come first, and of many sizes only `MOST_GROUPS` are tried.
    """
    devices = problem.n_devices
    groups = [group for group in legal_groups(devices, problem.n_microbatches) if group > devices]
    groups.sort(key=lambda group: (group % devices != 0, group))
    ops = len(problem.kinds) * layout.stages * problem.n_microbatches
    best: tuple[tuple[bool, int], Orders] | None = None
    for group in groups[: max(1, min(MOST_GROUPS, MOST_TIMED_OPS // ops))]:
        orders = interleaved(problem, layout, group)
        timed = time_orders(problem, layout, orders, fused=True)
        rank = (timed.memory_excess() is not None, timed.value)
        if best is None or rank < best[0]:
            best = rank, orders
    assert best is not None
    return best[1]


INTERLEAVED = Heuristic(
    "interleaved-1f1b",
    "Narayanan et al., SC 2021, 2.2; Megatron-Core's schedule table",
    _placements,
    interleaved,
    fused=True,
    needs="2 to 8 stages on every device in cyclic order, M a multiple of P",
    quick=True,
)
INTERLEAVED_GROUPED = Heuristic(
    "interleaved-1f1b-grouped",
    "Megatron-Core, microbatch_group_size_per_vp_stage",
    _grouped_placements,
    interleaved_grouped,
    fused=True,
    needs="2 to 8 stages on every device in cyclic order, a group of more than P with M mod group 0 or at least P",
)
