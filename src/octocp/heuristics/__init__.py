"""Schedules that people use: partition rules and per-device orders, one file each.

Out of scope are bidirectional schedules that hold every stage twice, on two devices (Chimera, DualPipe): in an
instance a stage has one device. DualPipeV, DualPipe cut in half, is here.
"""

from octocp.heuristics.base import Attempt, Heuristic, NotApplicableError, attempts, best_attempt
from octocp.heuristics.dispatch import LIST_DISPATCH
from octocp.heuristics.dualpipe_v import DUALPIPE_V
from octocp.heuristics.eager_one_f_one_b import EAGER_ONE_F_ONE_B
from octocp.heuristics.gpipe import GPIPE
from octocp.heuristics.hanayo import HANAYO
from octocp.heuristics.interleaved import INTERLEAVED, INTERLEAVED_GROUPED
from octocp.heuristics.looped_breadth_first import LOOPED_BREADTH_FIRST
from octocp.heuristics.octopipe import OCTOPIPE, OCTOPIPE_DISPATCH
from octocp.heuristics.one_f_one_b import ONE_F_ONE_B
from octocp.heuristics.serial import SERIAL
from octocp.heuristics.v_schedules import V_HALF, V_MIN, V_ZB
from octocp.heuristics.zb_auto import ZB_1P, ZB_2P, ZB_AUTO
from octocp.heuristics.zb_h1 import ZB_H1
from octocp.heuristics.zb_h2 import ZB_H2

ALL_HEURISTICS: tuple[Heuristic, ...] = (
    GPIPE,
    ONE_F_ONE_B,
    EAGER_ONE_F_ONE_B,
    INTERLEAVED,
    INTERLEAVED_GROUPED,
    LOOPED_BREADTH_FIRST,
    HANAYO,
    ZB_H1,
    ZB_H2,
    ZB_AUTO,
    ZB_1P,
    ZB_2P,
    V_MIN,
    V_HALF,
    V_ZB,
    DUALPIPE_V,
    LIST_DISPATCH,
    OCTOPIPE_DISPATCH,
)
"""What `octocp compare` shows; docs/schedules.md describes each."""

HEURISTICS: tuple[Heuristic, ...] = tuple(heuristic for heuristic in ALL_HEURISTICS if heuristic.quick)
"""What `octocp solve` runs before it searches."""

__all__ = [
    "ALL_HEURISTICS",
    "HEURISTICS",
    "OCTOPIPE",
    "SERIAL",
    "Attempt",
    "Heuristic",
    "NotApplicableError",
    "attempts",
    "best_attempt",
]
