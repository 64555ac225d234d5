"""SimPipe's configuration (YAML): partition and placement. The order is its own dispatcher's.

SimPipe (github guojihu-hana/SimPipe) counts the layers between embedding and head: those two are always in the first
and the last stage.
"""

from __future__ import annotations

import json

from octocp.errors import InputError
from octocp.report.units import device_count, device_stages, printable, stage_layers
from octocp.runtimes.layers import layers_of
from octocp.schema import Plan


def export(plan: Plan) -> bytes:
    """Return the configuration.

    Raises
    ------
    InputError
        A stage has no layer between embedding and head, which SimPipe cannot say.
    """
    layers = layers_of(plan.instance.model)
    counts = []
    for stage, (first, last) in enumerate(stage_layers(plan)):
        count = sum(layers.role(layer) in ("decoder", "mtp") for layer in range(first, last + 1))
        if not count:
            raise InputError(
                f"stage {stage} holds no layer but the {layers.role(first)}; SimPipe counts the layers between "
                "embedding and head, and puts those into the first and the last stage",
                place="partition",
                right="keep_together for the first two and the last two layers",
            )
        counts.append(count)
    held = device_stages(plan)
    lines = [
        f"# {printable(plan.instance.name)} ({printable(plan.method)}), planned by OctoCP.",
        "# SimPipe dispatches the ops itself.",
        "profiled_data: true",
        "time_limit: 20000000",
        "model:",
        f"  name: {json.dumps(printable(plan.instance.model.name))}",
        "parallel:",
        f"  pp_size: {device_count(plan)}",
        f"  micro_batch_num: {len(plan.instance.lengths())}",
        f"  bwd_split: {str(plan.instance.training.split_backward).lower()}",
        "schedule: octopipe",
        f"partition_layers: {json.dumps(counts)}",
        "placement:",
        *(f"  - {json.dumps(stages)}" for stages in held),
        "tuning:",
        "  auto_tune: false",
    ]
    return ("\n".join(lines) + "\n").encode()


def notes(plan: Plan) -> list[str]:
    """Return what differs in SimPipe from the plan."""
    said = ["SimPipe dispatches the ops itself: only partition and placement are the plan's"]
    if any(device.memory_gb is not None for device in plan.instance.cluster.device_list()):
        said.append("SimPipe's dispatcher keeps no memory limit")
    return said
