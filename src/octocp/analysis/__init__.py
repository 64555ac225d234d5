"""Why a plan takes as long as it does, and what a change by hand makes of it."""

from octocp.analysis.moves import IllegalMoveError
from octocp.analysis.plans import Explanation, Trial, explain, try_move

__all__ = ["Explanation", "IllegalMoveError", "Trial", "explain", "try_move"]
