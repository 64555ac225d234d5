"""PyTorch's pipeline CSV: each rank's order alone, or with every transfer in its place.

Load it with ``_PipelineScheduleRuntime(stages, n_microbatches, loss_fn=..., scale_grads=True)._load_csv(path)``, and
with ``format="compute_comms"`` where the transfers are in it.
"""

from __future__ import annotations

from collections import Counter

from octocp.checker import memory_timeline
from octocp.errors import InputError, PlanRejectedError
from octocp.report.export.timeline import (
    Timeline,
    adjacent_on_one_device,
    first_stage_apart,
    sort_key,
    timeline,
)
from octocp.report.units import counted, device_names, printable
from octocp.runtimes.torch_csv import Action, parse, write
from octocp.runtimes.torch_rules import two_way, violations
from octocp.runtimes.torch_transfers import crossing
from octocp.schema import Plan

# A hint that names more is not read.
MOST_KINDS = 4

Timed = tuple[tuple[int, int, int], tuple[int, int, int], int, Action]
"""Start and end as keys of one order of everything, device, action."""


def export(plan: Plan) -> bytes:
    """Return the order of every rank (``compute_only``): PyTorch places the transfers."""
    rows: list[list[Action]] = [[] for _ in timeline(plan).orders]
    for _, _, device, action in _actions(timeline(plan)):
        rows[device].append(action)
    return _checked(rows)


def export_with_transfers(plan: Plan) -> bytes:
    """Return the order of every rank with its transfers (``compute_comms``), which PyTorch runs as it is written.

    All ranks' actions are put in one order by the plan's times. Both halves of a transfer enter it at the same moment,
    the end of the op that produces what is sent: no receive could be posted earlier and still be matched at once.
    So two ranks have their transfers with each other in the same order, sends and receives together, which is what
    NCCL needs. And nobody waits for ever: of all actions that have not been run, the first in that order has everything
    it needs.
    """
    line = timeline(plan)
    placement, last = plan.placement, line.stages - 1
    left = Counter(action.stage for _, _, _, action in _actions(line) if action.kind in ("B", "W"))
    events: list[tuple[tuple[int, int, int], list[tuple[int, Action]]]] = []
    for begin, end, device, action in _actions(line):
        events.append((begin, [(device, action)]))
        stage, m = action.stage, action.microbatch
        after: list[tuple[int, Action]] = []
        if action.kind == "F" and stage < last and placement[stage + 1] != device:
            after += [(device, Action(stage, "SEND_F", m)), (placement[stage + 1], Action(stage + 1, "RECV_F", m))]
        elif action.kind in ("B", "I") and stage and placement[stage - 1] != device:
            after += [(device, Action(stage, "SEND_B", m)), (placement[stage - 1], Action(stage - 1, "RECV_B", m))]
        left[stage] -= action.kind in ("B", "W")
        if action.kind in ("B", "W") and not left[stage]:
            after.append((device, Action(stage, "REDUCE_GRAD", None)))
        events.append((end, after))
    rows: list[list[Action]] = [[] for _ in line.orders]
    for _, made in sorted(events, key=lambda event: event[0]):
        for device, action in made:
            rows[device].append(action)
    return _checked(rows)


def _checked(rows: list[list[Action]]) -> bytes:
    """Return the file, once `check --runtime` has nothing against it: PyTorch would run almost anything."""
    text = write(rows)
    table = parse(text)
    # Of our own files, a pair of ranks whose transfers cross is wrong too.
    wrong = violations(table) or list(crossing(table))
    if wrong:
        raise PlanRejectedError(f"the CSV made of a plan cannot run: {wrong[0]}; please report it")
    return text.encode()


def _actions(line: Timeline) -> list[Timed]:
    """Return what PyTorch runs, in an order that keeps every precedence and that of every device.

    In stage 0 PyTorch's I does nothing and its W is the whole backward, so the backward is written as one B where W
    is. Nobody but W waits for that B, so the order stays possible; but what filled the time between B and W does not
    always move up, and then the rest of the step is late by as much as B takes.

    A position in the order of the plan's ops is what tells actions of length zero at one time apart. A whole backward
    has that of its B: its W comes right after it on its device, and what takes its gradient comes after the B.
    """
    number = _numbering(line)
    last = line.stages - 1
    weights = {(op.stage, op.microbatch): op for op in line.plan.ops if op.kind == "W"}
    made: list[Timed] = []
    ops = sorted((op for order in line.orders for op in order), key=lambda op: sort_key(last, op))
    for position, op in enumerate(ops):
        key, end = (op.stage, op.microbatch), op.end
        kind: str = op.kind
        if kind == "B" and key in line.whole:
            end = weights[key].end if line.split else end
        elif kind == "B":
            if op.stage == 0:
                continue
            kind = "I"
        elif kind == "W":
            if key in line.whole:
                continue
            kind = "B" if op.stage == 0 else "W"
        action = Action(op.stage, kind, number[op.microbatch])
        made.append(((op.start, position, 0), (end, position, 1), op.device, action))
    return made


