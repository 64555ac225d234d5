"""Small instances written in ticks: a kind is (F, B, W), one tick is 1 ms, so nothing is rounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octocp.costs import build_problem
from octocp.problem import Problem
from octocp.schema import Instance

TIMES = ("forward_ms", "backward_input_ms", "backward_weight_ms")
TRAINING = ("split_backward", "recompute", "op_overhead_us")
TOP = ("objective", "tick_us", "name")


def instance(
    layers: str | Sequence[tuple[float, ...]],
    kinds: dict[str, Any] | None = None,
    *,
    devices: Any = 2,
    microbatches: Any = 2,
    memory: float | None = None,
    link: Any = None,
    **more: Any,
) -> Instance:
    """Build an instance.

    `layers` is one symbol per layer with `kinds`, or directly the times of each layer. A kind is its times, or a
    mapping with those as `ms` and sizes beside them. Further keywords go where the format has them.
    """
    if not isinstance(layers, str):
        kinds = {chr(ord("a") + index): times for index, times in enumerate(layers)}
        layers = "".join(kinds)
    made = {}
    for name, costs in (kinds or {}).items():
        given = costs if isinstance(costs, dict) else {"ms": costs}
        made[name] = dict(zip(TIMES, given["ms"], strict=False))
        made[name] |= {key: value for key, value in given.items() if key != "ms"}
    data: dict[str, Any] = {
        "format": "octocp.instance/1",
        "name": "tiny",
        "model": {"name": "tiny", "layers": layers, "kinds": made},
        "cluster": {"devices": devices, "memory_gb": memory, "link": link or {}},
        "microbatches": microbatches,
        "training": {key: more.pop(key) for key in TRAINING if key in more},
        "tick_us": 1000,
        "stages": {},
    }
    data |= {key: more.pop(key) for key in TOP if key in more}
    data["stages"] = more
    return Instance.model_validate(data)


def problem(*args: Any, **more: Any) -> Problem:
    """Build the same in integers."""
    return build_problem(instance(*args, **more))
