"""Small conversions that every view of a plan shares."""

from __future__ import annotations

import math
from decimal import Decimal
from itertools import accumulate

from octocp.schema import Plan


def milliseconds(plan: Plan, ticks: int) -> float:
    """Convert ticks to milliseconds; the product is exact, so that 3 ticks of 0.1 are 0.3."""
    return float(ticks * Decimal(repr(plan.tick_us)) / 1000)


def nanoseconds(plan: Plan, ticks: int) -> int:
    """Convert ticks to whole nanoseconds, the grid of trace viewers."""
    return round(ticks * Decimal(repr(plan.tick_us)) * 1000)


def printable(text: str, limit: int = 120) -> str:
    """Return `text` on one line, free of control characters, cut to `limit`."""
    clean = "".join(character if character.isprintable() else "?" for character in text)
    return clean if len(clean) <= limit else clean[: limit - 3] + "..."


def device_count(plan: Plan) -> int:
    """Return the number of devices of the plan's instance."""
    devices = plan.instance.cluster.devices
    return devices if isinstance(devices, int) else len(devices)


def device_names(plan: Plan) -> list[str]:
    """Return the printable name of each device."""
    return [printable(device.name or "", 40) for device in plan.instance.cluster.device_list()]


def stage_layers(plan: Plan) -> list[tuple[int, int]]:
    """Return the first and last layer of each stage, inclusive."""
    return [(end - size, end - 1) for end, size in zip(accumulate(plan.partition), plan.partition, strict=True)]


def device_stages(plan: Plan) -> list[list[int]]:
    """Return the stages of each device in model order; a stage placed nowhere is left out."""
    held: list[list[int]] = [[] for _ in range(device_count(plan))]
    for stage, device in zip(range(len(plan.partition)), plan.placement, strict=False):
        if 0 <= device < len(held):
            held[device].append(stage)
    return held


def chunks(plan: Plan) -> dict[int, tuple[int, int]]:
    """Return each stage's position among its device's stages, and how many that device holds."""
    return {stage: (position, len(stages)) for stages in device_stages(plan) for position, stage in enumerate(stages)}


def has_sizes(plan: Plan) -> bool:
    """Tell whether anything in the model takes memory; without that, a peak of 0 GB says nothing."""
    model = plan.instance.model
    fields = ["static_gb", "activation_gb", "weight_activation_gb"] + ["output_mb"] * any(plan.recompute)
    return any(getattr(model.costs(kind), field) for kind in set(model.layer_kinds()) for field in fields)


def axis_step(extent: float, marks: int) -> float:
    """Return the smallest of 1, 2, 5 times a power of ten that takes at most `marks` steps to `extent`."""
    if extent <= 0 or marks < 1:
        return 1.0
    rough = extent / marks
    power = 10.0 ** math.floor(math.log10(rough))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= rough * (1 - 1e-9)), 10 * power)


def axis_marks(extent: float, marks: int) -> list[tuple[float, str]]:
    """Return positions from 0 to `extent` and their labels, all with the same number of decimals."""
    step = axis_step(extent, marks)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    count = math.floor(extent / step + 1e-9) if extent > 0 else 0
    return [(index * step, f"{index * step:,.{decimals}f}") for index in range(count + 1)]


def percent(part: float) -> str:
    """Word a share."""
    return f"{100 * part:.1f} %"


def sentence(plan: Plan, bubble: float) -> str:
    """Say in one sentence what the plan reaches: value, bound, gap and bubble."""
    value, bound = amount(plan, plan.value), amount(plan, plan.lower_bound)
    return (
        f"{plan.objective} {value}, lower bound {bound}, gap {percent(plan.gap)}, {plan.status}; "
        f"bubble {percent(bubble)}"
    )


def amount(plan: Plan, ticks: int) -> str:
    """Word a time in milliseconds and ticks."""
    return f"{milliseconds(plan, ticks):,.6g} ms ({counted(ticks, 'tick')})"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Word a count of things."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
