"""Measured layers to a model file that `octocp solve` reads."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
import yaml

from octocp.schema import ModelSpec
from octocp.schema.files import write_whole
from octocp.torch.profiler import OPS, LayerProfile

# What the optimizer keeps for each trained number beside weight and gradient, in bytes.
OPTIMIZER_BYTES = {"adam": 8, "sgd": 0}


def model_of(
    profiles: Sequence[LayerProfile], *, name: str, source: str, hardware: str, note: str, optimizer: str
) -> ModelSpec:
    """Return the model; layers that are alike are one kind, with the median of their times.

    It has two profiles: ``split`` for a backward in two parts, and ``fused``, for instances with
    ``split_backward: false``, with the fused backward's own time.
    """
    names = _kind_names(profiles)
    kinds: dict[str, dict[str, Any]] = {}
    fused: dict[str, dict[str, Any]] = {}
    for kind in dict.fromkeys(names):
        alike = [profile for profile, own in zip(profiles, names, strict=True) if own == kind]
        ms = {op: round(median(profile.times[op].median for profile in alike), 4) for op in OPS}
        one = alike[0]
        static = 2 * one.parameter_bytes + OPTIMIZER_BYTES[optimizer] * one.parameters
        kinds[kind] = {
            "forward_ms": ms["forward"],
            "backward_input_ms": ms["backward_input"],
            "backward_weight_ms": ms["backward_weight"],
            "static_gb": static / 1e9,
            "activation_gb": max(profile.saved_bytes for profile in alike) / 1e9,
            "weight_activation_gb": max(profile.late_bytes for profile in alike) / 1e9,
            "output_mb": one.output_bytes / 1e6,
        }
        fused[kind] = {"forward_ms": ms["forward"], "backward_input_ms": ms["backward"], "backward_weight_ms": 0.0}
    provenance = {"kind": "measured", "source": source, "hardware": hardware, "note": note}
    return ModelSpec.model_validate(
        {
            "format": "octocp.model/1",
            "name": name,
            "layers": names,
            "kinds": kinds,
            "provenance": provenance,
            "profiles": {"split": {"provenance": provenance}, "fused": {"kinds": fused, "provenance": provenance}},
        }
    )


def write_model(model: ModelSpec, path: Path) -> None:
    """Write a model file: JSON where the name ends in .json, else YAML; it appears whole or not at all."""
    data = model.model_dump(mode="json", exclude_unset=True)
    if path.suffix.lower() == ".json":
        text = model.model_dump_json(indent=1, exclude_unset=True) + "\n"
    else:
        text = yaml.safe_dump(data, sort_keys=False, width=120, default_flow_style=None)
    write_whole(text.encode(), path)


def hardware(device: torch.device) -> str:
    """Name what was measured on."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"CPU ({platform.processor() or platform.machine()}), {torch.get_num_threads()} thread(s)"


def _kind_names(profiles: Sequence[LayerProfile]) -> list[str]:
    """Return a kind for each layer: its class, with a number where layers of one class differ."""
    titles = {profile.signature: profile.title for profile in profiles}
    counts, names = Counter(titles.values()), {}
    given: Counter[str] = Counter()
    for signature, title in titles.items():
        given[title] += 1
        names[signature] = title if counts[title] == 1 else f"{title}-{given[title]}"
    return [names[profile.signature] for profile in profiles]
