"""Looped breadth-first: all microbatches through one chunk, then through the next (Lamy-Poirier, MLSys 2023)."""

from __future__ import annotations

from octocp.heuristics.base import Heuristic
from octocp.heuristics.gpipe import gpipe
from octocp.heuristics.interleaved import cyclic_placements
from octocp.problem import Problem
from octocp.schedule import Layout, Orders


def looped_breadth_first(problem: Problem, layout: Layout) -> Orders:
    """Run every forward chunk by chunk, then every backward from the last chunk to the first.

    On each device that is GPipe's order of several stages; cyclic placement is what makes chunks overlap.
    With M >= P the bubble is GPipe's over the number of chunks, and every microbatch is held.
    """
    return gpipe(problem, layout)


LOOPED_BREADTH_FIRST = Heuristic(
    "looped-bfs",
    "Lamy-Poirier, Breadth-First Pipeline Parallelism, MLSys 2023, 4.1",
    cyclic_placements,
    looped_breadth_first,
    fused=True,
    needs="2 to 8 stages on every device in cyclic order",
)
