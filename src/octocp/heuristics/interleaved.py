"""Interleaved 1F1B in Megatron's exact order (Narayanan et al., SC 2021, 2.2; Megatron-Core's schedule table)."""

from __future__ import annotations

from octocp.heuristics.base import Heuristic, NotApplicableError
from octocp.heuristics.serial import backward_ops
from octocp.problem import F, Problem
from octocp.schedule import Layout, Op, Orders

MOST_CHUNKS = 8


def _placements(problem: Problem) -> list[tuple[int, ...]]:
    devices, microbatches = problem.n_devices, problem.n_microbatches
    if microbatches % devices:
        raise NotApplicableError(
            f"needs microbatches divisible by devices; {microbatches} is not a multiple of {devices}"
        )
    if devices == 1:
        raise NotApplicableError("needs more than one device")
    found = []
    for chunks in range(2, min(problem.max_stages // devices, problem.max_per_device, MOST_CHUNKS) + 1):
        cyclic = tuple(stage % devices for stage in range(chunks * devices))
        if chunks * devices >= problem.min_stages and problem.placement_for(len(cyclic)) in (None, cyclic):
            found.append(cyclic)
    if not found:
        least, most = problem.min_stages, problem.max_stages
        stages = f"{least}" if least == most else f"{least} to {most}"
        raise NotApplicableError(
            f"needs the same number of stages, at least 2, on every device, in cyclic order; the instance allows "
            f"{stages} stages on {devices} devices with {problem.family} placement"
        )
    return found


def interleaved(problem: Problem, layout: Layout, group: int | None = None) -> Orders:
    """Order by chunk-major groups of `group` microbatches (default: the number of devices).

    Rank r warms up with min(MV, 2(P - r - 1) + (V - 1) group) forwards, then alternates.
    """
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


INTERLEAVED = Heuristic(
    "interleaved-1f1b", "Narayanan et al., SC 2021; Megatron-Core", _placements, interleaved, fused=True
)
