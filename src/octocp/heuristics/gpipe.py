"""GPipe: all forwards, then all backwards (Huang et al., NeurIPS 2019)."""

from __future__ import annotations

from octocp.heuristics.base import Heuristic, NotApplicableError, one_stage_per_device
from octocp.heuristics.serial import backward_ops
from octocp.problem import F, Problem
from octocp.schedule import Layout, Op, Orders


def _placements(problem: Problem) -> list[tuple[int, ...]]:
    if problem.min_stages == problem.n_devices:
        return one_stage_per_device(problem)
    dictated = problem.placement_for(problem.min_stages)
    if dictated is None:
        raise NotApplicableError(f"the instance asks for {problem.min_stages} stages and leaves their devices open")
    return [dictated]


def gpipe(problem: Problem, layout: Layout) -> Orders:
    """Run every forward, then every backward; several stages of a device one after the other."""
    orders = []
    for device in range(problem.n_devices):
        stages = layout.stages_on(device)
        ops = [Op(F, stage, m) for stage in stages for m in range(problem.n_microbatches)]
        for stage in reversed(stages):
            for microbatch in range(problem.n_microbatches):
                ops += backward_ops(problem, stage, microbatch)
        orders.append(ops)
    return orders


GPIPE = Heuristic(
    "gpipe",
    "Huang et al., GPipe, NeurIPS 2019",
    _placements,
    gpipe,
    fused=True,
    needs="one stage per device, or a placement that the instance gives",
    quick=True,
)
