"""Plans made by hand: a toy instance and a list scheduler of a few lines, apart from all of OctoCP's code.

The toy's times are whole ticks (tick_us 1000, times in whole ms), so no rounding hides in here.
"""

from __future__ import annotations

from math import ceil
from typing import Any

from octocp.schema import Instance, Plan

# Per kind: forward, backward input, backward weight (ms = ticks), and the sizes below.
TOY = {
    "format": "octocp.model/1",
    "name": "toy",
    "layers": "E AB AB L",
    "kinds": {
        "E": {
            "forward_ms": 1,
            "backward_input_ms": 0,
            "backward_weight_ms": 2,
            "static_gb": 3.0,
            "output_mb": 4000,
        },
        "A": {
            "forward_ms": 4,
            "backward_input_ms": 5,
            "backward_weight_ms": 3,
            "static_gb": 1.0,
            "activation_gb": 0.5,
            "weight_activation_gb": 0.25,
            "output_mb": 2000,
        },
        "B": {
            "forward_ms": 6,
            "backward_input_ms": 7,
            "backward_weight_ms": 4,
            "static_gb": 2.0,
            "activation_gb": 0.75,
            "weight_activation_gb": 0.5,
            "output_mb": 3000,
        },
        "L": {
            "forward_ms": 3,
            "backward_input_ms": 4,
            "backward_weight_ms": 2,
            "static_gb": 3.0,
            "activation_gb": 1.0,
        },
    },
}
LAYERS = 6


def toy_instance(**changes: Any) -> Instance:
    """Return the toy instance; `changes` replace keys, inner ones as in `cluster__devices`."""
    data: dict[str, Any] = {
        "format": "octocp.instance/1",
        "name": "toy-p2-m4",
        "model": TOY,
        "cluster": {"devices": 2},
        "microbatches": 4,
        "training": {},
        "stages": {},
        "tick_us": 1000.0,
    }
    for key, value in changes.items():
        group, _, inner = key.partition("__")
        if inner:
            data[group] = {**data[group], inner: value}
        else:
            data[group] = value
    return Instance.model_validate(data)


def toy_plan(
    instance: Instance | None = None,
    partition: tuple[int, ...] = (3, 3),
    placement: tuple[int, ...] = (0, 1),
    recompute: tuple[bool, ...] | None = None,
    in_flight: int | None = None,
    **changes: Any,
) -> Plan:
    """Return a valid plan: ops start as early as list scheduling lets them, backward first.

    `in_flight` is how many microbatches a device may have between F and B (None: as 1F1B has).
    """
    instance = instance or toy_instance(**changes)
    stages, lengths, devices = len(partition), instance.lengths(), instance.cluster.device_list()
    flags = recompute or tuple(instance.training.recompute == "full" for _ in partition)
    split = instance.training.split_backward
    kinds = [instance.model.costs(kind, instance.profile) for kind in instance.model.layer_kinds()]
    groups = [kinds[sum(partition[:s]) : sum(partition[: s + 1])] for s in range(stages)]
    tick, overhead = instance.tick_us / 1000, instance.training.op_overhead_us / instance.tick_us

    def length(kind: str, s: int, m: int) -> int:
        forward = sum(round(layer.forward_ms / tick) for layer in groups[s])
        weight = sum(round(layer.backward_weight_ms / tick) for layer in groups[s])
        backward = sum(round(layer.backward_input_ms / tick) for layer in groups[s])
        backward += (0 if split else weight) + (forward if flags[s] else 0)
        work = {"F": forward, "B": backward, "W": weight}[kind]
        return ceil(work * lengths[m] / devices[placement[s]].speed + overhead)

    def delay(boundary: int, m: int, a: int, b: int) -> int:
        if a == b:
            return 0
        link: Any = instance.cluster.link
        if hasattr(link, "intra_node"):
            link = link.intra_node if devices[a].node == devices[b].node else link.inter_node
        wire = groups[boundary][-1].output_mb * lengths[m] / link.bandwidth_gb_s if link.bandwidth_gb_s else 0
        return ceil((link.latency_us / 1000 + wire) / tick)

    def before(kind: str, s: int, m: int) -> list[tuple[tuple[str, int, int], int]]:
        if kind == "F":
            return [(("F", s - 1, m), s - 1)] if s else []
        if kind == "B":
            return [(("F", s, m), s)] + ([(("B", s + 1, m), s)] if s < stages - 1 else [])
        return [(("B", s, m), s)]

    todo = {(k, s, m) for k in ("FBW" if split else "FB") for s in range(stages) for m in range(len(lengths))}
    done: dict[tuple[str, int, int], tuple[int, int]] = {}
    free, flying = [0] * len(devices), [0] * stages
    while todo:
        ready = []
        for key in todo:
            kind, s, m = key
            if not all(need in done for need, _ in before(*key)):
                continue
            if kind == "F" and ((m and ("F", s, m - 1) not in done) or flying[s] >= (in_flight or stages - s)):
                continue
            start = max(
                [free[placement[s]]]
                + [done[need][1] + delay(cut, m, placement[need[1]], placement[s]) for need, cut in before(*key)]
            )
            ready.append((start, "BFW".index(kind), m, -s, key))
        start, _, m, _, key = min(ready)
        kind, s, _ = key
        done[key] = (start, start + length(*key))
        free[placement[s]] = start + length(*key)
        flying[s] += {"F": 1, "B": -1, "W": 0}[kind]
        todo.remove(key)

    ops = [
        {"kind": k, "stage": s, "microbatch": m, "device": placement[s], "start": start, "end": end}
        for (k, s, m), (start, end) in sorted(done.items(), key=lambda item: (item[1], item[0]))
    ]
    used = [[op for op in ops if op["device"] == d] for d in range(len(devices))]
    makespan = max(op["end"] for op in ops)
    span = max((max(op["end"] for op in mine) - min(op["start"] for op in mine) for mine in used if mine), default=0)

    def held(d: int, t: int) -> float:
        """Memory of device d during [t, t + 1), counted op by op."""
        total = 0.0
        for s in range(stages):
            if placement[s] != d:
                continue
            total += sum(layer.static_gb for layer in groups[s])
            kept = groups[s - 1][-1].output_mb / 1000 if s else 0.0
            for m, relative in enumerate(lengths):
                f, b, w = (done.get((k, s, m), (0, 0)) for k in "FBW")
                in_op = f[0] <= t < f[1] or b[0] <= t < b[1]
                if f[0] <= t < b[1]:
                    full = sum(layer.activation_gb for layer in groups[s])
                    total += relative * (full if in_op or not flags[s] else kept)
                if split and b[1] <= t < w[1]:
                    total += relative * sum(layer.weight_activation_gb for layer in groups[s])
        return total

    times = sorted({op["start"] for op in ops} | {op["end"] for op in ops})
    return Plan.model_validate(
        {
            "format": "octocp.plan/1",
            "instance": instance,
            "method": "by hand",
            "status": "feasible",
            "tick_us": instance.tick_us,
            "partition": list(partition),
            "placement": list(placement),
            "recompute": list(flags),
            "objective": instance.objective,
            "makespan": makespan,
            "span": span,
            "lower_bound": 1,
            "peak_memory_gb": [max(held(d, t) for t in times) for d in range(len(devices))],
            "ops": ops,
        }
    )
