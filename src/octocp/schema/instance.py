"""``octocp.instance/1``: what to schedule, on what, under which limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from octocp.schema.base import (
    MAX_DEVICES,
    MAX_LAYERS,
    MAX_MICROBATCHES,
    Gigabytes,
    LayerIndex,
    Microseconds,
    Name,
    Ratio,
    Strict,
)
from octocp.schema.model import ModelSpec


def _shape(value: Any) -> str:
    """Tell which branch of a union an input means, so that an error speaks of that branch only."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, list | tuple):
        return "list"
    if isinstance(value, dict):
        return "nodes" if {"intra_node", "inter_node"} & set(value) else "mapping"
    if isinstance(value, LinkByNode):
        return "nodes"
    return "mapping" if isinstance(value, Strict) else "number"


class Link(Strict):
    """One link: latency in microseconds, bandwidth in GB/s (None: infinite)."""

    latency_us: Microseconds = 0.0
    bandwidth_gb_s: Annotated[float, Field(ge=1e-6, le=1e9, allow_inf_nan=False)] | None = None


class LinkByNode(Strict):
    """Links that depend on whether two devices share a node."""

    intra_node: Link = Link()
    inter_node: Link = Link()


class Device(Strict):
    """One device of a cluster given as a list."""

    name: Name | None = None
    speed: Ratio = 1.0
    memory_gb: Gigabytes | None = None
    node: Annotated[int, Field(ge=0, lt=MAX_DEVICES)] = 0


class Cluster(Strict):
    """The devices, their memory and the links between them."""

    devices: Annotated[
        Annotated[int, Field(ge=1, le=MAX_DEVICES), Tag("number")]
        | Annotated[list[Device], Field(min_length=1, max_length=MAX_DEVICES), Tag("list")],
        Discriminator(lambda value: "list" if _shape(value) in {"list", "mapping", "nodes"} else "number"),
    ]
    memory_gb: Gigabytes | None = None
    link: Annotated[
        Annotated[Link, Tag("mapping")] | Annotated[LinkByNode, Tag("nodes")],
        Discriminator(lambda value: "nodes" if _shape(value) == "nodes" else "mapping"),
    ] = Link()

    def device_list(self) -> list[Device]:
        """Return every device with its name and its own memory limit filled in."""
        given = [Device() for _ in range(self.devices)] if isinstance(self.devices, int) else self.devices
        return [
            device.model_copy(
                update={
                    "name": device.name or f"device {index}",
                    "memory_gb": self.memory_gb if device.memory_gb is None else device.memory_gb,
                }
            )
            for index, device in enumerate(given)
        ]


class Training(Strict):
    """How a step is trained."""

    split_backward: bool = True
    recompute: Literal["none", "full", "auto"] = "none"
    op_overhead_us: Microseconds = 0.0


class Stages(Strict):
    """Limits on partition and placement, or the ones to keep."""

    max_per_device: Annotated[int, Field(ge=1, le=MAX_LAYERS)] | None = 4
    count: Annotated[int, Field(ge=1, le=MAX_LAYERS)] | None = None
    partition: (
        Annotated[list[Annotated[int, Field(ge=1, le=MAX_LAYERS)]], Field(min_length=1, max_length=MAX_LAYERS)] | None
    ) = None
    placement: Annotated[
        Annotated[Literal["free", "linear", "interleaved", "wave"], Tag("text")]
        | Annotated[
            list[Annotated[int, Field(ge=0, lt=MAX_DEVICES)]],
            Field(min_length=1, max_length=MAX_LAYERS),
            Tag("list"),
        ],
        Discriminator(lambda value: "list" if _shape(value) == "list" else "text"),
    ] = "free"
    keep_together: Annotated[
        list[Annotated[list[LayerIndex], Field(min_length=2, max_length=2)]], Field(max_length=MAX_LAYERS)
    ] = Field(default_factory=list)
    colocate: Annotated[
        list[Annotated[list[LayerIndex], Field(min_length=2, max_length=MAX_LAYERS)]],
        Field(max_length=MAX_LAYERS),
    ] = Field(default_factory=list)


RelativeLength = Annotated[float, Field(ge=1e-3, le=1e3, allow_inf_nan=False)]


