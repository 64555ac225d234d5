"""A plan explained, and a plan changed by hand: from `Plan` to `Plan`, through the integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import octocp
from octocp.analysis.critical import Run, Step, critical_path, runs_of, shares
from octocp.analysis.draft import Draft, draft_of, runs_fused
from octocp.analysis.idle import Idle, idle_causes
from octocp.analysis.moves import IllegalMoveError, Move, parse_all
from octocp.analysis.suggest import Advice, advise, layout_bound
from octocp.bounds import Bound, best_bound
from octocp.checker import check_plan
from octocp.costs import build_problem
from octocp.decode import to_plan
from octocp.errors import InputError, PlanRejectedError
from octocp.problem import KIND_NAMES, Problem
from octocp.schedule import Layout, Schedule
from octocp.schema import Instance, Plan, SolveInfo
from octocp.schema.files import as_instance, as_plan

BY_HAND = "by-hand"


@dataclass(frozen=True, repr=False)
class Explanation:
    """Why a plan takes as long as it does; times in ticks. As text, what `octocp explain` prints.

    Attributes
    ----------
    plan : Plan
        The plan, or its decisions on another instance.
    fused : bool
        Whether its gradients are handed on only when W ends.
    path : list of Step
        A critical path, first op first.
    runs : list of Run
        The same, grouped for reading.
    busy : dict of int to int
        Ticks of the path's ops by device.
    transfer, lead : int
        Ticks of the path in transfers, and held back by nothing but the plan.
    bound, layout_bound : Bound
        The nearest known bound for all plans of the instance, and for all orders of this partition and placement.
    idle : list of Idle
        Each device's idle time by cause.
    advice : Advice
        The changes that help most.
    """

    plan: Plan
    fused: bool
    path: list[Step]
    runs: list[Run]
    busy: dict[int, int]
    transfer: int
    lead: int
    bound: Bound
    layout_bound: Bound
    idle: list[Idle]
    advice: Advice

    def __str__(self) -> str:
        """Return what `octocp explain` prints."""
        # rich, for the tables, is of no use to those who only want the numbers.
        from octocp.analysis.text import explanation_text

        return explanation_text(self)

    def __repr__(self) -> str:
        """Name the plan; all of it would fill pages."""
        return f"<Explanation of {_named(self.plan)}>"


@dataclass(frozen=True, repr=False)
class Trial:
    """A plan before and after changes by hand. As text, what `octocp try` prints.

    Attributes
    ----------
    moves : tuple of Move
        The changes, as they were read.
    before, plan : Plan
        The plan without and with them; `plan` has passed the checker.
    original : Plan
        The plan that was given: `before`, unless another instance was named, on which that one is timed anew.
    """

    moves: tuple[Move, ...]
    before: Plan
    plan: Plan
    original: Plan

    @property
    def change(self) -> float:
        """(value after - value before) / value before; below zero is better."""
        return (self.plan.value - self.before.value) / self.before.value if self.before.value else 0.0

    def __str__(self) -> str:
        """Return what `octocp try` prints."""
        from octocp.analysis.text import trial_text

        return trial_text(self)

    def __repr__(self) -> str:
        """Name the changes and the plan."""
        return f"<Trial: {', '.join(map(str, self.moves)) or 'timed anew'}: {_named(self.plan)}>"


def _named(plan: Plan) -> str:
    return f"{plan.instance.name}, method {plan.method}: {plan.objective} {plan.value} ticks"


def explain(
    plan: Plan | str | Path, instance: Instance | str | Path | None = None, *, work: int | None = None
) -> Explanation:
    """Explain a plan: critical path, bounds, idle time by cause, and what would help most.

    Parameters
    ----------
    plan : Plan, str or Path
        A valid one, or its file.
    instance : Instance, str or Path, optional
        Another instance of as many layers, devices and microbatches, on which the plan's partition, placement and
        orders are timed anew; by default the plan's own.
    work : int, optional
        How many ops may be timed in search of better plans; 0 gives no advice.

    Raises
    ------
    InputError
        The plan is not valid, or does not fit the instance.
    """
    plan, draft, schedule = _prepared(as_plan(plan), None if instance is None else as_instance(instance))
    path = critical_path(schedule, fused=draft.fused)
    busy, transfer, lead = shares(path, draft.problem)
    advice = Advice((), 0, 0)
    if schedule.value > plan.lower_bound:
        advice = advise(draft, schedule, path) if work is None else advise(draft, schedule, path, work=work)
    analytic = best_bound(draft.problem)
    own = Bound(plan.solve.bound_name or "as the plan says", plan.lower_bound)
    return Explanation(
        plan=plan,
        fused=draft.fused,
        path=path,
        runs=runs_of(path),
        busy=busy,
        transfer=transfer,
        lead=lead,
        bound=analytic if analytic.value >= own.value else own,
        layout_bound=layout_bound(draft.problem, schedule.layout),
        idle=idle_causes(schedule, fused=draft.fused),
        advice=advice,
    )


def try_move(
    plan: Plan | str | Path, moves: Sequence[str | Move] | str, instance: Instance | str | Path | None = None
) -> Trial:
    """Change a plan by hand: where the cuts are, which device holds a stage, what runs before what.

    Parameters
    ----------
    plan : Plan, str or Path
        A valid one, or its file.
    moves : sequence of str
        Changes as `octocp.analysis.moves` describes them, made one after the other: "layer 3->2", "stage 5->2",
        "F(3,5) before B(3,2)". With none, the plan's own orders are timed anew.
    instance : Instance, str or Path, optional
        As for `explain`.

    Returns
    -------
    Trial
        With the new plan, every op timed anew and checked.

    Raises
    ------
    IllegalMoveError
        A change is none, or is illegal: an `InputError` that says which and why.
    InputError
        The plan is not valid, or does not fit the instance.
    """
    read = parse_all([moves] if isinstance(moves, str) else moves)
    original = as_plan(plan)
    before, draft, _ = _prepared(original, None if instance is None else as_instance(instance))
    try:
        schedule = draft.with_moves(read).timed()
    except IllegalMoveError as error:
        place = error.place or ", ".join(str(move) for move in read)
        raise IllegalMoveError(error.problem, place=place, right=error.right) from None
    found_by = f"changed by hand: {', '.join(str(move) for move in read) or 'timed anew'}"
    solve = SolveInfo(
        octocp=octocp.__version__,
        bound_name=before.solve.bound_name,
        bound_scope=before.solve.bound_scope,
        found_by=found_by,
    )
    after = _checked(schedule, before.instance, BY_HAND, before.lower_bound, solve)
    return Trial(tuple(read), before, after, original)


# ---- plans and schedules -------------------------------------------------------------------


def _prepared(plan: Plan, instance: Instance | None) -> tuple[Plan, Draft, Schedule]:
    """Return a plan with its draft and schedule, on another instance where one is given."""
    violations = check_plan(plan)
    if violations:
        raise InputError(f"is not a valid plan: {violations[0]}", right="octocp check tells all")
    problem = build_problem(plan.instance)
    schedule = to_schedule(plan, problem)
    draft = draft_of(schedule, fused=runs_fused(schedule))
    if instance is None:
        return plan, draft, schedule
    problem = build_problem(instance)
    _check_fit(plan, draft.problem, problem)
    moved = Draft(problem, draft.layout, draft.sequence, draft.fused)
    try:
        schedule = moved.timed()
    except IllegalMoveError as error:
        raise InputError(error.problem, place="instance", right=error.right) from None
    bound = best_bound(problem)
    solve = plan.solve.model_copy(
        update={"bound_name": bound.name, "bound_scope": "whole instance", "trace": [], "found_by": plan.solve.found_by}
    )
    return _checked(schedule, instance, plan.method, bound.value, solve), moved, schedule


def to_schedule(plan: Plan, problem: Problem) -> Schedule:
    """Return a valid plan's schedule in the integers of its instance."""
    bounds = (0, *np.cumsum(plan.partition).tolist())
    layout = Layout(bounds, tuple(plan.placement))
    start = np.zeros((len(problem.kinds), layout.stages, problem.n_microbatches), dtype=np.int64)
    for op in plan.ops:
        start[KIND_NAMES.index(op.kind), op.stage, op.microbatch] = op.start
    return Schedule(problem, layout, start)


def _check_fit(plan: Plan, own: Problem, other: Problem) -> None:
    """Refuse an instance that a plan's decisions do not fit."""
    for what, one, two in (
        ("layers", own.n_layers, other.n_layers),
        ("devices", own.n_devices, other.n_devices),
        ("microbatches", own.n_microbatches, other.n_microbatches),
    ):
        if one != two:
            raise InputError(f"has {two} {what}; the plan of {plan.instance.name} has {one}", place="instance")
    if own.split != other.split:
        raise InputError("splits the backward, or does not, where the plan does the opposite", place="instance")


def _checked(schedule: Schedule, instance: Instance, method: str, bound: int, solve: SolveInfo) -> Plan:
    plan = to_plan(schedule, instance, method=method, lower_bound=bound, solve=solve)
    violations = check_plan(plan)
    if violations:
        raise PlanRejectedError(f"the checker refused a plan changed by hand: {violations[0]}; please report it")
    return plan
