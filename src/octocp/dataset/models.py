"""Models for a data set's instances: published profiles cut down, architectures priced by formula, random mixes.

Every number comes from whole-number arithmetic and a `Stream`, so that it is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octocp.dataset.draws import Stream
from octocp.dataset.spec import Architectures, Family, Mixes, Profiles
from octocp.schema.model import ModelSpec

Model = dict[str, Any]
Axes = Mapping[str, Any]

# The architectures' arithmetic: 400 TFLOP/s sustained, 2 TB/s, 16 bytes of state per weight.
FLOPS_PER_TENTH_US = 40_000_000
BYTES_PER_TENTH_US = 200_000
STATE_BYTES = 16
STATES = 128
ACTIVE_EXPERTS = 2


def draw_model(family: Family, axes: Axes, stream: Stream, models: Mapping[str, ModelSpec]) -> Model:
    """Return the model of an instance as plain data, with all costs in `kinds`."""
    if isinstance(family, Profiles):
        return _profile(axes, stream, models[axes["models"]])
    if isinstance(family, Architectures):
        return _architecture(axes)
    assert isinstance(family, Mixes)
    return _mix(axes, stream)


def layer_kinds(model: Model) -> list[dict[str, Any]]:
    """Return the costs of every layer, first to last."""
    return [model["kinds"][kind] for kind in model["layers"]]


# ---- published profiles ----------------------------------------------------------------------


def _profile(axes: Axes, stream: Stream, model: ModelSpec) -> Model:
    """Return a run of a profile's blocks between its ends; an end is a layer whose kind occurs only there.

    Sizes that a profile lacks are made up, for limits to mean something: a block keeps 1 GB until B and a part of it
    until W, and hands on 32 MB.
    """
    name = stream.choice(list(model.profiles)) if model.profiles else None
    chosen = model.flattened(name)
    layers = chosen.layer_kinds()
    first = int(layers.count(layers[0]) == 1)
    last = len(layers) - int(layers.count(layers[-1]) == 1)
    length = min(axes["blocks"], last - first)
    begin = first + stream.below(last - first - length + 1)
    kept = [*layers[:first], *layers[begin : begin + length], *layers[last:]]
    kinds = {kind: chosen.kinds[kind].model_dump(exclude_defaults=True) for kind in dict.fromkeys(kept)}
    ends = {*layers[:first], *layers[last:]}
    part = stream.choice([0.0, 0.25, 0.5, 1.0])
    if not any("activation_gb" in costs for costs in kinds.values()):
        for kind in kinds.keys() - ends:
            kinds[kind] |= {"activation_gb": 1.0} | ({"weight_activation_gb": part} if part else {})
    if not any("output_mb" in costs for costs in kinds.values()):
        for costs in kinds.values():
            costs["output_mb"] = 32.0
    provenance = chosen.provenance.model_dump(exclude_defaults=True)
    title = model.name if name is None else f"{model.name}, profile {name}"
    note = f"{len(kept)} of the {len(layers)} layers: blocks {begin - first} to {begin - first + length - 1} and ends"
    return {
        "name": model.name,
        "description": f"{title}; {note}",
        "layers": kept,
        "kinds": kinds,
        "provenance": provenance,
    }


# ---- architectures ---------------------------------------------------------------------------


def _architecture(axes: Axes) -> Model:
    archetype, blocks = axes["archetype"], axes["blocks"]
    hidden, tokens, vocabulary, experts = axes["hidden"], axes["sequence"], axes["vocabulary"], axes["experts"]
    dense = max(1, blocks // 8)
    pattern = {
        "dense": ["T"] * blocks,
        "moe": ["T"] * dense + ["#"] * (blocks - dense),
        "moe-alternating": ["T#"[place % 2] for place in range(blocks)],
        "hybrid": ["M-M-M*-"[place % 7] for place in range(blocks)],
        "hybrid-moe": ["M#M-M#*-"[place % 8] for place in range(blocks)],
    }[archetype]
    expert = 3 * hidden * (hidden if archetype == "hybrid-moe" else 7 * hidden // 4)
    attention, scores = 4 * hidden * hidden, 2 * tokens * tokens * hidden
    mlp = 3 * hidden * (7 * hidden // 2)
    router = hidden * experts
    # Per kind: weights in use, weights held, operations that have no weights, values kept per token for B and for W.
    shapes = {
        "T": (attention + mlp, attention + mlp, scores, 20 * hidden, 14 * hidden),
        "#": (
            (attention if archetype.startswith("moe") else 0) + router + ACTIVE_EXPERTS * expert,
            (attention if archetype.startswith("moe") else 0) + router + experts * expert,
            scores if archetype.startswith("moe") else 0,
            24 * hidden,
            16 * hidden,
        ),
        "M": (6 * hidden * hidden, 6 * hidden * hidden, 12 * tokens * hidden * STATES, 10 * hidden, 6 * hidden),
        "-": (mlp, mlp, 0, 12 * hidden, 9 * hidden),
        "*": (attention, attention, scores, 6 * hidden, 4 * hidden),
    }
    names = {"T": "transformer", "#": "moe", "M": "mamba", "-": "mlp", "*": "attention", "E": "embedding", "L": "head"}
    made: dict[str, dict[str, Any]] = {}
    for kind in dict.fromkeys(pattern):
        used, held, unweighted, kept, kept_for_weights = shapes[kind]
        made[kind] = _costs(
            forward=2 * used * tokens + unweighted,
            backward=2 * used * tokens + 2 * unweighted,
            weight=2 * used * tokens,
            held=held,
            kept=2 * tokens * kept,
            kept_for_weights=2 * tokens * kept_for_weights,
        )
    lookup = -(-4 * tokens * hidden // BYTES_PER_TENTH_US)
    embedding = {"forward_ms": lookup / 10_000, "backward_weight_ms": lookup / 10_000}
    embedding["static_gb"] = -(-STATE_BYTES * vocabulary * hidden // 10**6) / 1000
    head = 2 * vocabulary * hidden * tokens
    made["L"] = _costs(
        forward=head,
        backward=head,
        weight=head,
        held=vocabulary * hidden,
        kept=4 * tokens * (hidden + vocabulary),
        kept_for_weights=2 * tokens * (hidden + vocabulary),
    )
    kinds = {"E": embedding, **made}
    for kind, costs in kinds.items():
        costs["name"] = names[kind]
        if kind != "L":
            costs["output_mb"] = -(-2 * tokens * hidden // 1000) / 1000
    experts_told = f", {experts} experts of which {ACTIVE_EXPERTS} are active" if "moe" in archetype else ""
    return {
        "name": f"{archetype}-{blocks}x{hidden}",
        "description": (
            f"{archetype}: {blocks} blocks, hidden size {hidden}, vocabulary {vocabulary}, {tokens} tokens"
            + experts_told
        ),
        "layers": ["E", *pattern, "L"],
        "kinds": kinds,
        "provenance": {
            "kind": "derived",
            "source": "costs by formula from the sizes, octocp.dataset.models",
            "hardware": "assumed: 400 TFLOP/s sustained, 2 TB/s",
        },
    }


def _costs(*, forward: int, backward: int, weight: int, held: int, kept: int, kept_for_weights: int) -> dict[str, Any]:
    """Return a kind from operations, weights and bytes: times to 0.1 us, sizes to 1 MB, both rounded up."""
    times = {"forward_ms": forward, "backward_input_ms": backward, "backward_weight_ms": weight}
    sizes = {"static_gb": STATE_BYTES * held, "activation_gb": kept, "weight_activation_gb": kept_for_weights}
    found: dict[str, Any] = {key: -(-count // FLOPS_PER_TENTH_US) / 10_000 for key, count in times.items()}
    return found | {key: -(-count // 10**6) / 1000 for key, count in sizes.items()}


# ---- random mixes ----------------------------------------------------------------------------


def _mix(axes: Axes, stream: Stream) -> Model:
    """Return random layers; costs are whole ticks, from `base` up to `heterogeneity` percent more."""
    count = min(axes["kinds"], axes["layers"])
    names = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"[:count]
    base = stream.between(4, 20)

    def spread(least: int) -> int:
        return least + stream.below(least * axes["heterogeneity"] // 100 + 1)

    kinds: dict[str, dict[str, Any]] = {}
    ratio_b, ratio_w = stream.between(60, 200), stream.between(0, 120)
    for name in names:
        ticks = {
            "forward_ms": spread(base),
            "backward_input_ms": max(1, spread(base) * ratio_b // 100),
            "backward_weight_ms": spread(base) * ratio_w // 100,
        }
        costs: dict[str, Any] = {key: ticks * axes["tick_us"] / 1000 for key, ticks in ticks.items()}
        activation = max(1, spread(4))
        costs |= {
            "static_gb": stream.between(0, 8) / 4,
            "activation_gb": activation / 4,
            "weight_activation_gb": stream.between(0, activation) / 4,
            "output_mb": float(stream.between(4, 16)),
        }
        kinds[name] = costs
    layers = [*names, *(stream.choice(names) for _ in range(axes["layers"] - count))]
    return {"name": "mix", "layers": stream.shuffled(layers), "kinds": kinds}
