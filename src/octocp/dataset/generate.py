"""The instances of a spec, in order: the same ones for the same seed, for ever.

Every instance has a stratum: its value on every axis, dealt so that each comes equally often. What the stratum leaves
open is drawn; a draw that contradicts itself, is too large, or equals an earlier instance is drawn again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from octocp.costs import build_problem
from octocp.dataset.canonical import canonical_hash
from octocp.dataset.draws import Stream, dealt
from octocp.dataset.models import draw_model, layer_kinds
from octocp.dataset.rules import draw_limits, draw_links, draw_stages
from octocp.dataset.spec import Family, Spec
from octocp.errors import InfeasibleError, InputError
from octocp.schema import Instance
from octocp.schema.model import ModelSpec

VERSION = 1
# Draws with an instance's own stratum; then as many with any values of the axes.
TRIES = 40


@dataclass(frozen=True)
class Drawn:
    """One instance of a data set.

    Attributes
    ----------
    id : str
        Family and number, e.g. ``mix-00017``.
    hash : str
        Of its canonical form.
    """

    id: str
    family: str
    hash: str
    instance: Instance


def generate(spec: Spec, models: Mapping[str, ModelSpec]) -> Iterator[Drawn]:
    """Yield the instances of a spec.

    Raises
    ------
    InputError
        The ranges of a family do not hold as many different instances.
    """
    seen: set[str] = set()
    for number, family in enumerate(spec.families):
        for index in range(family.count):
            drawn = _draw(spec, family, index, models, seen)
            if drawn is None:
                raise InputError(
                    f"no more than {index} different instances were found in these ranges",
                    place=f"families[{number}].count ({family.name})",
                    right="a smaller count, wider ranges, or a larger max_ops",
                )
            seen.add(drawn.hash)
            yield drawn


def _draw(spec: Spec, family: Family, index: int, models: Mapping[str, ModelSpec], seen: set[str]) -> Drawn | None:
    root = (spec.generator, spec.seed, family.name)
    axes = family.axes()
    for attempt in range(2 * TRIES):
        stream = Stream(*root, index, attempt)
        if attempt < TRIES:
            stratum = {axis: dealt(values, index, *root, axis) for axis, values in axes.items()}
        else:
            stratum = {axis: stream.choice(values) for axis, values in axes.items()}
        name = f"{family.name}-{index:05d}"
        data = instance_data(name, family, stratum, stream, models)
        if data is None:
            continue
        try:
            instance = Instance.model_validate(data)
            problem = build_problem(instance)
        except (ValidationError, InfeasibleError):  # rules that cannot be met together
            continue
        found = canonical_hash(problem)
        if found not in seen:
            return Drawn(name, family.name, found, instance)
    return None


def instance_data(
    name: str, family: Family, axes: Mapping[str, Any], stream: Stream, models: Mapping[str, ModelSpec]
) -> dict[str, Any] | None:
    """Return an instance as plain data, or None where its axes contradict each other or it is too large."""
    model = draw_model(family, axes, stream, models)
    kinds = layer_kinds(model)
    devices, split = axes["devices"], axes["split_backward"]
    shape = draw_stages(axes, len(kinds), stream)
    if shape is None or shape.stages * axes["microbatches"] * (3 if split else 2) > family.max_ops:
        return None
    limits = draw_limits(axes, kinds, shape, stream)
    link, nodes = draw_links(axes, kinds, stream)
    cluster: dict[str, Any] = {"devices": devices}
    if nodes or len(set(limits)) > 1:
        cluster["devices"] = [
            ({"node": nodes[device]} if nodes else {}) | ({"memory_gb": limit} if limit is not None else {})
            for device, limit in enumerate(limits)
        ]
    elif limits[0] is not None:
        cluster["memory_gb"] = limits[0]
    if link:
        cluster["link"] = link
    return {
        "format": "octocp.instance/1",
        "name": name,
        "model": model,
        "cluster": cluster,
        "microbatches": axes["microbatches"],
        "training": {"split_backward": split, "op_overhead_us": float(axes["op_overhead_us"])},
        "stages": shape.rules,
        "objective": axes["objective"],
        "tick_us": float(axes["tick_us"]),
    }
