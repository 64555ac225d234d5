"""What every runtime's export starts from: the order of each device, as that runtime can run it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octocp.checker.exact import ExactCosts
from octocp.report.units import device_count
from octocp.schema import Plan, PlanOp


@dataclass(frozen=True)
class Timeline:
    """The ops of a plan by device, and which backwards are whole.

    Attributes
    ----------
    plan : Plan
        A valid one.
    orders : tuple [device] of tuples of PlanOp
        By start.
    whole : frozenset of (stage, microbatch)
        Backwards that lose nothing by being run as one op: there is no W, or W comes right after B and the gradient is
        needed no earlier than W's end.
    """

    plan: Plan
    orders: tuple[tuple[PlanOp, ...], ...]
    whole: frozenset[tuple[int, int]]

    @property
    def split(self) -> bool:
        """Whether the plan has W ops."""
        return self.plan.instance.training.split_backward

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.plan.placement)

    @property
    def microbatches(self) -> int:
        """Number of microbatches."""
        return len(self.plan.instance.lengths())

    def held(self, device: int) -> list[int]:
        """Return the stages of a device, ascending."""
        return [stage for stage, holder in enumerate(self.plan.placement) if holder == device]


def sort_key(last: int, op: PlanOp) -> tuple[int, ...]:
    """Return a key that puts ops in an order which keeps every precedence, ops of length zero too.

    Of two ops with the same start and end, one needs the other only if both take no time: then forwards come first,
    up the stages, backwards after them, down the stages, and W last.
    """
    rank = {"F": op.stage, "B": 2 * last + 1 - op.stage, "W": 3 * last + 2}[op.kind]
    return op.start, op.end, rank, op.microbatch, op.stage


def timeline(plan: Plan) -> Timeline:
    """Order the ops of a valid plan by device."""
    last = len(plan.placement) - 1
    orders: list[list[PlanOp]] = [[] for _ in range(device_count(plan))]
    for op in sorted(plan.ops, key=lambda op: sort_key(last, op)):
        orders[op.device].append(op)
    return Timeline(plan, tuple(map(tuple, orders)), _whole(plan, orders))


def _whole(plan: Plan, orders: Sequence[Sequence[PlanOp]]) -> frozenset[tuple[int, int]]:
    if not plan.instance.training.split_backward:
        return frozenset((op.stage, op.microbatch) for op in plan.ops if op.kind == "B")
    costs = ExactCosts(plan)
    backward = {(op.stage, op.microbatch): op for op in plan.ops if op.kind == "B"}
    found = set()
    for order in orders:
        for one, other in zip(order, order[1:], strict=False):
            key = one.stage, one.microbatch
            follows = other.kind == "W" and one.kind == "B" and key == (other.stage, other.microbatch)
            if not follows or other.start != one.end:
                continue
            if one.stage:
                needed = backward[one.stage - 1, one.microbatch]
                delay = costs.delay(one.stage - 1, one.microbatch, one.device, needed.device)
                if needed.start < other.end + delay:
                    continue
            found.add(key)
    return frozenset(found)


def first_stage_apart(line: Timeline) -> list[PlanOp]:
    """Return the B ops of stage 0 whose W does not come right after them; one that takes no time may move freely."""
    found = []
    for order in line.orders:
        for position, op in enumerate(order):
            if op.kind == "B" and op.stage == 0 and line.split and op.end > op.start:
                following = order[position + 1 : position + 2]
                if [(next_.kind, next_.stage, next_.microbatch) for next_ in following] != [("W", 0, op.microbatch)]:
                    found.append(op)
    return found


def adjacent_on_one_device(plan: Plan) -> int | None:
    """Return the first stage whose successor is on the same device, if any."""
    pairs = zip(plan.placement, plan.placement[1:], strict=False)
    return next((stage for stage, (one, other) in enumerate(pairs) if one == other), None)
