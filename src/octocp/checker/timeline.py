"""The times of a plan: durations, precedence with link delays, one op at a time, the objective."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator

from octocp.checker.exact import ExactCosts
from octocp.checker.structure import OpKey
from octocp.checker.violations import Violations, name_device, name_op, number, ticks
from octocp.schema import Plan, PlanOp


def check_durations(plan: Plan, index: dict[OpKey, PlanOp], costs: ExactCosts | None, found: Violations) -> None:
    """Check that ops start at zero or later and last exactly as long as their stage takes."""
    for op in plan.ops:
        if op.start < 0:
            found.add(
                "start",
                f"{name_op(op)} on {name_device(plan, op.device)} starts at {number(op.start)}, before 0",
                -op.start,
            )
        if op.end < op.start:
            found.add(
                "duration",
                f"{name_op(op)} on {name_device(plan, op.device)} ends at {number(op.end)}, "
                f"{ticks(op.start - op.end)} before it starts",
                op.start - op.end,
            )
    if costs is None:
        return
    for (kind, stage, microbatch), op in index.items():
        if op.end < op.start or not 0 <= op.device < len(costs.devices):
            continue
        due, taken = costs.duration(kind, stage, microbatch, op.device), op.end - op.start
        if taken != due:
            word = "too long" if taken > due else "too short"
            found.add(
                "duration",
                f"{name_op(op)} on {name_device(plan, op.device)} takes {ticks(taken)}, "
                f"{ticks(abs(taken - due))} {word}: it needs {number(due)}",
                abs(taken - due),
            )


def _edges(stages: int, kind: str, stage: int, microbatch: int) -> Iterator[tuple[OpKey, int | None]]:
    """Yield what must end before an op starts, and the cut that the edge crosses, if any."""
    if kind == "F":
        if stage > 0:
            yield ("F", stage - 1, microbatch), stage - 1
    elif kind == "B":
        yield ("F", stage, microbatch), None
        if stage < stages - 1:
            yield ("B", stage + 1, microbatch), stage
    else:
        yield ("B", stage, microbatch), None


def check_precedence(plan: Plan, index: dict[OpKey, PlanOp], costs: ExactCosts | None, found: Violations) -> None:
    """Check that no op starts before what it needs has ended and, from another device, has arrived."""
    stages, devices = len(plan.partition), len(plan.instance.cluster.device_list())
    for (kind, stage, microbatch), op in index.items():
        for key, boundary in _edges(stages, kind, stage, microbatch):
            before = index.get(key)
            if before is None:
                continue
            delay = 0
            if costs is not None and boundary is not None and 0 <= op.device < devices and 0 <= before.device < devices:
                delay = costs.delay(boundary, microbatch, before.device, op.device)
            late = before.end + delay - op.start
            if late > 0:
                arrival = f" and takes {ticks(delay)} to arrive" if delay else ""
                found.add(
                    "precedence",
                    f"{name_op(op)} on {name_device(plan, op.device)} starts at {number(op.start)}, "
                    f"{ticks(late)} too early: {name_op(before)} on {name_device(plan, before.device)} "
                    f"ends at {number(before.end)}{arrival}",
                    late,
                )


def check_overlap(plan: Plan, found: Violations) -> None:
    """Check that a device runs one op at a time; one of length zero not strictly inside another."""
    by_device: dict[int, list[PlanOp]] = defaultdict(list)
    for op in plan.ops:
        by_device[op.device].append(op)
    for device in sorted(by_device):
        long = sorted((op for op in by_device[device] if op.end > op.start), key=lambda op: (op.start, op.end))
        starts: list[int] = []
        # latest[i]: of the first i+1 ops by start, the one that ends last. Ops before it that also
        # reach past a point start no later, so it alone decides whether the point is covered.
        latest: list[PlanOp] = []
        for op in long:
            if latest and op.start < latest[-1].end:
                _overlap(plan, op, latest[-1], min(op.end, latest[-1].end) - op.start, found)
            starts.append(op.start)
            latest.append(op if not latest or op.end > latest[-1].end else latest[-1])
        for op in by_device[device]:
            if op.end == op.start:
                position = bisect_left(starts, op.start)
                if position and latest[position - 1].end > op.start:
                    _inside(plan, op, latest[position - 1], found)


def _overlap(plan: Plan, op: PlanOp, other: PlanOp, amount: int, found: Violations) -> None:
    found.add(
        "overlap",
        (
            f"{name_op(op)} and {name_op(other)} run together on {name_device(plan, op.device)} "
            f"for {ticks(amount)}, from {number(op.start)}"
        ),
        amount,
    )


def _inside(plan: Plan, op: PlanOp, other: PlanOp, found: Violations) -> None:
    found.add(
        "overlap",
        f"{name_op(op)}, of length zero, lies at {number(op.start)} inside {name_op(other)} on "
        f"{name_device(plan, op.device)} ({number(other.start)} to {number(other.end)})",
    )


def objective_values(plan: Plan) -> tuple[int, int]:
    """Return makespan and span in ticks, from the ops alone."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for op in plan.ops:
        first[op.device] = min(first.get(op.device, op.start), op.start)
        last[op.device] = max(last.get(op.device, op.end), op.end)
    return max(last.values(), default=0), max((last[device] - first[device] for device in last), default=0)


def check_values(plan: Plan, found: Violations) -> None:
    """Check that makespan, span, bound and status are what the ops say."""
    makespan, span = objective_values(plan)
    for what, said, real in (("makespan", plan.makespan, makespan), ("span", plan.span, span)):
        if said != real:
            found.add(
                what,
                f"the plan says {number(said)}; its ops say {number(real)}, off by {ticks(abs(said - real))}",
            )
    value = makespan if plan.objective == "makespan" else span
    bound = plan.lower_bound
    if bound > value:
        found.add(
            "lower_bound",
            f"{number(bound)} is {ticks(bound - value)} above the plan's {plan.objective} {number(value)}",
        )
    elif plan.status == "optimal" and bound != value:
        found.add(
            "status",
            f"optimal, but the lower bound {number(bound)} is {ticks(value - bound)} "
            f"below the {plan.objective} {number(value)}",
        )
