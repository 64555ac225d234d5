"""OctoPipe's dispatch rule on a given layout (arXiv 2509.23722; released as SimPipe, github guojihu-hana/SimPipe)."""

from __future__ import annotations

from octocp.heuristics.base import Heuristic, NotApplicableError, describe_excess
from octocp.heuristics.dispatch import Rule, Tables, admitted_orders, chunked_placements, dispatch
from octocp.problem import Problem
from octocp.schedule import Layout, Orders, Schedule
from octocp.timing import time_orders

SOURCE = "OctoPipe, arXiv 2509.23722; SimPipe"
OCTOPIPE_RULE = Rule(alternate=True, defer=True)
"""B after an F, F after a B, W last; F by (microbatch, stage), B by (stage from the last on, microbatch); deferring."""


def octopipe_dispatch(problem: Problem, layout: Layout, *, admission: bool) -> Schedule:
    """Return the schedule that OctoPipe's dispatch rule makes of a layout.

    The best over uniform and balanced partitions with 1 to 4 stages per device is
    ``best_attempt(list(attempts(OCTOPIPE_DISPATCH, problem)))`` (`octocp.heuristics.base`); the best over the
    layouts of the tuner's own beam is ``OCTOPIPE.run(problem)`` (`octocp.heuristics.octopipe.tuner`).

    Parameters
    ----------
    admission : bool
        Hold F back so that memory limits are kept, without deadlock (`octocp.heuristics.dispatch`). Without it
        the rule is as published, blind to memory: ask the schedule's `memory_excess`.

    Raises
    ------
    NotApplicableError
        The layout breaks a stage rule, or, with admission, a device has no room for one microbatch.
    """
    broken = layout.violation(problem)
    if broken is not None:
        raise NotApplicableError(broken)
    tables = Tables(problem, layout, admission=admission)
    short = tables.shortage() if tables.admission else None
    if short is not None:
        raise NotApplicableError(f"with one microbatch at a time, {describe_excess(problem, *short)}")
    made = dispatch(tables, OCTOPIPE_RULE)
    assert made is not None
    return time_orders(problem, layout, made.orders)


def octopipe_orders(problem: Problem, layout: Layout) -> Orders:
    """Return the orders of OctoPipe's dispatch rule, within the memory limits where one microbatch fits."""
    return admitted_orders(problem, layout, OCTOPIPE_RULE)


OCTOPIPE_DISPATCH = Heuristic(
    "octopipe-dispatch",
    SOURCE,
    chunked_placements,
    octopipe_orders,
    fused=False,
    needs="nothing: 1 to 4 stages per device are tried where the instance leaves them open",
)
