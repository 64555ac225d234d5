"""Idle time by cause: for every pause of a device, what its next op waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octocp.analysis.graph import by_device, change_of, inputs, levels, sequence_of
from octocp.problem import F
from octocp.schedule import Op, Schedule


@dataclass(frozen=True)
class Idle:
    """Idle time of one device from 0 to the makespan, in ticks.

    `leading`, `forward`, `gradient`, `transfer`, `memory`, `held_back` and `trailing` add up to `idle` exactly.

    Attributes
    ----------
    leading, trailing : int
        Before its first op, and after its last.
    forward, gradient : int
        The next op waited for a forward, or a gradient, that was still being computed elsewhere.
    transfer : int
        What the next op waited for was on its way.
    memory : int
        It waited for one of these too, but a forward that had arrived was kept out by the memory limit alone.
    held_back : int
        The next op had everything it needed and yet started later (late first ops shorten a span; some plans are just
        not tight).
    ready : int
        Part of `forward`, `gradient` and `transfer`: another op of the device had arrived and would have fit.
    """

    device: int
    busy: int
    idle: int
    leading: int = 0
    forward: int = 0
    gradient: int = 0
    transfer: int = 0
    memory: int = 0
    held_back: int = 0
    trailing: int = 0
    ready: int = 0


CAUSES = ("leading", "forward", "gradient", "transfer", "memory", "held_back", "trailing")


def idle_causes(schedule: Schedule, *, fused: bool) -> list[Idle]:
    """Return each device's idle time by cause.

    Parameters
    ----------
    fused : bool
        Whether gradients are handed on when W ends.
    """
    orders = by_device(schedule.layout, sequence_of(schedule), schedule.problem.n_devices)
    return [_Device(schedule, device, order, fused).idle() for device, order in enumerate(orders)]


class _Device:
    def __init__(self, schedule: Schedule, device: int, order: Sequence[Op], fused: bool) -> None:
        self.problem, self.layout = schedule.problem, schedule.layout
        self.device, self.order, self.fused = device, order, fused
        self.start, self.end = schedule.start, schedule.end
        self.makespan = schedule.makespan
        self.levels = levels(self.problem, self.layout, device, order)

    def idle(self) -> Idle:
        busy = sum(int(self.end[op] - self.start[op]) for op in self.order)
        spent = dict.fromkeys((*CAUSES, "ready"), 0)
        # The next op of each (kind, stage) at every place of the order, as places.
        chains: dict[tuple[int, int], list[int]] = {}
        for place, op in enumerate(self.order):
            chains.setdefault((op.kind, op.stage), []).append(place)
        heads = dict.fromkeys(chains, 0)
        free = 0
        for place, op in enumerate(self.order):
            begin = int(self.start[op])
            if begin > free:
                if place == 0:
                    spent["leading"] += begin
                else:
                    coming = [chains[key][head] for key, head in heads.items() if head < len(chains[key])]
                    self._pause(place, free, coming, spent)
            free = max(free, int(self.end[op]))
            heads[op.kind, op.stage] += 1
        spent["trailing"] = self.makespan - free
        return Idle(self.device, busy, self.makespan - busy, **spent)

    def _pause(self, place: int, free: int, coming: Sequence[int], spent: dict[str, int]) -> None:
        """Account for the pause before the op at a place, from `free` on."""
        op = self.order[place]
        begin = int(self.start[op])
        there, computed, cause = self._arrival(op)
        there, computed = min(max(there, free), begin), min(max(computed, free), begin)
        spent["held_back"] += begin - there
        # Each part of the pause, with whatever else had arrived by then.
        blocked, ready = there, there
        for other in coming:
            if other == place:
                continue
            arrived = max(free, self._arrival(self.order[other])[0])
            if arrived >= there:
                continue
            if self._fits_early(place, other):
                ready = min(ready, arrived)
            elif self.order[other].kind == F:
                blocked = min(blocked, arrived)
        # Where something else could run, memory is not what stops the device.
        spent["ready"] += there - ready
        kept_out = (min(blocked, ready), ready)
        spent["memory"] += kept_out[1] - kept_out[0]
        for name, first, last in ((cause, free, computed), ("transfer", computed, there)):
            overlap = max(0, min(last, kept_out[1]) - max(first, kept_out[0]))
            spent[name] += max(0, last - first) - overlap

    def _arrival(self, op: Op) -> tuple[int, int, str]:
        """Return when all that an op needs is there, when the latest of it was computed, and which it is."""
        there, computed, cause = 0, 0, "forward" if op.kind == F else "gradient"
        for link in inputs(self.problem, self.layout, op, fused=self.fused):
            end = int(self.end[link.before])
            if end + link.delay > there:
                there, computed = end + link.delay, end
        return there, computed, cause

    def _fits_early(self, place: int, other: int) -> bool:
        """Whether the op at `other` could run right before the one at `place`, everything else as it is."""
        cap = self.problem.capacity[self.device]
        change = change_of(self.problem, self.layout, self.order[other])
        if cap is None or change <= 0:
            return True
        return max(self.levels[place : other + 1]) + change <= cap
