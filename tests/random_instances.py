"""Random tiny instances that together cover every feature of the format; deterministic by seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from octocp.schema import Instance, LinkByNode

MAX_STAGES = 4


def random_instance(seed: int, max_ops: int = 36) -> Instance:
    """Return the instance of a seed.

    It has 1 to 3 devices, at most 6 layers, 4 stages and 3 microbatches, and at most `max_ops` ops
    whatever the number of stages chosen. Memory limits are drawn so that they often bite; some
    instances are infeasible, none is contradictory.

    Ops of length zero never come with a weight activation larger than the activation, and no layer
    has both F and B of length zero: there, devices can profit from waiting until such ops coincide,
    which the oracle refuses.
    """
    draw = random.Random(f"octocp {seed}")
    devices = draw.choices([1, 2, 3], [15, 45, 40])[0]
    devices = min(devices, max(1, max_ops // 2))
    layers = max(draw.randint(devices, 6), draw.randint(devices, 6))
    together = _keep_together(draw, layers, devices)
    units = layers - sum(last - first for first, last in together)
    split = draw.random() < 0.65 and 3 * devices <= max_ops
    per_stage = 3 if split else 2
    stages, most = _stages(draw, layers, units, devices, together, min(MAX_STAGES, max_ops // per_stage))
    microbatches = min(draw.choices([1, 2, 3], [15, 30, 55])[0], max(1, max_ops // (per_stage * most)))
    kinds = _kinds(draw, "ABCDEF"[: draw.randint(1, layers)], split)
    symbols = draw.choices(list(kinds), k=layers)
    data: dict[str, Any] = {
        "format": "octocp.instance/1",
        "name": f"random-{seed}",
        "model": {"name": "random", "layers": "".join(symbols), "kinds": kinds},
        "cluster": _cluster(draw, devices, [kinds[symbol] for symbol in symbols], microbatches),
        "microbatches": microbatches,
        "training": {
            "split_backward": split,
            "op_overhead_us": draw.choices([0, 10, 20, 3, 12.5], [70, 8, 6, 8, 8])[0],
        },
        "stages": stages,
        "objective": draw.choices(["makespan", "span"], [60, 40])[0],
        "tick_us": 10,
    }
    return Instance.model_validate(data)


def _keep_together(draw: random.Random, layers: int, devices: int) -> list[list[int]]:
    """Up to two ranges that leave at least as many indivisible runs as devices."""
    ranges: list[list[int]] = []
    spare = layers - devices
    start = 0
    for _ in range(draw.choices([0, 1, 2], [65, 25, 10])[0]):
        if spare < 1 or start > layers - 2:
            break
        first = draw.randint(start, layers - 2)
        last = min(layers - 1, first + draw.randint(1, min(2, spare)))
        ranges.append([first, last])
        spare -= last - first
        start = last + 1
    return ranges


def _stages(
    draw: random.Random, layers: int, units: int, devices: int, together: list[list[int]], limit: int
) -> tuple[dict[str, Any], int]:
    """Return the rules for stages and the largest number of stages that they allow, at most `limit`."""
    placement: Any = draw.choices(["free", "linear", "interleaved", "wave", "list"], [50, 12, 12, 12, 14])[0]
    per_device = draw.choice([1, 2, 2, 3, 4, None])
    largest = min(units, devices * (per_device or units), limit)
    count = None
    if placement == "linear":
        largest = devices
    elif placement == "list":
        count = draw.randint(devices, largest)
        others = [draw.randrange(devices) for _ in range(count - devices)]
        placement = [*range(devices), *others]
        draw.shuffle(placement)
        per_device = None if per_device is None else max(per_device, *map(placement.count, range(devices)))
        largest = count
    if placement != "linear" and count is None:
        unlimited = min(units, devices * (per_device or units))
        if unlimited > limit or draw.random() < 0.25:
            count = draw.randint(devices, largest)
            largest = count
    rules: dict[str, Any] = {"placement": placement, "max_per_device": per_device, "keep_together": together}
    if draw.random() < 0.25:
        begins = [layer for layer in range(1, layers) if not any(first < layer <= last for first, last in together)]
        size = count if count is not None else draw.randint(devices, largest)
        cuts = [0, *sorted(draw.sample(begins, size - 1)), layers]
        rules["partition"] = [end - begin for begin, end in pairwise(cuts)]
        largest = size
    elif count is not None and (not isinstance(placement, list) or draw.random() < 0.5):
        rules["count"] = count
    fixed = isinstance(placement, list) and "partition" in rules
    if layers > 1 and not fixed and draw.random() < 0.15:
        rules["colocate"] = [sorted(draw.sample(range(layers), 2))]
    return rules, largest


def _kinds(draw: random.Random, names: str, split: bool) -> dict[str, dict[str, float]]:
    """Return the costs by kind; sizes are quarters of a gigabyte, so that sums are often equal."""
    zeros = draw.random() < 0.25
    heavy_weights = not zeros and draw.random() < 0.15
    fractions = draw.random() < 0.2
    kinds: dict[str, dict[str, float]] = {}
    for name in names:
        ticks = [draw.randint(1, 9), draw.randint(1, 9), draw.randint(0 if zeros else 1, 6)]
        if zeros and draw.random() < 0.6:
            ticks[draw.randrange(2)] = 0
        costs = {
            key: count / 100 + (draw.choice([0, 0.003, 0.005]) if fractions and count else 0)
            for key, count in zip(("forward_ms", "backward_input_ms", "backward_weight_ms"), ticks, strict=True)
        }
        activation = draw.choice([0, 1, 2, 3, 4])
        weight = draw.randint(0, 2 * activation) if heavy_weights else draw.randint(0, activation)
        costs["activation_gb"] = activation / 4
        costs["weight_activation_gb"] = weight / 4
        costs["static_gb"] = draw.choice([0, 0, 1, 2]) / 4
        costs["output_mb"] = draw.choice([0, 0.008, 0.02, 0.05])
        kinds[name] = costs
    return kinds


def _cluster(draw: random.Random, devices: int, layers: list[dict[str, float]], microbatches: int) -> dict[str, Any]:
    """Return devices, links and memory limits."""

    def link() -> dict[str, Any]:
        bandwidth = draw.choice([None, None, 1, 2.5])
        return {"latency_us": draw.choice([0, 10, 14, 30]), "bandwidth_gb_s": bandwidth}

    def limit() -> float:
        static = sum(costs["static_gb"] for costs in layers)
        largest = max(costs["activation_gb"] + costs["static_gb"] for costs in layers)
        activation = sum(costs["activation_gb"] for costs in layers)
        share = (static * draw.uniform(1, 1.6) + activation * draw.uniform(0.6, microbatches + 0.5)) / devices
        return round(max(share, largest * draw.uniform(0.9, 1.5)), 2)

    cluster: dict[str, Any] = {"devices": devices}
    how = draw.choices(["none", "same", "each"], [40, 35, 25])[0]
    nodes = devices > 1 and draw.random() < 0.25
    if how == "each" or nodes:
        cluster["devices"] = [{"node": draw.randrange(2) if nodes else 0} for _ in range(devices)]
    if how == "same":
        cluster["memory_gb"] = limit()
    if how == "each":
        for device in cluster["devices"]:
            if draw.random() < 0.75:
                device["memory_gb"] = limit()
    if nodes:
        cluster["link"] = {"intra_node": link(), "inter_node": link()}
    elif draw.random() < 0.5:
        cluster["link"] = link()
    return cluster


# ---- which features an instance has ----------------------------------------------------------


def _links(instance: Instance) -> list[Any]:
    link = instance.cluster.link
    return [link.intra_node, link.inter_node] if isinstance(link, LinkByNode) else [link]


def _kinds_used(instance: Instance) -> list[Any]:
    return [instance.model.kinds[kind] for kind in instance.model.layer_kinds()]


def _device_list_nodes(instance: Instance) -> set[int]:
    return {device.node for device in instance.cluster.device_list()}


def _limits(instance: Instance) -> list[float]:
    return [d.memory_gb for d in instance.cluster.device_list() if d.memory_gb is not None]


FEATURES: dict[str, Callable[[Instance], bool]] = {
    **{f"{n} devices": lambda i, n=n: len(i.cluster.device_list()) == n for n in (1, 2, 3)},
    **{f"{n} microbatches": lambda i, n=n: i.microbatches == n for n in (1, 2, 3)},
    **{f"objective {name}": lambda i, name=name: i.objective == name for name in ("makespan", "span")},
    **{
        f"placement {name}": lambda i, name=name: i.stages.placement == name
        for name in ("free", "linear", "interleaved", "wave")
    },
    "placement list": lambda i: isinstance(i.stages.placement, list),
    "split": lambda i: i.training.split_backward,
    "fused": lambda i: not i.training.split_backward,
    "free partition": lambda i: i.stages.partition is None,
    "fixed partition": lambda i: i.stages.partition is not None,
    "fixed count": lambda i: i.stages.count is not None,
    "max_per_device": lambda i: i.stages.max_per_device is not None and i.stages.max_per_device < 3,
    "no max_per_device": lambda i: i.stages.max_per_device is None,
    "keep_together": lambda i: bool(i.stages.keep_together),
    "colocate": lambda i: bool(i.stages.colocate),
    "latency": lambda i: any(link.latency_us for link in _links(i)),
    "bandwidth": lambda i: any(link.bandwidth_gb_s for link in _links(i)),
    "link by node": lambda i: isinstance(i.cluster.link, LinkByNode) and len(_device_list_nodes(i)) > 1,
    "no link delay": lambda i: not any(link.latency_us or link.bandwidth_gb_s for link in _links(i)),
    "no memory limit": lambda i: not _limits(i),
    "memory limit": lambda i: bool(_limits(i)),
    "unequal memory limits": lambda i: len(set(_limits(i))) > 1,
    "memory limit on some devices": lambda i: 0 < len(_limits(i)) < len(i.cluster.device_list()),
    "static memory": lambda i: any(kind.static_gb for kind in _kinds_used(i)),
    "activation": lambda i: any(kind.activation_gb for kind in _kinds_used(i)),
    "weight activation": lambda i: (
        i.training.split_backward and any(kind.weight_activation_gb for kind in _kinds_used(i))
    ),
    "weight activation above activation": lambda i: (
        i.training.split_backward and any(kind.weight_activation_gb > kind.activation_gb for kind in _kinds_used(i))
    ),
    "zero length": lambda i: (
        not i.training.op_overhead_us and any(0 in (kind.forward_ms, kind.backward_input_ms) for kind in _kinds_used(i))
    ),
    "zero length W": lambda i: (
        i.training.split_backward
        and not i.training.op_overhead_us
        and any(kind.backward_weight_ms == 0 for kind in _kinds_used(i))
    ),
    "overhead": lambda i: i.training.op_overhead_us > 0,
    "overhead off the grid": lambda i: i.training.op_overhead_us % i.tick_us != 0,
}


def features(instance: Instance) -> set[str]:
    """Return the names of the features that an instance has."""
    return {name for name, has in FEATURES.items() if has(instance)}


def seeds_by_feature(seeds: Iterable[int], max_ops: int = 36) -> dict[str, list[int]]:
    """Return, for every feature, the seeds whose instance has it."""
    found: dict[str, list[int]] = {name: [] for name in FEATURES}
    for seed in seeds:
        for name in features(random_instance(seed, max_ops)):
            found[name].append(seed)
    return found