class Instance(Strict):
    """A whole problem: model, cluster, microbatches, training and stage rules, objective, time grid."""

    format: Literal["octocp.instance/1"]
    name: Name
    description: str = ""
    model: ModelSpec
    profile: Name | None = None
    cluster: Cluster
    microbatches: Annotated[
        Annotated[int, Field(ge=1, le=MAX_MICROBATCHES), Tag("number")]
        | Annotated[list[RelativeLength], Field(min_length=1, max_length=MAX_MICROBATCHES), Tag("list")],
        Discriminator(lambda value: "list" if _shape(value) == "list" else "number"),
    ]
    training: Training = Training()
    stages: Stages = Stages()
    objective: Literal["makespan", "span"] = "makespan"
    tick_us: Annotated[float, Field(ge=1e-3, le=1e9, allow_inf_nan=False)] = 10.0

    @model_validator(mode="after")
    def _fits_together(self) -> Instance:
        for problem in self._contradictions():
            raise ValueError(problem)
        return self

    def lengths(self) -> list[float]:
        """Return the relative length of every microbatch."""
        return [1.0] * self.microbatches if isinstance(self.microbatches, int) else list(self.microbatches)

    def resolved(self) -> Instance:
        """Return the instance with the chosen profile's costs inlined, ready to travel inside a plan."""
        return self.model_copy(update={"model": self.model.flattened(self.profile), "profile": None})

    def _contradictions(self) -> Iterator[str]:
        """Yield what contradicts what, as ``place: problem; what would be right``."""
        if self.profile is not None and self.profile not in self.model.profiles:
            known = ", ".join(self.model.profiles) or "none (leave profile out)"
            yield f"profile: model {self.model.name!r} has no profile {self.profile!r}; it has: {known}"
        layers = len(self.model.layer_kinds())
        devices = self.cluster.devices if isinstance(self.cluster.devices, int) else len(self.cluster.devices)
        if not isinstance(self.cluster.devices, int):
            names = [device.name for device in self.cluster.devices if device.name]
            for name in names:
                if names.count(name) > 1:
                    yield f"cluster.devices: the name {name!r} is given twice; names must differ"
        rules = self.stages
        for index, group in enumerate(rules.keep_together):
            if group[0] > group[1]:
                yield (f"stages.keep_together[{index}]: range {group} runs backwards; write [{group[1]}, {group[0]}]")
        for key, groups in (("keep_together", rules.keep_together), ("colocate", rules.colocate)):
            for index, group in enumerate(groups):
                for layer in group:
                    if layer >= layers:
                        yield (f"stages.{key}[{index}]: layer {layer} does not exist; layers are 0..{layers - 1}")
        yield from self._count_contradictions(layers, devices)
        yield from self._fixed_contradictions(layers)

    def _count_contradictions(self, layers: int, devices: int) -> Iterator[str]:
        rules = self.stages
        counts = {
            "count": rules.count,
            "partition": None if rules.partition is None else len(rules.partition),
            "placement": devices if rules.placement == "linear" else None,
        }
        if isinstance(rules.placement, list):
            counts["placement"] = len(rules.placement)
        given = {key: count for key, count in counts.items() if count is not None}
        if len(set(given.values())) > 1:
            told = ", ".join(f"{key} says {count} stages" for key, count in given.items())
            yield f"stages.{list(given)[-1]}: {told}; they must agree"
        for key, count in given.items():
            if count < devices:
                yield (f"stages.{key}: {count} stages for {devices} devices; every device needs at least one stage")
            if rules.max_per_device is not None and count > devices * rules.max_per_device:
                yield (
                    f"stages.{key}: {count} stages on {devices} devices; max_per_device "
                    f"{rules.max_per_device} allows "
                    f"{devices * rules.max_per_device}; raise stages.max_per_device"
                )
        if rules.partition is not None and sum(rules.partition) != layers:
            yield f"stages.partition: sums to {sum(rules.partition)} layers; the model has {layers}"
        if isinstance(rules.placement, list):
            for stage, device in enumerate(rules.placement):
                if device >= devices:
                    yield (f"stages.placement[{stage}]: device {device} does not exist; devices are 0..{devices - 1}")
            for device in range(devices):
                held = rules.placement.count(device)
                if held == 0:
                    yield f"stages.placement: device {device} holds no stage; every device needs at least one"
                if rules.max_per_device is not None and held > rules.max_per_device:
                    yield (
                        f"stages.placement: device {device} holds {held} stages; "
                        f"max_per_device is {rules.max_per_device}; raise it or move a stage"
                    )

    def _fixed_contradictions(self, layers: int) -> Iterator[str]:
        rules = self.stages
        if rules.partition is None or sum(rules.partition) != layers:
            return
        stage_of = [stage for stage, size in enumerate(rules.partition) for _ in range(size)]
        for index, (first, last) in enumerate(rules.keep_together):
            if stage_of[first] != stage_of[last]:
                yield (
                    f"stages.keep_together[{index}]: layers {first} to {last} must share "
                    "a stage, but stages.partition cuts "
                    f"between them (layer {first} in stage {stage_of[first]}, layer "
                    f"{last} in stage {stage_of[last]})"
                )
        if isinstance(rules.placement, list):
            for index, group in enumerate(rules.colocate):
                held_by = sorted({rules.placement[stage_of[layer]] for layer in group})
                if len(held_by) > 1:
                    yield (
                        f"stages.colocate[{index}]: layers {group} must share a device, "
                        "but partition and placement "
                        f"put them on devices {held_by}"
                    )
