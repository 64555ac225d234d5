"""Build the joint model, and read schedules back out of it."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from octocp.bounds import best_bound
from octocp.cpsat.build import Build, Linear
from octocp.cpsat.families import FAMILIES
from octocp.problem import Problem
from octocp.schedule import Ints, Layout, Schedule
from octocp.timing import DeadlockError, time_orders


def build_joint(
    problem: Problem,
    *,
    incumbent: Schedule | None = None,
    stages: tuple[int, int] | None = None,
    lower: int | None = None,
    upper: int | None = None,
    without: Collection[str] = (),
) -> Build:
    """Build the joint model of partition, placement and ordering.

    Parameters
    ----------
    incumbent : Schedule, optional
        A known plan: its value bounds the objective, and it becomes a complete hint.
    stages : (int, int), optional
        Restrict the number of stages; the bound then holds for that restriction only.
    lower : int, optional
        A proven bound in ticks; by default the best analytic one.
    upper : int, optional
        The largest value wanted, ticks; by default the incumbent's, or what every plan keeps.
    without : collection of str
        Names of families to leave out (`octocp.cpsat.families.FAMILIES`); a ValueError for unknown ones and
        for those that define the variables.

    Returns
    -------
    Build
        The model with its variables.
    """
    unknown = set(without) - {family.name for family in FAMILIES}
    if unknown:
        raise ValueError(f"unknown families: {', '.join(sorted(unknown))}")
    needed = sorted({family.name for family in FAMILIES if family.role == "definition"} & set(without))
    if needed:
        raise ValueError(f"cannot be left out, others are built on them: {', '.join(needed)}")
    least, most = stages or (problem.min_stages, problem.max_stages)
    if upper is None:
        upper = incumbent.value if incumbent is not None else problem.serial_ticks
    bound = best_bound(problem).value if lower is None else lower
    build = Build(
        problem,
        slots=most,
        least_stages=least,
        horizon=_horizon(problem, upper),
        lower=0 if "analytic" in without and lower is None else min(bound, upper),
        upper=upper,
    )
    if "transfers" in without:
        build.transfer = [0] * build.slots
    for family in FAMILIES:
        if family.name not in without:
            family.add(build)
    if incumbent is not None:
        build.hint(_as_modelled(problem, incumbent, without))
    return build


def _horizon(problem: Problem, upper: int) -> int:
    """Return a time by which every op of some plan at least as good as `upper` ends.

    Makespan: `upper` itself. Span: every op of a microbatch runs after its F of stage 0, and every F and
    B before its B of stage 0 ends, so with the first start at 0 all F and B lie in the window of stage
    0's device, which is at most `upper` long; a device's first op is an F, so its last one ends by 2 x `upper`.
    """
    return 2 * upper if problem.objective == "span" and problem.split else upper


def _as_modelled(problem: Problem, schedule: Schedule, without: Collection[str]) -> Schedule:
    """Relabel a schedule, and shift its first start to 0, the way the symmetry families want it."""
    schedule = Schedule(problem, schedule.layout, schedule.start - schedule.start.min())
    if "fifo" not in without and problem.uniform_microbatches:
        schedule = schedule.relabelled_fifo()
    if "device-symmetry" not in without:
        schedule = schedule.on_devices(schedule.layout.canonical(problem))
    return schedule


def decode(build: Build, value: Callable[[Linear], int]) -> Schedule:
    """Read a schedule from a solution: active slots become stages; then start everything as early as its order allows.

    Parameters
    ----------
    value : callable
        Expression -> its value in the solution.
    """
    problem = build.problem

    def read(expression: Linear) -> int:
        return expression if isinstance(expression, int) else value(expression)

    stages = sum(read(active) for active in build.active)
    bounds = (*tuple(read(build.cut[stage]) for stage in range(stages)), problem.n_layers)
    placement = tuple(
        next(device for device in build.devices if read(build.on[stage][device])) for stage in range(stages)
    )
    start: Ints = np.array(
        [
            [[read(build.start[kind][stage][m]) for m in build.microbatches] for stage in range(stages)]
            for kind in problem.kinds
        ],
        dtype=np.int64,
    )
    return tightened(Schedule(problem, Layout(bounds, placement), start))


def tightened(schedule: Schedule) -> Schedule:
    """Return the schedule with every op as early as its order allows, where that is no worse."""
    try:
        timed = time_orders(schedule.problem, schedule.layout, schedule.orders())
    except DeadlockError:  # ops of length zero at one moment have no unique order
        return schedule
    better = timed.value <= schedule.value and timed.memory_excess() is None
    return timed if better else schedule
