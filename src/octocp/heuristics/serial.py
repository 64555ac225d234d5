"""One microbatch after the other: the slowest legal schedule, and the one that needs least memory."""

from __future__ import annotations

from octocp.heuristics.base import Heuristic, one_stage_per_device
from octocp.problem import B, F, Problem, W
from octocp.schedule import Layout, Op, Orders


def backward_ops(problem: Problem, stage: int, microbatch: int) -> list[Op]:
    """Return the fused backward of a stage: B, with its W right after it where the instance splits them."""
    ops = [Op(B, stage, microbatch)]
    return [*ops, Op(W, stage, microbatch)] if problem.split else ops


def serial(problem: Problem, layout: Layout) -> Orders:
    """Finish each microbatch before the next begins.

    No schedule of this layout needs less memory while activations shrink from B to W: when the last
    stage's F ends, every plan holds the microbatch's activations of all stages.
    """
    orders = []
    for device in range(problem.n_devices):
        stages, ops = layout.stages_on(device), []
        for microbatch in range(problem.n_microbatches):
            ops += [Op(F, stage, microbatch) for stage in stages]
            for stage in reversed(stages):
                ops += backward_ops(problem, stage, microbatch)
        orders.append(ops)
    return orders


SERIAL = Heuristic(
    "serial",
    "one microbatch at a time: the least memory",
    one_stage_per_device,
    serial,
    fused=False,
    needs="one stage per device",
    quick=True,
)