def _numbering(line: Timeline) -> dict[int, int]:
    """Number the microbatches in the order in which the last stage runs them: PyTorch needs that.

    Microbatches are alike, so which of them is called 0 changes nothing.

    Raises
    ------
    InputError
        They are not alike, and the last stage does not run them in order.
    """
    last = line.stages - 1
    order = [op.microbatch for op in line.orders[line.plan.placement[last]] if (op.kind, op.stage) == ("F", last)]
    if order != sorted(order) and len(set(line.plan.instance.lengths())) > 1:
        at = next(place for place, (one, other) in enumerate(zip(order, order[1:], strict=False)) if other < one)
        raise InputError(
            f"the last stage runs F{order[at + 1]} after F{order[at]}; PyTorch needs the order of microbatches",
            place="ops",
        )
    return {microbatch: position for position, microbatch in enumerate(order)}


def notes(plan: Plan) -> list[str]:
    """Return what differs in PyTorch from the plan, one line each."""
    line = timeline(plan)
    said = []
    number = _numbering(line)
    if any(one != other for one, other in number.items()):
        said.append("microbatches are renumbered in the order of the last stage, which PyTorch needs")
    apart = first_stage_apart(line)
    if apart:
        said.append(
            f"stage 0 runs {counted(len(apart), 'whole backward')} where the plan has W, because PyTorch's I does "
            "nothing there: the step may take longer; octocp compare INSTANCE --add "
            f"FILE@{','.join(map(str, plan.partition))} says how long (a CSV has no partition; in an instance it is "
            f"stages.partition: {plan.partition})"
        )
    said += _memory(plan)
    adjacent = adjacent_on_one_device(plan)
    if adjacent is not None:
        said.append(f"stages {adjacent} and {adjacent + 1} share a rank: training runs, PyTorch's eval() fails")
    if two_way(dict(enumerate(plan.placement))):
        said.append("a rank sends both activations and gradients to one other: never set defer_pp_recv=True")
    return said


def _memory(plan: Plan) -> list[str]:
    """Say which devices hold more because PyTorch's I frees no activation, and which sizes make a plan expect it."""
    instance = plan.instance
    model = instance.model.flattened(instance.profile)
    kinds = {key: model.kinds[key] for key in dict.fromkeys(model.layer_kinds())}
    late = {key: kind for key, kind in kinds.items() if kind.weight_activation_gb < kind.activation_gb}
    if not instance.training.split_backward or not late:
        return []
    sizes = {key: kind.model_copy(update={"weight_activation_gb": kind.activation_gb}) for key, kind in late.items()}
    model = model.model_copy(update={"kinds": {**model.kinds, **sizes}})
    changed = instance.model_copy(update={"model": model, "profile": None})
    there = _peaks(plan.model_copy(update={"instance": changed}))
    limits = [device.memory_gb for device in instance.cluster.device_list()]
    names = device_names(plan)
    why = "PyTorch frees a stage's activations at W, the plan frees them at B"
    said = [
        f"{names[device]} needs up to {peak:.6g} GB of {limit:.6g} GB: {why}"
        for device, (peak, limit) in enumerate(zip(there, limits, strict=True))
        if limit is not None and peak > limit
    ]
    # Where nothing limits a device, what it holds still says whether the run will fit.
    more = {device: peak - own for device, (peak, own) in enumerate(zip(there, _peaks(plan), strict=True))}
    free = [device for device, extra in more.items() if limits[device] is None and extra > 0]
    if free:
        worst = max(free, key=lambda device: more[device])
        said.append(f"{names[worst]} holds up to {there[worst]:.6g} GB, {more[worst]:.6g} GB more than planned: {why}")
    if said:
        named = [f"{kind.activation_gb:g} for {printable(kind.name or key, 40)}" for key, kind in late.items()]
        shown = (
            named
            if len(named) <= MOST_KINDS
            else [*named[: MOST_KINDS - 1], f"so for {len(named) - MOST_KINDS + 1} more"]
        )
        said.append(
            "to plan with PyTorch's memory, set weight_activation_gb to activation_gb in the model "
            f"({', '.join(shown)}) and solve again"
        )
    return said


def _peaks(plan: Plan) -> list[float]:
    return [max((float(use) for _, use in steps), default=0.0) for steps in memory_timeline(plan)]
