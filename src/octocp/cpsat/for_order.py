"""The best partition for a given order: an exact piece of the joint model, small because all orders are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from ortools.sat.python import cp_model

from octocp.cpsat.build import Build
from octocp.cpsat.joint import build_joint
from octocp.cpsat.run import new_solver, solve_model
from octocp.problem import B, Problem, W
from octocp.schedule import Layout, Schedule
from octocp.timing import DeadlockError, time_orders


def with_order(problem: Problem, schedule: Schedule, *, fused: bool = False, known: bool = True) -> Build:
    """Build the joint model with the placement and every device's order of a schedule; the cuts are free.

    Each device runs its ops in the schedule's order, so a chain of precedences takes the place of the disjunction:
    nothing is left to decide but the cuts, which the durations are linear in.

    Parameters
    ----------
    fused : bool
        On a split instance, hand the gradient on when W ends, as schedules with a fused backward do.
    known : bool
        Whether the schedule keeps the memory limits, so that its value bounds the objective and it can be the hint.

    Returns
    -------
    Build
        Its bounds hold for this placement and these orders only.
    """
    stages, placement = schedule.layout.stages, schedule.layout.placement
    held = replace(problem, family="fixed", placement=placement, min_stages=stages, max_stages=stages)
    build = build_joint(
        held,
        incumbent=Schedule(held, schedule.layout, schedule.start) if known else None,
        stages=(stages, stages),
        # The order may not be first in, first out; and devices keep their numbers.
        without={"no-overlap", "fifo", "device-symmetry"},
    )
    for order in schedule.orders():
        for one, other in pairwise(order):
            build.model.add(
                build.start[other.kind][other.stage][other.microbatch] >= build.end[one.kind][one.stage][one.microbatch]
            )
    if fused and problem.split:
        for stage in range(1, stages):
            for m in build.microbatches:
                build.model.add(build.start[B][stage - 1][m] >= build.end[W][stage][m] + build.transfer[stage])
    return build


def best_partition(
    problem: Problem,
    schedule: Schedule,
    *,
    seconds: float,
    workers: int = 1,
    seed: int = 0,
    fused: bool = False,
    stopped: Callable[[], bool] | None = None,
) -> Schedule:
    """Return a schedule with the placement and the orders of a given one and the best cuts for them.

    "Fix an order and optimise the partition": so a known schedule is not made to look bad by a naive split.

    Parameters
    ----------
    schedule : Schedule
        Where it passes a memory limit, cuts that keep it are looked for.
    seconds : float
        Time limit; the best so far is returned when it is over.
    fused : bool
        On a split instance, hand the gradient on when W ends, as schedules with a fused backward do.

    Returns
    -------
    Schedule
        Never worse than the given one; the given one where the partition leaves no choice, microbatches differ,
        or nothing better was found.
    """
    if problem.partition is not None or not problem.uniform_microbatches:
        return schedule
    try:
        time_orders(problem, schedule.layout, schedule.orders(), fused=fused)
    except DeadlockError:  # ops of length zero coincide: their starts no longer tell their order
        return schedule
    fits = schedule.memory_excess() is None
    build = with_order(problem, schedule, fused=fused, known=fits)
    solver = new_solver(seconds=seconds, workers=workers, seed=seed)
    if solve_model(build.model, solver, stopped=stopped) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return schedule
    cuts = [cut if isinstance(cut, int) else solver.value(cut) for cut in build.cut[: build.slots]]
    layout = Layout((*cuts, problem.n_layers), schedule.layout.placement)
    # Memory on a device depends on its order alone, so as early as possible is as good as what was found.
    timed = time_orders(problem, layout, schedule.orders(), fused=fused)
    return schedule if fits and timed.value >= schedule.value else timed
