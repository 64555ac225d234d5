"""Megatron's arguments: the layout string (or a hybrid model's pattern), its list form, and the group size.

Megatron's order is fixed, interleaved 1F1B with a fused backward, so a plan with another order is refused unless only
its layout is asked for.
"""

from __future__ import annotations

from octocp.errors import InputError
from octocp.report.export.timeline import Timeline, timeline
from octocp.report.units import device_count, printable, stage_layers
from octocp.runtimes.layers import Layers, layers_of
from octocp.runtimes.megatron import (
    GROUP,
    HYBRID,
    NAMES,
    Arguments,
    check_layout,
    print_hybrid,
    print_layout,
    print_list,
)
from octocp.runtimes.megatron_order import Step, check_group, group_sizes, orders
from octocp.schema import Plan

PLACE = "placement"


def export(plan: Plan, *, layout_only: bool = False) -> bytes:
    """Return Megatron's arguments, one a line.

    Parameters
    ----------
    layout_only : bool
        Write partition and placement, whatever the plan's order; Megatron then runs its own.

    Raises
    ------
    InputError
        Megatron cannot run the plan.
    """
    ranks = device_count(plan)
    _check_placement(plan, ranks)
    arguments = _arguments(plan)
    check_layout(arguments, ranks)
    chunks = len(plan.placement) // ranks
    # An order of Megatron's own needs a group size too that Megatron takes for these microbatches, if there is one.
    microbatches = len(plan.instance.lengths())
    if microbatches < ranks:
        check_group(ranks, chunks, microbatches, None)
    group = group_sizes(ranks, chunks, microbatches)[0] if layout_only else _group(plan, ranks, chunks)
    how = "its own order" if layout_only else "interleaved 1F1B" if chunks > 1 else "1F1B"
    lines = [
        f"# {printable(plan.instance.name)} ({printable(plan.method)}), planned by OctoCP; Megatron runs {how}.",
        f"--pipeline-model-parallel-size {ranks}",
    ]
    if arguments.hybrid:
        pattern = print_hybrid(arguments.stages)
        lines.append(f'--hybrid-layer-pattern "{pattern}"')
    else:
        lines.append(f'--pipeline-model-parallel-layout "{print_layout(arguments.stages)}"')
    if chunks > 1:
        lines.append(f"--{GROUP} {group}")
    if not arguments.hybrid:
        lines += ["# The same layout as a list, for configurations in Python:", f"# {print_list(arguments.stages)}"]
    return ("\n".join(lines) + "\n").encode()


def notes(plan: Plan, *, layout_only: bool = False) -> list[str]:
    """Return what differs in Megatron from the plan."""
    if layout_only:
        return ["only the layout is written: Megatron runs its own order, and the plan's time does not hold"]
    line = timeline(plan)
    backwards = line.stages * line.microbatches
    early = backwards - len(line.whole)
    if early:
        return [
            f"Megatron hands a gradient on when its W has ended; the plan does so before in {early} of {backwards} "
            "backwards, and is that much faster on paper"
        ]
    return []


def _check_placement(plan: Plan, ranks: int) -> None:
    placement = plan.placement
    if len(placement) % ranks:
        raise InputError(
            f"Megatron has the same number of stages on every rank; {len(placement)} on {ranks} is not",
            place=PLACE,
            right="stages.placement: interleaved with stages.count a multiple of the devices",
        )
    for stage, device in enumerate(placement):
        if device != stage % ranks:
            raise InputError(
                f"Megatron has stage {stage} on rank {stage % ranks}; the plan has it on {device}",
                place=PLACE,
                right="stages.placement: interleaved",
            )


def _arguments(plan: Plan) -> Arguments:
    layers = layers_of(plan.instance.model)
    if layers.hybrid:
        return Arguments(_hybrid_stages(plan, layers), True)
    stages = [
        "".join(NAMES[layers.role(layer)] for layer in range(first, last + 1)) for first, last in stage_layers(plan)
    ]
    # Megatron wants both, also where the model leaves them out because they cost nothing.
    if not layers.embedding:
        stages[0] = "E" + stages[0]
    if not layers.head:
        stages[-1] += "L"
    return Arguments(tuple(stages), False)


def _hybrid_stages(plan: Plan, layers: Layers) -> tuple[str, ...]:
    if layers.mtp:
        raise InputError(
            "Megatron's hybrid pattern puts multi-token prediction behind the last stage's layers; that of a hybrid "
            "model cannot be written here",
            place="model",
        )
    letters = {name: letter for letter, name in HYBRID.items()}
    made = []
    for stage, (first, last) in enumerate(stage_layers(plan)):
        roles = [(layer, layers.role(layer)) for layer in range(first, last + 1)]
        made.append("".join(letters[layers.names[layer]] for layer, role in roles if role == "decoder"))
        if not made[-1]:
            held = " and ".join(role for _, role in roles)
            raise InputError(
                f"stage {stage} holds the {held} alone; in a hybrid pattern they go with the first and the last layers",
                place="partition",
                right="keep_together for the first two and the last two layers",
            )
    return tuple(made)


def _steps(line: Timeline, device: int) -> list[Step]:
    """Return a device's order with every W where its B is, or complain about the first that is not."""
    made: list[Step] = []
    order = line.orders[device]
    for position, op in enumerate(order):
        if op.kind != "W":
            made.append((op.kind, op.stage, op.microbatch))
            continue
        before = order[position - 1] if position else None
        if before is None or (before.kind, before.stage, before.microbatch) != ("B", op.stage, op.microbatch):
            raise InputError(
                f"Megatron's backward is fused; the plan runs W of stage {op.stage}, microbatch {op.microbatch} "
                "apart from its B",
                place="ops",
                right="--layout-only for partition and placement alone, or training.split_backward: false",
            )
    return made


def _group(plan: Plan, ranks: int, chunks: int) -> int:
    """Return the group size whose order is the plan's.

    Raises
    ------
    InputError
        There is none.
    """
    line = timeline(plan)
    own = [_steps(line, device) for device in range(ranks)]
    # Microbatches are alike: what counts is the order up to their names, and rank 0 names them.
    names = {m: n for n, m in enumerate(op.microbatch for op in line.orders[0] if (op.kind, op.stage) == ("F", 0))}
    own = [[(kind, stage, names[m]) for kind, stage, m in steps] for steps in own]
    best: tuple[int, str] = (-1, "")
    for group in group_sizes(ranks, chunks, line.microbatches):
        theirs = orders(ranks, chunks, line.microbatches, group)
        if theirs == own:
            return group
        for device, (one, other) in enumerate(zip(own, theirs, strict=True)):
            if one != other:
                at = next(place for place, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])
                said = (
                    f"Megatron's order is fixed; on device {device} its op {at + 1} is {_name(other[at])}"
                    f"{f' (groups of {group})' if chunks > 1 else ''}, the plan's {_name(one[at])}"
                )
                best = max(best, (at, said), key=lambda found: found[0])
                break
    raise InputError(best[1], place="ops", right="--layout-only for partition and placement alone")


def _name(step: Step) -> str:
    kind, stage, microbatch = step
    return f"{kind} of stage {stage}, microbatch {microbatch}"
