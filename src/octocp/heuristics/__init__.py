"""Schedules that people use: partition rules and per-device orders, one file each."""

from octocp.heuristics.base import Attempt, Heuristic, NotApplicableError, attempts, best_attempt
from octocp.heuristics.gpipe import GPIPE
from octocp.heuristics.interleaved import INTERLEAVED
from octocp.heuristics.one_f_one_b import ONE_F_ONE_B
from octocp.heuristics.serial import SERIAL
from octocp.heuristics.zb_h1 import ZB_H1

HEURISTICS: tuple[Heuristic, ...] = (GPIPE, ONE_F_ONE_B, INTERLEAVED, ZB_H1)
"""What `octocp compare` shows."""

__all__ = ["HEURISTICS", "SERIAL", "Attempt", "Heuristic", "NotApplicableError", "attempts", "best_attempt"]
