"""Random stage rules, memory limits and links of an instance; whole numbers and a `Stream` only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate, pairwise
from typing import Any

from octocp.dataset.draws import Stream

Axes = Mapping[str, Any]


@dataclass(frozen=True)
class Shape:
    """What the rules of an instance come to.

    Attributes
    ----------
    rules : dict
        The ``stages`` of the instance.
    stages : int
        The most stages that they allow.
    """

    rules: dict[str, Any]
    stages: int


def draw_stages(axes: Axes, layers: int, stream: Stream) -> Shape | None:
    """Return rules for partition and placement, or None where the axes contradict each other."""
    devices, per_device = axes["devices"], axes["max_per_device"]
    together = _together(axes["keep_together"], layers, devices, stream)
    if together is None:
        return None
    begins = [layer for layer in range(1, layers) if not any(first < layer <= last for first, last in together)]
    units = len(begins) + 1
    if units < devices:
        return None
    placement = axes["placement"]
    most = devices if placement == "linear" else min(units, devices * per_device)
    rules: dict[str, Any] = {"max_per_device": per_device}
    if placement == "given":
        most = stream.between(devices, most)
        placed = [*range(devices)]
        for _ in range(most - devices):
            placed.append(stream.choice([device for device in range(devices) if placed.count(device) < per_device]))
        rules["placement"] = stream.shuffled(placed)
    elif placement != "free":
        rules["placement"] = placement
    if axes["partition"] == "given":
        if placement != "given":
            most = stream.between(devices, most)
        cuts = [0, *sorted(stream.sample(begins, most - 1)), layers]
        rules["partition"] = [end - begin for begin, end in pairwise(cuts)]
    elif placement in ("interleaved", "wave") and stream.chance(50):
        rules["count"] = most
    if together:
        rules["keep_together"] = together
    if axes["colocate"] != "none":
        if devices > 1 and (per_device == 1 or most == devices):
            return None
        rules["colocate"] = [[0, layers - 1] if axes["colocate"] == "ends" else sorted(stream.sample(range(layers), 2))]
    return Shape(rules, most)


def _together(how: str, layers: int, devices: int, stream: Stream) -> list[list[int]] | None:
    """Return the runs of layers that are not cut; None where too few cuts would be left."""
    if how == "none":
        return []
    spare = layers - devices
    if how == "ends":
        return [[0, 1], [layers - 2, layers - 1]] if spare >= 2 and layers >= 4 else None
    if spare < 1:
        return None
    first = stream.below(layers - 1)
    return [[first, min(layers - 1, first + stream.between(1, min(3, spare)))]]


# ---- memory ----------------------------------------------------------------------------------


def draw_limits(axes: Axes, kinds: Sequence[Mapping[str, Any]], shape: Shape, stream: Stream) -> list[float | None]:
    """Return every device's limit in GB; whole megabytes.

    Limits lie between what the best split into one run of layers per device needs with one microbatch in flight and
    with as many as 1F1B holds (`_need`).
    """
    devices, how = axes["devices"], axes["memory"]
    if how == "none":
        return [None] * devices
    flight = max(1, min(axes["microbatches"], devices))
    split = axes["split_backward"]
    least, most = (_need(kinds, devices, shape, held, split) for held in (1, flight))
    spare = max(most - least, least // 20)
    shares = {"tight": (0, 35), "loose": (50, 110), "uneven": (0, 120), "some": (10, 70)}[how]

    def limit() -> float | None:
        return (least + spare * stream.between(*shares) // 100) / 1000

    if how in ("tight", "loose"):
        return [limit()] * devices
    limits = [limit() for _ in range(devices)]
    if how == "some":
        left_out = stream.sample(range(devices), max(1, devices // 2))
        limits = [None if device in left_out else limit for device, limit in enumerate(limits)]
    return limits


def _megabytes(costs: Mapping[str, Any], key: str) -> int:
    return int(-(-Decimal(repr(costs.get(key, 0.0))) * 1000 // 1))


def _need(kinds: Sequence[Mapping[str, Any]], devices: int, shape: Shape, held: int, split: bool) -> int:
    """Return megabytes of the device that needs most when each holds one run of layers, cut as evenly as can be.

    A given partition and placement are taken as they are.
    """
    sizes = []
    for costs in kinds:
        kept = _megabytes(costs, "activation_gb")
        if split:
            kept = max(kept, _megabytes(costs, "weight_activation_gb"))
        sizes.append(_megabytes(costs, "static_gb") + held * kept)
    total = [0, *accumulate(sizes)]
    rules = shape.rules
    if "partition" in rules:
        bounds: list[int] = [0, *accumulate(rules["partition"])]
        loads = [total[end] - total[begin] for begin, end in pairwise(bounds)]
        placement: Any = rules.get("placement")
        if isinstance(placement, list):
            return max(sum(load for load, at in zip(loads, placement, strict=True) if at == d) for d in range(devices))
        return max(*loads, total[-1] // devices)
    # Least largest sum over splits into `devices` runs, by dynamic programming over prefixes.
    best = [0] + [10**30] * len(sizes)
    for _ in range(devices):
        best = [10**30] + [
            min(max(best[begin], total[end] - total[begin]) for begin in range(end)) for end in range(1, len(total))
        ]
    return best[-1]


# ---- links -----------------------------------------------------------------------------------


def draw_links(axes: Axes, kinds: Sequence[Mapping[str, Any]], stream: Stream) -> tuple[dict[str, Any], list[int]]:
    """Return the ``link`` of the cluster and every device's node; delays are up to about one layer's forward."""
    how, devices, tick = axes["links"], axes["devices"], axes["tick_us"]
    if how == "none" or devices == 1:
        return {}, []
    forward = sum(int(Decimal(repr(costs.get("forward_ms", 0.0))) * 1000) for costs in kinds) // len(kinds)
    carried = max(_megabytes(costs, "output_mb") // 1000 for costs in kinds)
    ceiling = max(1, forward // tick)

    def latency(most: int) -> float:
        # Off the time grid now and then: delays round up.
        return float(stream.between(1, max(1, most)) * tick - (tick // 2 if stream.chance(30) else 0))

    def bandwidth() -> float:
        # MB over us is TB/s; in tenths of GB/s, a transfer takes from a tenth of a layer's forward to all of it.
        return max(1, carried * 10_000 // max(1, forward * stream.between(10, 100) // 100)) / 10

    if how == "nodes":
        near = {"latency_us": latency(max(1, ceiling // 4))}
        far = {"latency_us": near["latency_us"] + latency(ceiling)}
        first = stream.between(1, devices - 1)
        return {"intra_node": near, "inter_node": far}, [int(device >= first) for device in range(devices)]
    link: dict[str, Any] = {}
    if how in ("latency", "both"):
        link["latency_us"] = latency(ceiling)
    if how in ("bandwidth", "both"):
        if not carried:
            return {"latency_us": latency(ceiling)}, []
        link["bandwidth_gb_s"] = bandwidth()
    return link, []
