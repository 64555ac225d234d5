"""What a worker does: one solve, checked, with the known schedules beside it; or the second proof of a row.

Functions here take and return plain data, so that any executor can carry them to any machine.
"""

from __future__ import annotations

import platform
import time
from importlib.metadata import version
from typing import Any

import octocp
from octocp.bounds import best_bound
from octocp.costs import build_problem
from octocp.dataset.rows import HeuristicValue, Row, Status, Versions, features, plan_columns
from octocp.dataset.trust import contradiction, disagreement, double_check
from octocp.decode import checked
from octocp.errors import InfeasibleError, NoPlanError
from octocp.heuristics import ALL_HEURISTICS, OCTOPIPE, Attempt, attempts, best_attempt
from octocp.problem import Problem
from octocp.schema import Instance, Plan

Payload = dict[str, Any]
# A plan, the status, why there is no plan, and the row's columns about the plan.
Solved = tuple[Plan | None, Status, str, dict[str, Any]]


def solve_payload(drawn: Any, *, time_limit: float, seed: int, generator: int) -> Payload:
    """Return what `solve` needs to make a row of a `Drawn` instance."""
    return {
        "task": "solve",
        "id": drawn.id,
        "family": drawn.family,
        "hash": drawn.hash,
        "instance": drawn.instance.model_dump(mode="json", exclude_defaults=True),
        "time_limit": time_limit,
        "seed": seed,
        "generator": generator,
    }


def perform(payload: Payload) -> dict[str, Any]:
    """Do one task; the result has ``row`` or ``check``, or ``disagreement`` with both sides of it."""
    return solve(payload) if payload["task"] == "solve" else double_check(payload)


def made_by() -> dict[str, str]:
    """Return the versions that rows of this process are made by."""
    packages = {name: version(name) for name in ("ortools", "numpy", "numba")}
    return {"octocp": octocp.__version__, **packages, "python": platform.python_version()}


# ---- a row -----------------------------------------------------------------------------------


def solve(payload: Payload) -> dict[str, Any]:
    """Solve one instance with one worker and run the known schedules on it."""
    instance = Instance.model_validate(payload["instance"])
    problem = build_problem(instance)
    began = time.perf_counter()
    plan, status, reason, columns = _solved(instance, payload["time_limit"], payload["seed"])
    seconds = time.perf_counter() - began
    values, plans = _heuristics(problem, instance, columns.get("lower_bound") or 0)
    if status in ("feasible", "unknown"):
        plan, status, reason, columns = _with_best_known(problem, instance, plans, (plan, status, reason, columns))
    row = Row(
        id=payload["id"],
        hash=payload["hash"],
        family=payload["family"],
        features=features(instance, problem),
        instance=instance.resolved(),
        layers=problem.n_layers,
        devices=problem.n_devices,
        microbatches=problem.n_microbatches,
        objective=problem.objective,
        tick_us=float(instance.tick_us),
        status=status,
        reason=reason,
        **columns,
        seed=payload["seed"],
        workers=1,
        time_limit=payload["time_limit"],
        seconds=round(seconds, 3),
        versions=Versions(**made_by(), generator=payload["generator"]),
        heuristics=values,
    )
    for method, other in plans.items():
        wrong = contradiction(row, other)
        if wrong:
            first = plan.model_dump(mode="json") if plan else {"status": status, "reason": reason}
            return disagreement(payload["id"], f"{method} {wrong}", first, other.model_dump(mode="json"))
    return {"id": payload["id"], "row": row.data()}


def _solved(instance: Instance, time_limit: float, seed: int) -> Solved:
    """Return the plan, the status, why there is no plan, and the row's columns about the plan."""
    from octocp.api import solve as solve_instance

    try:
        result = solve_instance(instance, time_limit=time_limit, workers=1, seed=seed)
    except InfeasibleError as error:
        return None, "infeasible", str(error), {}
    except NoPlanError as error:
        return None, "unknown", str(error), {}
    devices = len(instance.cluster.device_list())
    return result.plan, result.status, "", plan_columns(result.plan, devices)


def _with_best_known(problem: Problem, instance: Instance, plans: dict[str, Plan], found: Solved) -> Solved:
    """Return what `_solved` has found, or the best known schedule's plan with the same bound where that is better.

    A solve that runs out of time may not have come to all of them.
    """
    plan, _, _, columns = found
    best = min(plans.values(), key=lambda other: other.value, default=None)
    if best is None or (plan is not None and plan.value <= best.value):
        return found
    bound, name = columns.get("lower_bound"), columns.get("bound_name", "")
    if bound is None:  # the solve has neither plan nor bound
        first = best_bound(problem)
        bound, name = first.value, first.name
    if best.value < bound:
        return found  # for `contradiction` to tell
    status: Status = "optimal" if best.value == bound else "feasible"
    info = best.solve.model_copy(update={"bound_name": name, "found_by": best.method})
    best = best.model_copy(update={"lower_bound": bound, "status": status, "solve": info})
    return best, status, "", plan_columns(best, len(instance.cluster.device_list()))


def _heuristics(problem: Problem, instance: Instance, bound: int) -> tuple[list[HeuristicValue], dict[str, Plan]]:
    """Run every known schedule and OctoPipe's tuner; each plan has passed the checker."""
    values: list[HeuristicValue] = []
    plans: dict[str, Plan] = {}
    runs: list[Attempt] = [best_attempt(list(attempts(heuristic, problem))) for heuristic in ALL_HEURISTICS]
    for found in [*runs, OCTOPIPE.run(problem)]:
        value = None
        if found.status == "feasible" and found.schedule is not None:
            value = found.schedule.value
            # A bound above the value is for `contradiction` to tell; a plan cannot say so.
            below = min(bound, value)
            plans[found.heuristic] = checked(found.schedule, instance, method=found.heuristic, lower_bound=below)
        values.append(
            HeuristicValue(method=found.heuristic, status=found.status, value=value, rule=found.rule)  # type: ignore[arg-type]
        )
    return values, plans
