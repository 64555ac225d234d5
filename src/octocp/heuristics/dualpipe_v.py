"""DualPipeV: DualPipe cut in half, two stages per device in V placement and one copy of the weights.

DualPipe (DeepSeek-V3 technical report, 2024, 3.2.1) runs microbatches from both ends over two copies of every
stage; folding the devices in the middle leaves one copy (Qi et al., DualPipe could be better without the dual, 2025).
"""

from __future__ import annotations

from octocp.heuristics.base import Heuristic, NotApplicableError
from octocp.heuristics.v_schedules import v_placements
from octocp.problem import B, F, Problem, W
from octocp.schedule import Layout, Op, Orders


def _placements(problem: Problem) -> list[tuple[int, ...]]:
    placements = v_placements(problem)
    devices, microbatches = problem.n_devices, problem.n_microbatches
    if microbatches < 2 * devices:
        raise NotApplicableError(
            f"needs at least twice as many microbatches as devices; {microbatches} are fewer than {2 * devices}"
        )
    return placements


class _Device:
    """The order of one device as it grows: the next microbatch of each kind and stage, and W held back."""

    def __init__(self, stages: list[int]) -> None:
        self.stages = stages
        self.ops: list[Op] = []
        self.following = {(kind, chunk): 0 for kind in (F, B) for chunk in (0, 1)}
        self.held_back: list[Op] = []

    def add(self, kind: int, chunk: int) -> None:
        microbatch = self.following[kind, chunk]
        self.following[kind, chunk] += 1
        self.ops.append(Op(kind, self.stages[chunk], microbatch))
        if kind == B:
            self.held_back.append(Op(W, self.stages[chunk], microbatch))

    def weight(self) -> None:
        self.ops.append(self.held_back.pop(0))

    def whole(self, chunk: int) -> None:
        """Run B and its W right after it."""
        self.add(B, chunk)
        self.ops.append(self.held_back.pop())


def dualpipe_v(problem: Problem, layout: Layout) -> Orders:
    """Order each device in eight steps; F and B that a runtime overlaps run one after the other here.

    Rank r, with k = P - r - 1, chunk 0 on the way down the V and 1 on the way up: 2k F0; r + 1 of F0 F1; k of B1 W1
    F1; M - 2P + r + 1 of F0 B1 F1 B0 with every W right after its B; k of B1 F1 B0; r + 1 of B1 B0, the second half
    without W; k of a W held back and B0; the rest of W.
    """
    devices, microbatches = problem.n_devices, problem.n_microbatches
    orders = []
    for rank in range(devices):
        ahead, device = devices - rank - 1, _Device(layout.stages_on(rank))
        for _ in range(2 * ahead):
            device.add(F, 0)
        for _ in range(rank + 1):
            device.add(F, 0)
            device.add(F, 1)
        for _ in range(ahead):
            device.whole(1)
            device.add(F, 1)
        for _ in range(microbatches - 2 * devices + rank + 1):
            device.add(F, 0)
            device.whole(1)
            device.add(F, 1)
            device.whole(0)
        for _ in range(ahead):
            device.whole(1)
            device.add(F, 1)
            device.whole(0)
        # Of these 2(r + 1) backwards, the last r + 1 leave their W for the drain.
        for position in range(2 * (rank + 1)):
            if position <= rank:
                device.whole(1 - position % 2)
            else:
                device.add(B, 1 - position % 2)
        for _ in range(ahead):
            device.weight()
            device.add(B, 0)
        while device.held_back:
            device.weight()
        orders.append(device.ops)
    return orders


DUALPIPE_V = Heuristic(
    "dualpipe-v",
    "DeepSeek-V3 technical report, 2024, 3.2.1, cut in half (Qi et al., 2025)",
    _placements,
    dualpipe_v,
    fused=False,
    needs="split backward, two stages per device in V, M at least 2P",
)
