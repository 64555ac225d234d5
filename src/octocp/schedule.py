"""A schedule: partition, placement and the start of every op, in the integers of `Problem`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octocp.problem import F, Problem, W

Ints = NDArray[np.int64]


class Op(NamedTuple):
    """One op: what a device executes for a stage and a microbatch."""

    kind: int
    stage: int
    microbatch: int


Orders = Sequence[Sequence[Op]]
"""Per device, its ops in the order of execution."""


@dataclass(frozen=True)
class Layout:
    """Partition and placement together.

    Attributes
    ----------
    bounds : tuple of int
        Stage boundaries (0, ..., layers); stage s holds the layers [bounds[s], bounds[s + 1]).
    placement : tuple of int
        Device of each stage.
    """

    bounds: tuple[int, ...]
    placement: tuple[int, ...]

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.placement)

    @property
    def partition(self) -> tuple[int, ...]:
        """Layers per stage."""
        return tuple(end - begin for begin, end in pairwise(self.bounds))

    def stages_on(self, device: int) -> list[int]:
        """Return the stages of a device, ascending."""
        return [stage for stage, holder in enumerate(self.placement) if holder == device]

    def durations(self, problem: Problem) -> Ints:
        """Return the ticks of every op, shape (kinds, stages, microbatches)."""
        made = np.zeros((len(problem.kinds), self.stages, problem.n_microbatches), dtype=np.int64)
        alike = problem.uniform_microbatches
        for kind in problem.kinds:
            for stage, device in enumerate(self.placement):
                begin, end = self.bounds[stage : stage + 2]
                if alike:
                    made[kind, stage, :] = problem.duration(kind, begin, end, device)
                else:
                    for microbatch in range(problem.n_microbatches):
                        made[kind, stage, microbatch] = problem.duration(kind, begin, end, device, microbatch)
        return made

    def violation(self, problem: Problem) -> str | None:
        """Say which rule of the problem this partition and placement break, or None."""
        devices = problem.n_devices
        if not problem.min_stages <= self.stages <= problem.max_stages:
            return f"{self.stages} stages; {problem.min_stages} to {problem.max_stages} are allowed"
        if problem.partition is not None and self.partition != problem.partition:
            return "the instance fixes another partition"
        if any(not problem.cuttable[boundary] for boundary in self.bounds):
            return "it cuts between layers that are kept together"
        dictated = problem.placement_for(self.stages)
        if dictated is not None and self.placement != dictated:
            return f"the instance fixes another placement ({problem.family})"
        held = [self.placement.count(device) for device in range(devices)]
        if min(held) == 0:
            return f"device {held.index(0)} holds no stage"
        if max(held) > problem.max_per_device:
            return (
                f"device {held.index(max(held))} holds {max(held)} stages; at most {problem.max_per_device} are allowed"
            )
        for group in problem.colocate:
            if len({self.device_of_layer(layer) for layer in group}) > 1:
                return f"layers {list(group)} must share a device"
        return None

    def device_of_layer(self, layer: int) -> int:
        """Return the device that holds a layer."""
        return self.placement[bisect_right(self.bounds, layer) - 1]

    def canonical(self, problem: Problem) -> Layout:
        """Return the equivalent layout whose interchangeable devices are numbered by first use."""
        if problem.family != "free":
            return self
        renamed: dict[int, int] = {}
        unused = {c: [d for d, k in enumerate(problem.device_class) if k == c] for c in set(problem.device_class)}
        for device in self.placement:
            if device not in renamed:
                renamed[device] = unused[problem.device_class[device]].pop(0)
        return Layout(self.bounds, tuple(renamed[device] for device in self.placement))


@dataclass(frozen=True, eq=False)
class Schedule:
    """When every op starts.

    Attributes
    ----------
    start : array of int64, shape (kinds, stages, microbatches)
        Ticks.
    """

    problem: Problem
    layout: Layout
    start: Ints

    @cached_property
    def end(self) -> Ints:
        """End of every op in ticks, shaped like `start`."""
        return self.start + self.layout.durations(self.problem)

    @property
    def makespan(self) -> int:
        """End of the last op, in ticks."""
        return int(self.end.max())

    @property
    def span(self) -> int:
        """Largest time any device is in use, last end minus first start, in ticks."""
        used = (self.layout.stages_on(device) for device in range(self.problem.n_devices))
        return max(int(self.end[:, stages].max() - self.start[:, stages].min()) for stages in used)

    @property
    def value(self) -> int:
        """The problem's objective, in ticks."""
        return self.makespan if self.problem.objective == "makespan" else self.span

    def orders(self) -> list[list[Op]]:
        """Return each device's ops by start; ties (ops of length zero) by end, then in precedence order."""
        found: list[list[Op]] = [[] for _ in range(self.problem.n_devices)]
        kinds, stages, microbatches = self.start.shape
        last = self.layout.stages - 1
        for kind in range(kinds):
            for stage in range(stages):
                for microbatch in range(microbatches):
                    found[self.layout.placement[stage]].append(Op(kind, stage, microbatch))
        for ops in found:
            ops.sort(
                key=lambda op: (
                    int(self.start[op]),
                    int(self.end[op]),
                    op.stage if op.kind == F else 2 * last + 1 - op.stage if op.kind != W else 3 * last + 2,
                    op.microbatch,
                )
            )
        return found

    def relabelled_fifo(self) -> Schedule:
        """Return the schedule with microbatches renumbered so that every (stage, kind) runs in microbatch order.

        Valid where microbatches are alike, and free: some optimal plan is FIFO. Proof: let x_m >= y_m + c
        for all m be one precedence. The k microbatches with the smallest x have y <= x_(k) - c, so at
        least k of the y's are at most x_(k) - c, that is y_(k) + c <= x_(k): sorting both sides keeps
        every precedence. Each device is busy in the same intervals as before, and as many microbatches
        of a stage are between F and B, and between B and W, at any time.
        """
        return Schedule(self.problem, self.layout, np.sort(self.start, axis=2))

    def on_devices(self, layout: Layout) -> Schedule:
        """Return the same starts under a relabelled layout."""
        return Schedule(self.problem, layout, self.start)

    def peak_memory(self) -> list[int]:
        """Return each device's peak use in memory units; what is freed at t can be taken at t."""
        problem, layout = self.problem, self.layout
        peaks = []
        for device in range(problem.n_devices):
            events: list[tuple[int, int]] = []
            fixed = 0
            for stage in layout.stages_on(device):
                begin, end = layout.bounds[stage : stage + 2]
                for microbatch in range(problem.n_microbatches):
                    static, activation, weight = problem.stage_memory(begin, end, microbatch)
                    b_end = int(self.end[1, stage, microbatch])
                    f_start = int(self.start[0, stage, microbatch])
                    if b_end > f_start:
                        events += [(f_start, activation), (b_end, -activation)]
                    if problem.split and int(self.end[2, stage, microbatch]) > b_end:
                        events += [(b_end, weight), (int(self.end[2, stage, microbatch]), -weight)]
                fixed += static
            events.sort()
            level = peak = fixed
            for _, change in events:
                level += change
                peak = max(peak, level)
            peaks.append(peak)
        return peaks

    def memory_excess(self) -> tuple[int, int, int] | None:
        """Return (device, need, cap) in memory units for the device most over its limit, or None."""
        over = [
            (peak - cap, device, peak, cap)
            for device, (peak, cap) in enumerate(zip(self.peak_memory(), self.problem.capacity, strict=True))
            if cap is not None and peak > cap
        ]
        return max(over)[1:] if over else None
