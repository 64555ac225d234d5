"""1F1B with flush: a short warm-up, then one forward and one backward in turn (PipeDream-Flush, ICML 2021)."""

from __future__ import annotations

from octocp.heuristics.base import Heuristic, one_stage_per_device
from octocp.heuristics.serial import backward_ops
from octocp.problem import F, Problem
from octocp.schedule import Layout, Op, Orders


def one_f_one_b(problem: Problem, layout: Layout) -> Orders:
    """Stage s warms up with S - 1 - s forwards; each backward carries its W."""
    orders: list[list[Op]] = [[] for _ in range(problem.n_devices)]
    microbatches = problem.n_microbatches
    for stage, device in enumerate(layout.placement):
        warm_up = min(microbatches, layout.stages - 1 - stage)
        ops = [Op(F, stage, microbatch) for microbatch in range(warm_up)]
        for microbatch in range(microbatches):
            if microbatch + warm_up < microbatches:
                ops.append(Op(F, stage, microbatch + warm_up))
            ops += backward_ops(problem, stage, microbatch)
        orders[device] = ops
    return orders


ONE_F_ONE_B = Heuristic(
    "1f1b",
    "Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, ICML 2021",
    one_stage_per_device,
    one_f_one_b,
    fused=True,
    quick=True,
)
