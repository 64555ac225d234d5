"""A schedule from a file as a plan: timed, checked, with a bound."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import octocp
from octocp.bounds import best_bound
from octocp.costs import build_problem
from octocp.decode import checked
from octocp.errors import InputError
from octocp.heuristics.base import describe_excess
from octocp.importers.read import read_schedule
from octocp.schema import Instance, Plan, SolveInfo

IMPORTED = "imported"


def read_as_plan(
    instance: Instance, path: str | Path, *, partition: Sequence[int] | None = None
) -> tuple[Plan, tuple[str, ...]]:
    """Read a schedule as `read_schedule` does; return it as a checked plan, with what was assumed.

    Raises
    ------
    InputError
        The file is missing or wrong, does not fit the instance, or needs more memory than there is.
    """
    problem = build_problem(instance)
    read = read_schedule(problem, path, instance=instance, partition=partition)
    excess = read.schedule.memory_excess()
    if excess is not None:
        right = "octocp compare INSTANCE --add FILE times it all the same"
        raise InputError(f"memory: {describe_excess(problem, *excess[:2])}", file=str(path), right=right)
    bound = best_bound(problem)
    solve = SolveInfo(
        octocp=octocp.__version__,
        bound_name=bound.name,
        bound_scope="whole instance",
        found_by=f"imported from {Path(path).name}",
    )
    return checked(read.schedule, instance, method=IMPORTED, lower_bound=bound.value, solve=solve), read.notes
