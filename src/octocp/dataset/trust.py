"""The second proof of a row, and what happens when two proofs contradict each other."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from octocp.costs import build_problem
from octocp.cpsat.joint import build_joint
from octocp.cpsat.run import run
from octocp.dataset.checking import plan_violations
from octocp.dataset.reading import as_row
from octocp.dataset.rows import DoubleCheck, Row
from octocp.decode import checked, to_plan
from octocp.errors import InputError, OctoCPError
from octocp.problem import KIND_NAMES, Problem
from octocp.schedule import Layout, Schedule
from octocp.schema import Plan

# It shares no bound with the first proof: the joint model alone, without what the analytic bounds tell it.
WITHOUT = ("analytic",)
SEED_STEP = 1
# How much longer than the first solve it may take.
PATIENCE = 2.0


class DisagreementError(OctoCPError):
    """Two proofs contradict each other: a bug in OctoCP, and no row to be written."""

    exit_code = 70


def check_payload(row: dict[str, Any]) -> dict[str, Any]:
    """Return what `double_check` needs to prove a row (as plain data) again."""
    return {"task": "check", "id": row["id"], "row": row}


def contradiction(row: Row, plan: Plan) -> str:
    """Say how a valid plan contradicts what a row says, or return ""."""
    if row.status == "infeasible":
        return "has a plan of an instance that is said to have none"
    if row.lower_bound is not None and plan.value < row.lower_bound:
        return f"reaches {plan.value} ticks, below the proven bound {row.lower_bound}"
    return ""


def disagreement(name: str, what: str, first: Any, second: Any) -> dict[str, Any]:
    """Return a task's result where two proofs contradict each other, with both sides as plain data."""
    return {"id": name, "disagreement": {"what": what, "first": first, "second": second}}


def schedule_of(row: Row, problem: Problem) -> Schedule:
    """Return a row's plan, which `plan_violations` has found nothing wrong with, as a schedule."""
    bounds = tuple(int(end) for end in np.cumsum([0, *row.partition]))
    layout = Layout(bounds, tuple(row.placement))
    start = np.zeros((len(problem.kinds), layout.stages, problem.n_microbatches), dtype=np.int64)
    for order, starts in zip(row.orders, row.starts, strict=True):
        for name, at in zip(order, starts, strict=True):
            stage, _, microbatch = name[1:].partition(".")
            start[KIND_NAMES.index(name[0]), int(stage), int(microbatch)] = at
    return Schedule(problem, layout, start)


def double_check(payload: dict[str, Any]) -> dict[str, Any]:
    """Prove again that no plan is better than a row's, or that there is none, with the joint model alone.

    A better plan, or any plan where there should be none, is a disagreement; no proof in time is not.
    """
    row = as_row(payload["row"], "")
    problem = build_problem(row.instance)
    if wrong := next(plan_violations(row), ""):
        raise InputError(
            f"the plan of row {row.id} is not one of its instance: {wrong}",
            right="octocp dataset check says what else is wrong",
        )
    known = schedule_of(row, problem) if row.value is not None else None
    if known is not None:
        # The row as it is read back, so that what was written is what is proven.
        checked(known, row.instance, method=row.method, lower_bound=row.lower_bound or 0)
    build = build_joint(problem, incumbent=known, lower=0, without=WITHOUT)
    seed = row.seed + SEED_STEP
    began = time.perf_counter()
    found = run(build, seconds=PATIENCE * row.time_limit, workers=1, seed=seed)
    bound = None if found.status == "infeasible" else found.bound
    check = DoubleCheck(
        status=found.status,
        value=None if found.schedule is None else found.schedule.value,
        lower_bound=bound,
        bound_name="joint model",
        settings=f"joint model alone, without {', '.join(WITHOUT)}; seed {seed}",
        seconds=round(time.perf_counter() - began, 3),
    )
    what, second = "", check.model_dump(mode="json")
    if found.schedule is not None:
        plan = to_plan(found.schedule, row.instance, method="cp-sat", lower_bound=0)
        what, second = contradiction(row, plan), plan.model_dump(mode="json")
    if found.status == "infeasible" and row.value is not None:
        what = f"says that there is no plan of {row.value} ticks"
    elif row.value is not None and found.bound > row.value:
        what = f"proves the bound {found.bound}, above a plan of {row.value} ticks"
    if what:
        plan_before = row.plan()
        first = plan_before.model_dump(mode="json") if plan_before else {"status": row.status, "reason": row.reason}
        return disagreement(row.id, f"the second proof ({check.settings}) {what}", first, second)
    return {"id": row.id, "check": check.model_dump(mode="json")}
