"""When each action of a plan should run under torch: durations of the plan, the rules of the runtime.

The runtime starts an action as soon as its input is there and the rank is free. It computes all of stage 0's backward
at once, in `W` where the backward is split.
"""

from __future__ import annotations

from collections.abc import Callable

from octocp.errors import InputError
from octocp.report.units import milliseconds
from octocp.schema import Plan
from octocp.torch.actions import Action, Actions, compute_actions, delays
from octocp.torch.timeline import Span, Timeline, producers


def predict(plan: Plan, actions: Actions | None = None, *, overhead_ms: float = 0.0) -> Timeline:
    """Return when each compute action should run.

    Parameters
    ----------
    actions : list of lists of Action, optional
        Per rank; by default those of the plan.
    overhead_ms : float
        Milliseconds that each action takes beyond what the plan says.

    Raises
    ------
    InputError
        The ranks wait for each other.
    """
    actions = compute_actions(plan) if actions is None else actions
    stages = len(plan.partition)
    took, delay = lengths(plan), delays(plan)
    end: dict[Action, float] = {}
    free, next_up = [0.0] * len(actions), [0] * len(actions)
    found: Timeline = []
    total = sum(map(len, actions))
    while len(found) < total:
        before = len(found)
        for rank, row in enumerate(actions):
            while next_up[rank] < len(row):
                action = row[next_up[rank]]
                ready = _ready(plan, action, stages, end, delay)
                if ready is None:
                    break
                start = max(free[rank], ready)
                # What torch skips costs nothing.
                idle = action.kind == "I" and action.stage == 0
                free[rank] = end[action] = start + (0.0 if idle else took[action.kind, action.stage] + overhead_ms)
                found.append(Span(action, rank, start, free[rank]))
                next_up[rank] += 1
        if len(found) == before:
            waiting = zip(actions, next_up, strict=True)
            stuck = ", ".join(f"rank {rank} at {row[at]}" for rank, (row, at) in enumerate(waiting) if at < len(row))
            raise InputError(f"the ranks wait for each other: {stuck}", right="the traces of one step")
    return found


def lengths(plan: Plan) -> dict[tuple[str, int], float]:
    """Return what an action of a kind on a stage takes, in milliseconds; a fused backward has one overhead, not two."""
    made: dict[tuple[str, int], float] = {}
    overhead, split = plan.instance.training.op_overhead_us / 1000, plan.instance.training.split_backward
    ticks = {(op.kind, op.stage): op.end - op.start for op in plan.ops}
    for stage in range(len(plan.partition)):
        forward, backward = ticks["F", stage], ticks["B", stage]
        weight = ticks.get(("W", stage), 0)
        whole = milliseconds(plan, backward + weight) - (overhead if split else 0.0)
        made["F", stage], made["B", stage] = milliseconds(plan, forward), whole
        made["I", stage] = milliseconds(plan, backward) if stage else 0.0
        made["W", stage] = milliseconds(plan, weight) if stage else whole
    return made


def _ready(
    plan: Plan, action: Action, stages: int, end: dict[Action, float], delay: Callable[[int], int]
) -> float | None:
    """Return when an action's inputs are there, in milliseconds; None where that is not known yet."""
    ready = 0.0
    if action.kind in ("I", "B"):
        forward = end.get(Action(action.stage, "F", action.microbatch))
        if forward is None:
            return None
        ready = forward
    if action.kind == "W" and Action(action.stage, "I", action.microbatch) not in end:
        return None
    for stage, kinds, microbatch in producers(action, stages):
        ends = [end[key] for kind in kinds if (key := Action(stage, kind, microbatch)) in end]
        if not ends:
            return None
        crossing = delay(max(stage, action.stage))
        ready = max(ready, ends[0] + milliseconds(plan, crossing))
    return ready
