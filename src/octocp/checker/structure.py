"""Partition, placement, recompute and the set of ops: everything of a plan but its times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from octocp.checker.violations import MAX_LINES, Violations, name_device, name_of, name_op, number, numbers
from octocp.schema import Plan, PlanOp

OpKey = tuple[str, int, int]


def check_header(plan: Plan, found: Violations) -> None:
    """Check that the plan speaks of the same objective and time grid as its instance."""
    instance = plan.instance
    if plan.objective != instance.objective:
        found.add("objective", f"the plan says {plan.objective}; its instance says {instance.objective}")
    if plan.tick_us != instance.tick_us:
        found.add("tick_us", f"the plan says {plan.tick_us}; its instance says {instance.tick_us}")


def check_partition(plan: Plan, found: Violations) -> None:
    """Check that the stages cut the layers exactly, in an admitted number, and cut no block to keep."""
    instance, rules = plan.instance, plan.instance.stages
    layers, devices, count = (
        len(instance.model.layer_kinds()),
        len(instance.cluster.device_list()),
        len(plan.partition),
    )
    total = sum(plan.partition)
    for stage, size in enumerate(plan.partition):
        if size < 1:
            found.add("partition", f"stage {stage} has {number(size)} layers; every stage needs at least one")
    if total != layers:
        off = number(abs(total - layers))
        word = "more" if total > layers else "fewer"
        found.add("partition", f"the stages hold {number(total)} layers, {off} {word} than the model's {layers}")
    if rules.count is not None and count != rules.count:
        found.add("partition", f"{count} stages; stages.count asks for {rules.count}")
    if rules.partition is not None and plan.partition != rules.partition:
        differs = next(
            (s for s, (is_, wanted) in enumerate(zip(plan.partition, rules.partition, strict=False)) if is_ != wanted),
            min(count, len(rules.partition)),
        )
        found.add(
            "partition",
            f"{numbers(plan.partition)} differs from stages.partition {numbers(rules.partition)}, "
            f"first at stage {differs}",
        )
    if count < devices:
        found.add("partition", f"{count} stages for {devices} devices; {devices - count} too few")
    if rules.max_per_device is not None and count > devices * rules.max_per_device:
        limit = devices * rules.max_per_device
        found.add("partition", f"{count} stages; {devices} devices x {rules.max_per_device} admit {limit}")
    if count > layers:
        found.add("partition", f"{count} stages for {layers} layers; {count - layers} too many")
    if total == layers:
        stage_of = layer_stages(plan)
        for first, last in rules.keep_together:
            if stage_of[first] != stage_of[last]:
                found.add(
                    "partition",
                    f"layers {first} to {last} must stay together; they are in stages "
                    f"{stage_of[first]} to {stage_of[last]}",
                    stage_of[last] - stage_of[first],
                )


def layer_stages(plan: Plan) -> list[int]:
    """Return the stage of each layer; the partition must fit the model."""
    return [stage for stage, size in enumerate(plan.partition) for _ in range(size)]


def family_device(family: str, stage: int, devices: int) -> int:
    """Return the device on which a placement family puts a stage."""
    chunk, position = divmod(stage, devices)
    if family == "linear":
        return stage
    return devices - 1 - position if family == "wave" and chunk % 2 else position


def check_placement(plan: Plan, found: Violations) -> None:
    """Check that stages are on existing devices, by the instance's rules, and no device is without."""
    instance, rules = plan.instance, plan.instance.stages
    devices, count, placement = len(instance.cluster.device_list()), len(plan.partition), plan.placement
    if len(placement) != count:
        found.add("placement", f"names a device for {len(placement)} stages; the partition has {count}")
    for stage, device in enumerate(placement):
        if not 0 <= device < devices:
            found.add("placement", f"stage {stage} is on device {number(device)}; devices are 0..{devices - 1}")
    if rules.placement == "linear" and count != devices:
        found.add("placement", f"linear needs as many stages as devices: {count} stages, {devices} devices")
    if rules.placement != "free":
        for stage, device in enumerate(placement):
            if isinstance(rules.placement, list):
                wanted = rules.placement[stage] if stage < len(rules.placement) else None
                rule = "stages.placement"
            else:
                wanted, rule = family_device(rules.placement, stage, devices), f"placement {rules.placement}"
            if wanted is not None and device != wanted:
                found.add(
                    "placement",
                    f"stage {stage} is on device {number(device)}; {rule} puts it on device {wanted}",
                )
        if isinstance(rules.placement, list) and len(rules.placement) != len(placement):
            found.add("placement", f"has {len(placement)} stages; stages.placement has {len(rules.placement)}")
    held = Counter(placement)
    for device in range(devices):
        if not held[device]:
            found.add("placement", f"{name_device(plan, device)} holds no stage; every device needs at least one")
        elif rules.max_per_device is not None and held[device] > rules.max_per_device:
            found.add(
                "placement",
                f"{name_device(plan, device)} holds {held[device]} stages; max_per_device is {rules.max_per_device}",
                held[device] - rules.max_per_device,
            )
    if rules.colocate and sum(plan.partition) == len(instance.model.layer_kinds()):
        stage_of = layer_stages(plan)
        for group in rules.colocate:
            used = sorted({placement[stage_of[layer]] for layer in group if stage_of[layer] < len(placement)})
            if len(used) > 1:
                found.add(
                    "placement",
                    f"layers {numbers(group)} must share a device; they are on devices {numbers(used)}",
                    len(used),
                )


