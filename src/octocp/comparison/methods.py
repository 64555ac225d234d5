"""Which known schedules are compared, and how much those that simulate may try."""

from __future__ import annotations

from dataclasses import replace

from octocp.heuristics import ALL_HEURISTICS, Heuristic
from octocp.heuristics.v_schedules import V_HALF, V_HALF_BLOCK, v_schedule
from octocp.problem import Problem
from octocp.schedule import Layout, Orders

# Ops that v-half simulates per layout; all of its tries would take as long as all other known schedules together.
SIMULATED_OPS = 40_000


def _quick_v_half(problem: Problem, layout: Layout) -> Orders:
    """Run `v-half` with fewer sets of gaps at its turns where an instance is large; the shortest come first."""
    ops = len(problem.kinds) * layout.stages * problem.n_microbatches * len(V_HALF_BLOCK.choices)
    turns = max(1, min(V_HALF_BLOCK.turns, SIMULATED_OPS // ops))
    return v_schedule(problem, layout, replace(V_HALF_BLOCK, turns=turns), problem.n_devices + 2)


KNOWN: tuple[Heuristic, ...] = tuple(
    replace(heuristic, orders=_quick_v_half) if heuristic is V_HALF else heuristic for heuristic in ALL_HEURISTICS
)
"""The known schedules, in the order of their rows."""
