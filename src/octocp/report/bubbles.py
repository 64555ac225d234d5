"""Idle time of a plan: where it is, which phase it belongs to, and how much the loads explain."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from octocp.report.units import device_count, device_names, device_stages
from octocp.schema import Plan, PlanOp


@dataclass(frozen=True)
class DeviceStatistics:
    """Use of one device over the plan's makespan; times in ticks, sizes in GB.

    `leading`, `inner` and `trailing` add up to `idle`; so do `warm_up`, `steady` and `cool_down`.

    Attributes
    ----------
    stages : tuple of int
        The stages it holds, in model order.
    busy, idle : int
        Time in ops, and without one.
    leading, inner, trailing : int
        Idle before its first op, between its ops, after its last.
    warm_up, steady, cool_down : int
        Idle before `a`, between, after `b`, where a and b are the earlier and the later of its first B's
        start and its last F's end.
    imbalance : int
        The largest load of all devices minus its own: the idle time that its smaller load explains.
    peak_memory_gb, memory_gb : float or None
        Reported peak, and limit; None where there is none.
    """

    device: int
    name: str
    stages: tuple[int, ...]
    busy: int
    idle: int
    leading: int
    inner: int
    trailing: int
    warm_up: int
    steady: int
    cool_down: int
    imbalance: int
    peak_memory_gb: float | None
    memory_gb: float | None


@dataclass(frozen=True)
class BubbleReport:
    """Idle time of a whole plan.

    Attributes
    ----------
    makespan : int
        Ticks, from the ops.
    bubble : float
        Idle time over makespan x devices.
    devices : tuple of DeviceStatistics
        One per device.
    """

    makespan: int
    bubble: float
    devices: tuple[DeviceStatistics, ...]


def analyse(plan: Plan) -> BubbleReport:
    """Split the idle time of every device.

    Parameters
    ----------
    plan : Plan
        Any plan. Where it breaks the rules (ops that overlap, say), time in several ops counts once
        and an op that ends before it starts not at all.

    Returns
    -------
    BubbleReport
        Per device and overall; times in ticks.
    """
    makespan = max((op.end for op in plan.ops), default=0)
    by_device: dict[int, list[PlanOp]] = defaultdict(list)
    for op in plan.ops:
        if op.end >= op.start:
            by_device[op.device].append(op)
    cluster = plan.instance.cluster.device_list()
    names, stages, count = device_names(plan), device_stages(plan), device_count(plan)
    busy_spans = [_merged(by_device[device]) for device in range(count)]
    loads = [sum(end - start for start, end in spans) for spans in busy_spans]
    found = []
    for device in range(count):
        spans, ops = busy_spans[device], by_device[device]
        gaps = _gaps(spans, makespan)
        first = min((op.start for op in ops), default=makespan)
        last = max((op.end for op in ops), default=makespan)
        first_backward = min((op.start for op in ops if op.kind == "B"), default=None)
        last_forward = max((op.end for op in ops if op.kind == "F"), default=None)
        # A broken plan may lack one of the two on a device: the other one is then both marks.
        marks = [mark for mark in (first_backward, last_forward) if mark is not None] or [makespan]
        a, b = min(marks), max(marks)
        idle = makespan - loads[device]
        leading, trailing = _within(gaps, 0, first), _within(gaps, last, makespan)
        warm_up, cool_down = _within(gaps, 0, a), _within(gaps, b, makespan)
        found.append(
            DeviceStatistics(
                device=device,
                name=names[device],
                stages=tuple(stages[device]),
                busy=loads[device],
                idle=idle,
                leading=leading,
                inner=idle - leading - trailing,
                trailing=trailing,
                warm_up=warm_up,
                steady=idle - warm_up - cool_down,
                cool_down=cool_down,
                imbalance=max(loads) - loads[device],
                peak_memory_gb=plan.peak_memory_gb[device] if device < len(plan.peak_memory_gb) else None,
                memory_gb=cluster[device].memory_gb,
            )
        )
    total = makespan * count
    return BubbleReport(makespan, sum(each.idle for each in found) / total if total else 0.0, tuple(found))


def _merged(ops: list[PlanOp]) -> list[tuple[int, int]]:
    """Return the union of the ops' intervals, in order."""
    spans: list[tuple[int, int]] = []
    for start, end in sorted((op.start, op.end) for op in ops if op.end > op.start):
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return spans


def _gaps(spans: list[tuple[int, int]], makespan: int) -> list[tuple[int, int]]:
    ends = [0, *(end for _, end in spans)]
    starts = [*(start for start, _ in spans), makespan]
    return [(end, start) for end, start in zip(ends, starts, strict=True) if start > end]


def _within(gaps: list[tuple[int, int]], start: int, end: int) -> int:
    """Return how much of the gaps lies from `start` to `end`."""
    return sum(max(0, min(stop, end) - max(begin, start)) for begin, stop in gaps)
