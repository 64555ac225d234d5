"""Check a plan against the instance that it carries, from nothing but the two."""

from __future__ import annotations

from octocp.checker.exact import ExactCosts, partition_fits
from octocp.checker.memory import check_memory, check_peak_count
from octocp.checker.structure import (
    check_header,
    check_ops,
    check_partition,
    check_placement,
    check_recompute,
    index_ops,
    op_kinds,
)
from octocp.checker.timeline import check_durations, check_overlap, check_precedence, check_values
from octocp.checker.violations import Violations
from octocp.schema import Plan


def check_plan(plan: Plan) -> list[str]:
    """Check a plan, recomputing everything from its instance in exact arithmetic.

    Shares no code with the solver, so that a mistake in one cannot hide in the other. Accepts any
    plan that the schema accepts, however broken.

    Parameters
    ----------
    plan : Plan
        The plan, with its resolved instance.

    Returns
    -------
    list of str
        One line per violation, as ``family: op, device, amount``; within a family the worst first
        and the rest counted. Empty for a valid plan.
    """
    found = Violations()
    check_header(plan, found)
    check_partition(plan, found)
    check_placement(plan, found)
    check_recompute(plan, found)
    index = index_ops(plan)
    check_ops(plan, index, found)
    # Without a partition that fits there is no telling what a stage costs; order is still checked.
    costs = ExactCosts(plan) if partition_fits(plan) else None
    check_durations(plan, index, costs, found)
    check_precedence(plan, index, costs, found)
    check_overlap(plan, found)
    check_peak_count(plan, found)
    if costs is not None:
        expected = len(plan.partition) * len(plan.instance.lengths()) * len(op_kinds(plan))
        check_memory(plan, index, costs, len(index) == expected, found)
    check_values(plan, found)
    return found.lines()
