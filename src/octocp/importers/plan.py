"""A plan file: its partition, placement and orders, on an instance that may have other costs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from octocp.checker import check_plan
from octocp.costs import build_problem
from octocp.errors import InputError
from octocp.importers.parsed import Parsed, bounds_of, check_layout
from octocp.problem import KIND_NAMES, B, Problem, W
from octocp.schedule import Layout, Op, Schedule
from octocp.schema import Plan
from octocp.schema.messages import validate
from octocp.schema.reading import parse_json


def read_plan(problem: Problem, text: str, path: Path | None = None) -> Parsed:
    """Read a plan.

    Raises
    ------
    InputError
        It is no valid plan, or has other numbers of layers, devices or microbatches than the instance.
    """
    plan = validate(Plan, parse_json(text), str(path or "plan"))
    violations = check_plan(plan)
    if violations:
        raise InputError(f"is not a valid plan: {violations[0]}", right="octocp check tells all")
    own = build_problem(plan.instance)
    for what, one, two in (
        ("layers", own.n_layers, problem.n_layers),
        ("devices", own.n_devices, problem.n_devices),
        ("microbatches", own.n_microbatches, problem.n_microbatches),
    ):
        if one != two:
            raise InputError(f"has {one} {what}; the instance has {two}", place="instance")
    if own.split != problem.split:
        does = ("splits", "does not") if own.split else ("does not split", "does")
        raise InputError(f"{does[0]} the backward; the instance {does[1]}", place="instance.training.split_backward")
    layout = Layout(bounds_of(plan.partition), tuple(plan.placement))
    check_layout(problem, layout, "partition, placement")
    start = np.zeros((len(own.kinds), layout.stages, own.n_microbatches), dtype=np.int64)
    for op in plan.ops:
        start[KIND_NAMES.index(op.kind), op.stage, op.microbatch] = op.start
    schedule = Schedule(own, layout, start)
    return Parsed(layout, schedule.orders(), _fused(schedule), name=plan.method)


def _fused(schedule: Schedule) -> bool:
    """Tell whether a plan is one of a fused backward, which it does not say.

    Where every W comes right after its B and no gradient is taken before that W has ended, the plan is one of a
    fused backward. A single backward like that is a coincidence, and counts as split.
    """
    problem, layout, end = schedule.problem, schedule.layout, schedule.end
    if not problem.split:
        return False
    for order in schedule.orders():
        following = dict(zip(order, order[1:], strict=False))
        for op in order:
            if op.kind == B and following.get(op) != Op(W, op.stage, op.microbatch):
                return False
    for stage in range(1, layout.stages):
        here, before = layout.placement[stage], layout.placement[stage - 1]
        for microbatch in range(problem.n_microbatches):
            delay = problem.delay(layout.bounds[stage], here, before, microbatch)
            if schedule.start[B, stage - 1, microbatch] < end[W, stage, microbatch] + delay:
                return False
    return True
