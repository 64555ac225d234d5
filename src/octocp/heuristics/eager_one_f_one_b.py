"""Eager 1F1B: 1F1B with a longer warm-up, which hides link delays (Zhuang et al., MLSys 2023)."""

from __future__ import annotations

from octocp.heuristics.base import Heuristic, one_stage_per_device
from octocp.heuristics.serial import backward_ops
from octocp.problem import F, Problem
from octocp.schedule import Layout, Op, Orders


def eager_one_f_one_b(problem: Problem, layout: Layout) -> Orders:
    """Run min(M, 2(S - s) - 1) forwards on stage s before its first backward, then one backward and one forward.

    One more microbatch between two neighbours than in 1F1B: a stage works on one while the other one travels. Stage s
    holds up to 2(S - s) - 1 microbatches, against 1F1B's S - s.
    """
    orders: list[list[Op]] = [[] for _ in range(problem.n_devices)]
    microbatches = problem.n_microbatches
    for stage, device in enumerate(layout.placement):
        warm_up = min(microbatches, 2 * (layout.stages - stage) - 1)
        ops = [Op(F, stage, microbatch) for microbatch in range(warm_up)]
        for microbatch in range(microbatches):
            ops += backward_ops(problem, stage, microbatch)
            if microbatch + warm_up < microbatches:
                ops.append(Op(F, stage, microbatch + warm_up))
        orders[device] = ops
    return orders


EAGER_ONE_F_ONE_B = Heuristic(
    "eager-1f1b",
    "Zhuang et al., On Optimizing the Communication of Model Parallelism, MLSys 2023, eager-1F1B",
    one_stage_per_device,
    eager_one_f_one_b,
    fused=True,
    needs="one stage per device",
)
