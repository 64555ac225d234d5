"""The problem as immutable integers; solver, heuristics, bounds and timing pass all read this one.

Nothing after it converts units: times are ticks, memory is in `memory_unit_gb`.
Durations are stored so that they may differ by device and by microbatch; equal ones share one tuple.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import Literal

F, B, W = 0, 1, 2
KIND_NAMES = "FBW"

Family = Literal["free", "linear", "interleaved", "wave", "fixed"]
Objective = Literal["makespan", "span"]


@dataclass(frozen=True)
class Problem:
    """One instance in integers.

    Attributes
    ----------
    split : bool
        Whether W is an op of its own; otherwise B carries it and `layer_ticks[W]` is all zero.
    layer_ticks : tuple of 3 tuples
        Ticks of each layer by kind (F, B, W), unscaled, summed over a stage before scaling.
    scale : tuple [device][microbatch] of Fraction
        Relative length over speed; 1 everywhere for equal devices and microbatches.
    overhead : Fraction
        Ticks added to every op.
    delay_ticks : tuple [link class][microbatch][boundary]
        Ticks to cross from layer ``boundary - 1`` to ``boundary``; class 0 is "same device", all zero.
    link_class : tuple [device][device]
        Class of the link between two devices.
    static, activation, weight_activation : tuple
        Memory units: ``static[layer]``, the others ``[microbatch][layer]``.
    capacity : tuple of int or None
        Memory units by device; None means no limit.
    memory_unit_gb : Fraction
        Size of a memory unit.
    limit_gb : tuple of float or None
        Limits as they were given, for messages; `capacity` is what counts.
    min_stages, max_stages, max_per_device : int
        Limits on the number of stages.
    partition : tuple of int or None
        Fixed layers per stage.
    family : str
        Placement family; ``fixed`` comes with `placement`.
    cuttable : tuple [boundary 0..layers] of bool
        Whether a stage may begin at a layer; False inside a `keep_together` run.
    colocate : tuple of tuples
        Groups of layers that share a device.
    device_class : tuple
        Devices with equal numbers are interchangeable.
    """

    name: str
    objective: Objective
    split: bool
    layer_ticks: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    scale: tuple[tuple[Fraction, ...], ...]
    overhead: Fraction
    delay_ticks: tuple[tuple[tuple[int, ...], ...], ...]
    link_class: tuple[tuple[int, ...], ...]
    static: tuple[int, ...]
    activation: tuple[tuple[int, ...], ...]
    weight_activation: tuple[tuple[int, ...], ...]
    capacity: tuple[int | None, ...]
    memory_unit_gb: Fraction
    limit_gb: tuple[float | None, ...]
    min_stages: int
    max_stages: int
    max_per_device: int
    partition: tuple[int, ...] | None
    family: Family
    placement: tuple[int, ...] | None
    cuttable: tuple[bool, ...]
    colocate: tuple[tuple[int, ...], ...]
    device_class: tuple[int, ...]
    device_names: tuple[str, ...]

    # ---- sizes -----------------------------------------------------------------------------

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return len(self.static)

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return len(self.capacity)

    @property
    def n_microbatches(self) -> int:
        """Number of microbatches."""
        return len(self.activation)

    @property
    def kinds(self) -> tuple[int, ...]:
        """The op kinds that exist: F, B and, when the backward is split, W."""
        return (F, B, W) if self.split else (F, B)

    @cached_property
    def uniform_microbatches(self) -> bool:
        """Whether all microbatches are alike (FIFO is free then; semantics, fact 1)."""
        return all(len(set(row)) == 1 for row in self.scale) and len(set(self.activation)) == 1

    @cached_property
    def uniform_devices(self) -> bool:
        """Whether a stage takes equally long on every device."""
        return len(set(self.scale)) == 1

    @cached_property
    def has_memory_limit(self) -> bool:
        """Whether any device has a memory limit."""
        return any(cap is not None for cap in self.capacity)

    @cached_property
    def has_delay(self) -> bool:
        """Whether any transfer between two devices takes time."""
        return any(any(any(row) for row in by_class) for by_class in self.delay_ticks)

    # ---- durations and sizes of a stage [begin, end) ---------------------------------------

    @cached_property
    def prefix_ticks(self) -> tuple[tuple[int, ...], ...]:
        """Prefix sums of `layer_ticks`, by kind; entry i is the sum over the layers before i."""
        return tuple(tuple(accumulate(row, initial=0)) for row in self.layer_ticks)

    def duration(self, kind: int, begin: int, end: int, device: int = 0, microbatch: int = 0) -> int:
        """Return the ticks of an op of the stage [begin, end): the layer sum, scaled, plus overhead, rounded up."""
        base = self.prefix_ticks[kind][end] - self.prefix_ticks[kind][begin]
        scale = self.scale[device][microbatch]
        if scale == 1 and self.overhead.denominator == 1:
            return base + self.overhead.numerator
        return -((-(base * scale + self.overhead)) // 1)

    @cached_property
    def fastest_device(self) -> int:
        """The device that takes least time for all microbatches."""
        return min(range(self.n_devices), key=lambda device: sum(self.scale[device]))

    @cached_property
    def min_scale(self) -> Fraction:
        """The smallest scale of any device and microbatch: bounds use it."""
        return min(min(row) for row in self.scale)

    def least_ticks(self, kind: int, begin: int, end: int) -> int:
        """Return a floor for the ticks that the layers [begin, end) add to any chain of stages that holds them.

        Rounding down and leaving the overhead out keeps it valid wherever the cuts fall: for stages
        that cover [begin, end), the durations sum to at least the scaled layer sum.
        """
        return (self.prefix_ticks[kind][end] - self.prefix_ticks[kind][begin]) * self.min_scale // 1

    @cached_property
    def prefix_static(self) -> tuple[int, ...]:
        """Prefix sums of `static`."""
        return tuple(accumulate(self.static, initial=0))

    @cached_property
    def prefix_activation(self) -> tuple[tuple[int, ...], ...]:
        """Prefix sums of `activation`, by microbatch (equal rows are one object)."""
        made = {row: tuple(accumulate(row, initial=0)) for row in set(self.activation)}
        return tuple(made[row] for row in self.activation)

    @cached_property
    def prefix_weight_activation(self) -> tuple[tuple[int, ...], ...]:
        """Prefix sums of `weight_activation`, by microbatch."""
        made = {row: tuple(accumulate(row, initial=0)) for row in set(self.weight_activation)}
        return tuple(made[row] for row in self.weight_activation)

    def stage_memory(self, begin: int, end: int, microbatch: int = 0) -> tuple[int, int, int]:
        """Return (static, activation, weight activation) of the stage [begin, end), in memory units."""
        act, weight = self.prefix_activation[microbatch], self.prefix_weight_activation[microbatch]
        return (
            self.prefix_static[end] - self.prefix_static[begin],
            act[end] - act[begin],
            weight[end] - weight[begin],
        )

    def delay(self, boundary: int, source: int, target: int, microbatch: int = 0) -> int:
        """Return the ticks that a transfer over `boundary` takes between two devices (either direction)."""
        return self.delay_ticks[self.link_class[source][target]][microbatch][boundary]

    # ---- structure -------------------------------------------------------------------------

    @cached_property
    def units(self) -> tuple[tuple[int, int], ...]:
        """The indivisible runs of layers [begin, end): single layers, or what `keep_together` joins."""
        begins = [layer for layer in range(self.n_layers) if self.cuttable[layer]]
        return tuple(zip(begins, [*begins[1:], self.n_layers], strict=True))

    @cached_property
    def fixed_bounds(self) -> tuple[int, ...] | None:
        """Stage boundaries (0, ..., layers) of a fixed partition."""
        return None if self.partition is None else tuple(accumulate(self.partition, initial=0))

    def placement_for(self, stages: int) -> tuple[int, ...] | None:
        """Return the placement that the family dictates for a number of stages; None where it is free."""
        if self.family == "free":
            return None
        if self.family == "fixed":
            return self.placement
        return tuple(family_device(self.family, stage, self.n_devices) for stage in range(stages))

    @cached_property
    def serial_ticks(self) -> int:
        """Ticks of doing everything one after the other, at the slowest, with every transfer paid: a safe horizon."""
        slowest = max(max(row) for row in self.scale)
        compute = sum(prefix[-1] for prefix in self.prefix_ticks) * slowest
        rounding = len(self.kinds) * self.max_stages * (self.overhead + 1)
        slowest_links = {tuple(map(max, zip(*rows, strict=True))) for rows in zip(*self.delay_ticks, strict=True)}
        transfer = 2 * max(sum(row) for row in slowest_links)
        return int(-(-(compute + rounding + transfer) // 1)) * self.n_microbatches


def family_device(family: str, stage: int, devices: int) -> int:
    """Return the device of a stage under a placement family: linear, interleaved or wave."""
    block, place = divmod(stage, devices)
    return devices - 1 - place if family == "wave" and block % 2 else place
