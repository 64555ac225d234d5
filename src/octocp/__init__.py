"""OctoCP: optimal pipeline-parallel training plans in one CP-SAT model.

Examples
--------
>>> import octocp
>>> instance = octocp.load_instance("tiny-two-devices")
>>> result = octocp.solve(instance, time_limit=10, workers=1, seed=0)
>>> result.status
'optimal'
>>> octocp.check(result.plan)
[]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "InfeasibleError",
    "InputError",
    "NoPlanError",
    "OctoCPError",
    "SolveResult",
    "check",
    "explain",
    "load_instance",
    "load_plan",
    "save_plan",
    "solve",
    "try_move",
]

if TYPE_CHECKING:
    from octocp.analysis import explain, try_move
    from octocp.api import SolveResult, check, load_instance, load_plan, save_plan, solve
    from octocp.errors import InfeasibleError, InputError, NoPlanError, OctoCPError


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``import octocp`` and ``octocp --help`` stay instant."""
    if name not in __all__:
        raise AttributeError(f"module 'octocp' has no attribute {name!r}")
    from importlib import import_module

    module = "octocp.errors" if name.endswith("Error") else "octocp.api"
    if name in ("explain", "try_move"):
        module = "octocp.analysis"
    return getattr(import_module(module), name)
