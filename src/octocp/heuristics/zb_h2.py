"""ZB-H2: twice 1F1B's memory for no bubble at F = B = W (Qi et al., Zero Bubble, ICLR 2024, 2.2)."""

from __future__ import annotations

from octocp.heuristics.base import Heuristic
from octocp.heuristics.zb_h1 import split_placements
from octocp.problem import B, F, Problem, W
from octocp.schedule import Layout, Op, Orders


def zb_h2(problem: Problem, layout: Layout) -> Orders:
    """Run F and B as eager 1F1B; stage s holds back its W by 2s microbatches and ends with the ones held back.

    The longer warm-up fills the wait for the first backward, the W held back fill the drain. Every stage keeps at most
    2S - 1 microbatches between F and W. The paper counts the span: consecutive steps overlap, which needs the
    optimizer's synchronisation to be put off. There, idle time is (P - 1)(F + B - 2W) for equal stages.
    """
    orders: list[list[Op]] = [[] for _ in range(problem.n_devices)]
    microbatches = problem.n_microbatches
    for stage, device in enumerate(layout.placement):
        warm_up = min(microbatches, 2 * (layout.stages - 1 - stage))
        ops = [Op(F, stage, microbatch) for microbatch in range(warm_up)]
        for microbatch in range(microbatches):
            if microbatch + warm_up < microbatches:
                ops.append(Op(F, stage, microbatch + warm_up))
            ops.append(Op(B, stage, microbatch))
            if microbatch >= 2 * stage:
                ops.append(Op(W, stage, microbatch - 2 * stage))
        ops += [Op(W, stage, microbatch) for microbatch in range(max(0, microbatches - 2 * stage), microbatches)]
        orders[device] = ops
    return orders


ZB_H2 = Heuristic(
    "zb-h2",
    "Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, 2.2",
    split_placements,
    zb_h2,
    fused=False,
    needs="split backward, one stage per device",
)
