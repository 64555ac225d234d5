"""Memory over time, per device, in exact arithmetic; and its check against caps and reported peaks."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from functools import partial
from math import lcm

from octocp.checker.exact import ExactCosts, exact, partition_fits
from octocp.checker.structure import OpKey, index_ops
from octocp.checker.violations import Violations, gigabytes, name_device, name_op, number
from octocp.schema import Plan, PlanOp

# Reported peaks are floats that people may have rounded; caps are compared exactly.
REPORTED_TOLERANCE = Fraction(1, 10**6)

Steps = list[tuple[int, Fraction]]


def memory_timeline(plan: Plan) -> list[Steps]:
    """Return each device's memory use over time.

    Parameters
    ----------
    plan : Plan
        Any plan; where its partition does not fit its model, nothing is known and no device has steps.

    Returns
    -------
    list of list of (int, Fraction)
        Per device, from each tick on, the use in GB. The first step is at 0 or earlier.
    """
    if not partition_fits(plan):
        return [[] for _ in plan.instance.cluster.device_list()]
    return _steps(plan, index_ops(plan), ExactCosts(plan))


def _steps(plan: Plan, index: dict[OpKey, PlanOp], costs: ExactCosts) -> list[Steps]:
    # Whole multiples of one unit: sums of thousands of fractions would spend their time in gcd.
    stage_unit = lcm(
        *(
            size.denominator
            for stage in costs.stages
            for size in (stage.static, stage.activation, stage.weight_activation, stage.input)
        )
    )
    unit = stage_unit * lcm(*(length.denominator for length in costs.lengths))
    devices = len(costs.devices)
    static = [0] * devices
    for stage, device in zip(costs.stages, plan.placement, strict=False):
        if 0 <= device < devices:
            static[device] += int(stage.static * unit)
    scaled: dict[tuple[int, Fraction], tuple[int, int, int]] = {}
    changes: list[dict[int, int]] = [defaultdict(int) for _ in range(devices)]
    for (kind, number_, microbatch), forward in index.items():
        backward = index.get(("B", number_, microbatch))
        if kind != "F" or backward is None or not 0 <= forward.device < devices:
            continue
        stage, length = costs.stages[number_], costs.lengths[microbatch]
        if (number_, length) not in scaled:
            sizes = (stage.activation, stage.input, stage.weight_activation)
            full, kept, weight = (int(size * length * unit) for size in sizes)
            scaled[number_, length] = full, kept, weight
        full, kept, weight = scaled[number_, length]
        change = changes[forward.device]
        if stage.recomputes:
            _hold(change, forward.start, forward.end, full)
            _hold(change, forward.end, backward.start, kept)
            _hold(change, backward.start, backward.end, full)
        else:
            _hold(change, forward.start, backward.end, full)
        after = index.get(("W", number_, microbatch))
        if after is not None:
            _hold(change, backward.end, after.end, weight)
    steps: list[Steps] = []
    for device in range(devices):
        use = static[device]
        times = sorted(changes[device])
        line: Steps = [] if times and times[0] <= 0 else [(0, Fraction(use, unit))]
        # Changes at one tick are summed before the use is read: what is freed at t can be taken at t.
        for time in times:
            use += changes[device][time]
            line.append((time, Fraction(use, unit)))
        steps.append(line)
    return steps


def _hold(change: dict[int, int], start: int, end: int, amount: int) -> None:
    if end > start and amount:
        change[start] += amount
        change[end] -= amount


def check_memory(plan: Plan, index: dict[OpKey, PlanOp], costs: ExactCosts, complete: bool, found: Violations) -> None:
    """Check that no device passes its memory; the reported peaks are right (if all ops are there to tell)."""
    timelines = _steps(plan, index, costs)
    for device, steps in enumerate(timelines):
        time, peak = max(steps, key=lambda step: step[1])
        limit = costs.devices[device].memory_gb
        if limit is not None and peak > exact(limit):
            over = peak - exact(limit)
            found.add("memory", partial(_over_cap, plan, device, time, peak, over), over)
        if complete and device < len(plan.peak_memory_gb):
            said = exact(plan.peak_memory_gb[device])
            if abs(said - peak) > REPORTED_TOLERANCE * peak:
                found.add(
                    "peak_memory_gb",
                    f"{name_device(plan, device)} is reported with {gigabytes(said)}; its peak is "
                    f"{gigabytes(peak)} at tick {number(time)}, off by {gigabytes(abs(said - peak))}",
                    abs(said - peak),
                )


def check_peak_count(plan: Plan, found: Violations) -> None:
    """Check that there is one reported peak a device."""
    devices = len(plan.instance.cluster.device_list())
    if len(plan.peak_memory_gb) != devices:
        found.add("peak_memory_gb", f"has {len(plan.peak_memory_gb)} entries for {devices} devices")


def _over_cap(plan: Plan, device: int, time: int, peak: Fraction, over: Fraction) -> str:
    return (
        f"{name_device(plan, device)} holds {gigabytes(peak)} at tick {number(time)}"
        f"{_at(plan, device, time)}, {gigabytes(over)} above its {gigabytes(peak - over)}"
    )


def _at(plan: Plan, device: int, time: int) -> str:
    """Name an op that takes memory at a tick: one that starts there, or else one that ends there."""
    here = [op for op in plan.ops if op.device == device]
    for op in here:
        if op.start == time and op.kind != "W" and op.end > op.start:
            return f" with {name_op(op)}"
    return next((f" after {name_op(op)}" for op in here if op.end == time and op.kind == "B"), "")
