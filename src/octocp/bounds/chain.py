"""The bound of one microbatch on its way through all layers and back."""

from __future__ import annotations

from octocp.bounds.base import Bound, entry_delay, tail
from octocp.problem import B, F, Problem


def chain(problem: Problem) -> Bound:
    """One microbatch's forwards, backwards and the least transfers, then the first stage's W.

    Proof: the ops F(0), ..., F(S-1), B(S-1), ..., B(0), W(0) of a microbatch wait for each other. Every device
    holds a stage, so the chain of stages changes device at least P - 1 times, at distinct boundaries, each
    crossed in both directions. All of it lies in the window of stage 0's device, so it holds for the span.
    """
    bounds = problem.fixed_bounds
    begins = bounds[1:-1] if bounds else [begin for begin, _ in problem.units[1:]]
    crossings = sorted(entry_delay(problem, boundary) for boundary in begins)[: problem.n_devices - 1]
    least = problem.least_ticks(F, 0, problem.n_layers) + problem.least_ticks(B, 0, problem.n_layers)
    if bounds and problem.uniform_microbatches and problem.uniform_devices:
        pieces = list(zip(bounds, bounds[1:], strict=False))
        least = sum(problem.duration(kind, *piece) for kind in (F, B) for piece in pieces)
    return Bound("one microbatch", least + 2 * sum(crossings) + tail(problem, 0), "its chain of forwards and backwards")
