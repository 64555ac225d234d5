"""TorchTitan's configuration: which modules each part of the model has, beside the CSV of the order.

Blocks are called ``layers.N``, the embedding ``tok_embeddings``, the head ``norm`` and ``output``, as in TorchTitan's
Llama models; a model that calls them something else needs other names.
"""

from __future__ import annotations

import json

from octocp.errors import InputError
from octocp.report.export import torch_csv
from octocp.report.units import device_count, printable, stage_layers
from octocp.runtimes.layers import layers_of
from octocp.runtimes.torchtitan import CSV
from octocp.schema import Plan

EMBEDDING, HEAD = ("tok_embeddings",), ("norm", "output")


def export(plan: Plan, schedule: str) -> bytes:
    """Return the configuration (TOML).

    Parameters
    ----------
    schedule : str
        The file of the order, which `octocp.report.export.torch_csv.export` writes.

    Raises
    ------
    InputError
        TorchTitan cannot run the plan: its placements are the loop and the V with two stages on every rank.
    """
    schedule_class = _schedule_class(plan)
    lines = [
        f"# {printable(plan.instance.name)} ({printable(plan.method)}), planned by OctoCP.",
        "#",
        "# To use it, put this section into the configuration of your job in place of the one there, or give its keys",
        f"# as options: --{CSV} {printable(schedule)}, and so on.",
        "# TorchTitan looks for the CSV from the folder in which it is started: if that is another, give a whole path.",
        "# The modules are those of TorchTitan's Llama models. Other models may have other names for them: those of",
        "# model.named_children(), with layers.N for the N-th of the blocks.",
        f"# Microbatches in a step: {len(plan.instance.lengths())}, that is training.local_batch_size / the size here.",
        "# octocp import FILE INSTANCE reads this and the CSV beside it; octocp check --runtime FILE checks both.",
        "[parallelism]",
        f"pipeline_parallel_degree = {device_count(plan)}",
        "# Only says where the stages are; what each rank runs is in the CSV.",
        f'pipeline_parallel_schedule = "{schedule_class}"',
        f"pipeline_parallel_schedule_csv = {_quoted(schedule)}",
        "pipeline_parallel_microbatch_size = 1",
        "module_fqns_per_model_part = [",
        *(f"  {json.dumps(names)}," for names in module_names(plan)),
        "]",
    ]
    return ("\n".join(lines) + "\n").encode()


def _quoted(text: str) -> str:
    """Return a TOML string: as in JSON, but for pairs of surrogates and DEL."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{text!r} is a name that no TOML file can have", right="another file for -o") from None
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def module_names(plan: Plan) -> list[list[str]]:
    """Return the names of the modules of each stage.

    Raises
    ------
    InputError
        The model's layers are no whole blocks.
    """
    layers = layers_of(plan.instance.model)
    if layers.hybrid or layers.mtp:
        found = ", ".join(dict.fromkeys(layers.names))
        raise InputError(
            f"TorchTitan's layers.N is a whole block, and layers of this model are not ({found})", place="model"
        )
    made = []
    for first, last in stage_layers(plan):
        names: list[str] = []
        for layer in range(first, last + 1):
            role = layers.role(layer)
            if role == "embedding":
                names += EMBEDDING
            elif role == "loss":
                names += HEAD
            else:
                names.append(f"layers.{layer - layers.embedding}")
        made.append(names)
    # What the model leaves out because it costs nothing is there all the same.
    if not layers.embedding:
        made[0] = [*EMBEDDING, *made[0]]
    if not layers.head:
        made[-1] += HEAD
    return made


def _schedule_class(plan: Plan) -> str:
    """Return the schedule whose placement of stages is the plan's."""
    ranks, placement = device_count(plan), plan.placement
    loop = [stage % ranks for stage in range(len(placement))]
    if placement == loop and len(placement) % ranks == 0:
        return "PipelineScheduleSingle" if len(placement) == ranks else "PipelineScheduleMulti"
    if placement == [*range(ranks), *reversed(range(ranks))]:
        return "ZBVZeroBubble"
    raise InputError(
        "TorchTitan places stages in a loop, the same number on every rank, or in a V with two on every rank; "
        f"the plan has {placement}",
        place="placement",
        right="stages.placement: interleaved, or wave with stages.count twice the devices",
    )


def notes(plan: Plan) -> list[str]:
    """Return what differs in TorchTitan from the plan."""
    return ["pipeline_parallel_microbatch_size is 1: set your own", *torch_csv.notes(plan)]
