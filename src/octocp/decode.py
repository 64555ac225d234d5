"""The decoder: a schedule in integers to the plan that is written, checked and shown."""

from __future__ import annotations

from octocp.checker import check_plan
from octocp.errors import PlanRejectedError
from octocp.problem import KIND_NAMES
from octocp.schedule import Schedule
from octocp.schema import Instance, Plan, PlanOp, SolveInfo


def to_plan(
    schedule: Schedule, instance: Instance, *, method: str, lower_bound: int, solve: SolveInfo | None = None
) -> Plan:
    """Write a schedule out as a plan.

    Parameters
    ----------
    lower_bound : int
        Ticks, valid for every plan of the instance.

    Returns
    -------
    Plan
        With the resolved instance inside; `status` is "optimal" only where the objective equals the bound.
    """
    problem, layout = schedule.problem, schedule.layout
    unit = problem.memory_unit_gb
    ends = schedule.end
    return Plan(
        format="octocp.plan/1",
        instance=instance.resolved(),
        method=method,
        status="optimal" if schedule.value == lower_bound else "feasible",
        tick_us=float(instance.tick_us),
        partition=list(layout.partition),
        placement=list(layout.placement),
        recompute=[False] * layout.stages,
        objective=problem.objective,
        makespan=schedule.makespan,
        span=schedule.span,
        lower_bound=lower_bound,
        peak_memory_gb=[float(peak * unit) for peak in schedule.peak_memory()],
        ops=[
            PlanOp(
                kind=KIND_NAMES[op.kind],  # type: ignore[arg-type]
                stage=op.stage,
                microbatch=op.microbatch,
                device=device,
                start=int(schedule.start[op]),
                end=int(ends[op]),
            )
            for device, order in enumerate(schedule.orders())
            for op in order
        ],
        solve=solve or SolveInfo(),
    )


def checked(
    schedule: Schedule, instance: Instance, *, method: str, lower_bound: int, solve: SolveInfo | None = None
) -> Plan:
    """Decode a schedule and pass it through the independent checker.

    Raises
    ------
    PlanRejectedError
        The checker found a violation: a bug in OctoCP.
    """
    plan = to_plan(schedule, instance, method=method, lower_bound=lower_bound, solve=solve)
    violations = check_plan(plan)
    if violations:
        raise PlanRejectedError(
            f"the checker refused a plan by {method}: {violations[0]} ({len(violations)} in all); please report it"
        )
    return plan
