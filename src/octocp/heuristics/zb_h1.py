"""ZB-H1: 1F1B with the weight gradients moved into the drain (Qi et al., Zero Bubble, ICLR 2024, 2.2)."""

from __future__ import annotations

from octocp.heuristics.base import Heuristic, one_stage_per_device, require_split
from octocp.problem import B, F, Problem, W
from octocp.schedule import Layout, Op, Orders


def split_placements(problem: Problem) -> list[tuple[int, ...]]:
    """Return the placement with one stage per device of an instance with a split backward."""
    require_split(problem)
    return one_stage_per_device(problem)


def zb_h1(problem: Problem, layout: Layout) -> Orders:
    """Run F and B as 1F1B; stage s holds back its W by s microbatches and ends with the ones held back.

    So every stage keeps at most S microbatches between F and W: the peak of 1F1B's first stage.
    """
    orders: list[list[Op]] = [[] for _ in range(problem.n_devices)]
    microbatches = problem.n_microbatches
    for stage, device in enumerate(layout.placement):
        warm_up = min(microbatches, layout.stages - 1 - stage)
        ops = [Op(F, stage, microbatch) for microbatch in range(warm_up)]
        for microbatch in range(microbatches):
            if microbatch + warm_up < microbatches:
                ops.append(Op(F, stage, microbatch + warm_up))
            ops.append(Op(B, stage, microbatch))
            if microbatch >= stage:
                ops.append(Op(W, stage, microbatch - stage))
        ops += [Op(W, stage, microbatch) for microbatch in range(max(0, microbatches - stage), microbatches)]
        orders[device] = ops
    return orders


ZB_H1 = Heuristic(
    "zb-h1",
    "Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, 2.2",
    split_placements,
    zb_h1,
    fused=False,
    needs="split backward, one stage per device",
    quick=True,
)
