"""Every bound, in one list."""

from __future__ import annotations

from collections.abc import Callable

from octocp.bounds.base import Bound
from octocp.bounds.chain import chain
from octocp.bounds.energy import energy
from octocp.bounds.in_flight import in_flight
from octocp.bounds.load import averaged_heads, head_load_tail, work
from octocp.bounds.together import indivisible, shared_device
from octocp.problem import Problem

BOUNDS: tuple[Callable[[Problem], Bound], ...] = (
    work,
    averaged_heads,
    head_load_tail,
    indivisible,
    shared_device,
    chain,
    in_flight,
)


def all_bounds(problem: Problem) -> list[Bound]:
    """Return every bound, best first; the energy bound takes the best of the others to size its windows."""
    found = [bound(problem) for bound in BOUNDS]
    best = max(bound.value for bound in found)
    return sorted([*found, energy(problem, best)], key=lambda bound: -bound.value)


def best_bound(problem: Problem) -> Bound:
    """Return the largest bound."""
    return all_bounds(problem)[0]
