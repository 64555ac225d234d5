"""Lower bounds that need no solver, each proven beside its code; all valid for every plan of the instance."""

from octocp.bounds.base import Bound
from octocp.bounds.registry import BOUNDS, all_bounds, best_bound

__all__ = ["BOUNDS", "Bound", "all_bounds", "best_bound"]