def check_recompute(plan: Plan, found: Violations) -> None:
    """Check that there is one recompute flag a stage, and it is what the instance asks for."""
    rule, count = plan.instance.training.recompute, len(plan.partition)
    if len(plan.recompute) != count:
        found.add("recompute", f"has a flag for {len(plan.recompute)} stages; the partition has {count}")
    if rule != "auto":
        for stage, flag in enumerate(plan.recompute):
            if flag != (rule == "full"):
                found.add("recompute", f"stage {stage} is marked {str(flag).lower()}; training.recompute is {rule}")


def expected_ops(plan: Plan) -> Iterator[OpKey]:
    """Yield every op that the plan must hold."""
    kinds = op_kinds(plan)
    for microbatch in range(len(plan.instance.lengths())):
        for stage in range(len(plan.partition)):
            for kind in kinds:
                yield kind, stage, microbatch


def op_kinds(plan: Plan) -> str:
    """Return the kinds of op that the instance has."""
    return "FBW" if plan.instance.training.split_backward else "FB"


def index_ops(plan: Plan) -> dict[OpKey, PlanOp]:
    """Index the ops that belong to the plan; of an op given twice, the first."""
    stages, microbatches, kinds = len(plan.partition), len(plan.instance.lengths()), op_kinds(plan)
    index: dict[OpKey, PlanOp] = {}
    for op in plan.ops:
        if op.kind in kinds and 0 <= op.stage < stages and 0 <= op.microbatch < microbatches:
            index.setdefault((op.kind, op.stage, op.microbatch), op)
    return index


def check_ops(plan: Plan, index: dict[OpKey, PlanOp], found: Violations) -> None:
    """Check that every op is there exactly once, is known and runs on its stage's device."""
    stages, microbatches, kinds = len(plan.partition), len(plan.instance.lengths()), op_kinds(plan)
    devices = len(plan.instance.cluster.device_list())
    expected = stages * microbatches * len(kinds)
    missing = expected - len(index)
    # A plan file can claim far more ops than it holds; only as many as are shown are ever looked for.
    shown = 0
    for key in expected_ops(plan) if missing else ():
        if key not in index:
            where = name_device(plan, plan.placement[key[1]]) if key[1] < len(plan.placement) else "no device"
            found.add("ops", f"{name_of(*key)} on {where} is missing ({missing} of {expected} ops are)")
            shown += 1
            if shown == min(missing, MAX_LINES):
                break
    if missing > shown:
        found.add_uncounted("ops", missing - shown)
    times = Counter((op.kind, op.stage, op.microbatch) for op in plan.ops)
    for key, count in times.items():
        if count > 1 and key in index:
            where = name_device(plan, index[key].device)
            found.add("ops given twice", f"{name_of(*key)} on {where} is there {count} times", count)
    for op in plan.ops:
        if op.kind not in kinds:
            found.add("ops unknown", f"{name_op(op)}: without split_backward, B carries W")
        elif op.stage >= stages or op.stage < 0:
            found.add("ops unknown", f"{name_op(op)}: stages are 0..{stages - 1}")
        elif op.microbatch >= microbatches or op.microbatch < 0:
            found.add("ops unknown", f"{name_op(op)}: microbatches are 0..{microbatches - 1}")
        if not 0 <= op.device < devices:
            found.add("device", f"{name_op(op)} is on device {number(op.device)}; devices are 0..{devices - 1}")
        elif op.stage < len(plan.placement) and op.device != plan.placement[op.stage]:
            found.add(
                "device",
                f"{name_op(op)} is on {name_device(plan, op.device)}; its stage is on "
                f"{name_device(plan, plan.placement[op.stage])}",
            )
