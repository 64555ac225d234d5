"""Several plans of one instance in one picture: timelines on one axis, where their time goes, and peak memory."""

from __future__ import annotations

from collections.abc import Sequence

from octocp.report.bubbles import BubbleReport, analyse
from octocp.report.export.gantt import (
    BOTTOM,
    GRID,
    IDLE,
    LEFT,
    MAX_ROWS_HEIGHT,
    MUTED,
    PAPER,
    RIGHT,
    SHARE_WIDTH,
    Box,
    Frame,
    Label,
    Line,
    Scene,
    axis,
    chart_width,
    frame_for,
    legend,
    numbered,
    timeline,
)
from octocp.report.units import amount, axis_marks, device_names, has_sizes, milliseconds, percent, printable
from octocp.schema import Plan

HEAD, GAP = 40.0, 22.0
BAR, BARS_HEAD = 20.0, 34.0
MEMORY_HEIGHT, MEMORY_HEAD, MOST_BAR = 120.0, 44.0, 60.0
TITLE_HEIGHT = 40.0
# One colour per plan in the memory chart, apart in lightness; and the parts of the time of all devices.
PLANS = ("#31659f", "#e88c3c", "#7a9a4b")
PARTS = {"busy": "#31659f", "warm-up": "#f2c14e", "steady": "#d1495b", "cool-down": "#8d6a9f"}
LIMIT = "#b3261e"


def layout(plans: Sequence[Plan]) -> Scene:
    """Lay out plans of one instance, one below the other; the longest makespan fills the width.

    Parameters
    ----------
    plans : sequence of Plan
        One at least, all of one instance; each is named by its method.
    """
    reports = [analyse(plan) for plan in plans]
    longest = max(range(len(plans)), key=lambda index: reports[index].makespan)
    extent, names = reports[longest].makespan, device_names(plans[0])
    width = chart_width(plans[longest], extent)
    pitch = min(28.0, MAX_ROWS_HEIGHT / (len(names) * len(plans)))
    scene = Scene(0.0, 0.0)
    scene.labels.append(Label(LEFT, 26, printable(plans[0].instance.name, 90), 15, bold=True))
    y = TITLE_HEIGHT
    frames: list[Frame] = []
    for plan, report in zip(plans, reports, strict=True):
        frame = frame_for(names, y + HEAD, width, pitch, extent)
        frames.append(frame)
        text = f"{plan.objective} {amount(plan, plan.value)}, {_proof(plan)}, bubble {percent(report.bubble)}"
        scene.labels += [
            Label(LEFT, y + 12, printable(plan.method, 40), 12, bold=True),
            Label(frame.left, y + 28, text, 10, MUTED),
        ]
        timeline(scene, plan, report, frame)
        y = frame.bottom + GAP
    axis(scene, milliseconds(plans[longest], extent), frames[-1])
    y = frames[-1].bottom + BOTTOM
    legend(scene, plans[0], frames[0].left, y + 10, numbered=numbered(plans[0], frames[0]), nodes=False)
    y = _bars(scene, plans, reports, frames[0], y + GAP + 8)
    if any(map(has_sizes, plans)):
        y = _memory(scene, plans, reports, frames[0], y + GAP)
    scene.width, scene.height = frames[0].left + width + SHARE_WIDTH + RIGHT, y + 14
    return scene


def _proof(plan: Plan) -> str:
    return "optimal" if plan.status == "optimal" else f"gap {percent(plan.gap)}"


def _key(scene: Scene, x: float, y: float, entries: dict[str, str]) -> None:
    """Draw what colours stand for."""
    for word, fill in entries.items():
        scene.boxes.append(Box(x, y - 8.5, 10, 10, fill))
        scene.labels.append(Label(x + 14, y, word, 10, MUTED))
        x += 14 + len(word) * 5.6 + 16


def _bars(scene: Scene, plans: Sequence[Plan], reports: Sequence[BubbleReport], frame: Frame, top: float) -> float:
    """Draw a bar per plan, as long as its makespan: the mean over devices of busy time and idle time by phase."""
    scene.labels.append(Label(LEFT, top + 10, "where the time goes (mean of all devices)", 11, bold=True))
    scene.labels.append(Label(frame.left + frame.width + 8, top + 26, "bubble", 9, MUTED))
    _key(scene, frame.left, top + 26, PARTS)
    y = top + BARS_HEAD
    for plan, report in zip(plans, reports, strict=True):
        devices = report.devices
        x = frame.left
        totals = {
            "busy": sum(device.busy for device in devices),
            "warm-up": sum(device.warm_up for device in devices),
            "steady": sum(device.steady for device in devices),
            "cool-down": sum(device.cool_down for device in devices),
        }
        for part, total in totals.items():
            length = total / len(devices) * frame.scale
            share = total / (len(devices) * report.makespan) if report.makespan else 0.0
            tip = f"{printable(plan.method, 40)}: {part} {percent(share)}"
            scene.boxes.append(Box(x, y, length, BAR * 0.8, PARTS[part], tip))
            x += length
        baseline = y + BAR * 0.56
        scene.labels += [
            Label(frame.left + 6, baseline, printable(plan.method, 48), 9, PAPER, bold=True),
            Label(frame.left + frame.width + 8, baseline, percent(report.bubble), 9, MUTED),
        ]
        y += BAR
    return y


def _memory(scene: Scene, plans: Sequence[Plan], reports: Sequence[BubbleReport], frame: Frame, top: float) -> float:
    """Draw each device's peak by plan, beside its limit."""
    scene.labels.append(Label(LEFT, top + 10, "peak memory by device (GB)", 11, bold=True))
    fills = {printable(plan.method, 40): PLANS[index % len(PLANS)] for index, plan in enumerate(plans)}
    limits = [device.memory_gb for device in reports[0].devices]
    limited = any(limit is not None for limit in limits)
    _key(scene, frame.left, top + 26, {**fills, **({"limit": LIMIT} if limited else {})})
    peaks = [[device.peak_memory_gb or 0.0 for device in report.devices] for report in reports]
    most = max([*(limit for limit in limits if limit is not None), *(peak for row in peaks for peak in row)]) or 1.0
    base = top + MEMORY_HEAD + MEMORY_HEIGHT
    for position, label in axis_marks(most, 4):
        y = base - position / most * MEMORY_HEIGHT
        scene.lines.append(Line(frame.left, y, frame.left + frame.width, y, GRID))
        scene.labels.append(Label(frame.left - 6, y + 3, label, 9, MUTED, "end"))
    slot = frame.width / len(limits)
    group = min(slot * 0.8, MOST_BAR * len(plans))
    bar = group / len(plans)
    for device, limit in enumerate(limits):
        x = frame.left + slot * (device + 0.5) - group / 2
        scene.boxes.append(Box(x, top + MEMORY_HEAD, group, MEMORY_HEIGHT, IDLE))
        for index, (name, fill) in enumerate(fills.items()):
            peak = peaks[index][device]
            height = peak / most * MEMORY_HEIGHT
            tip = f"{name}, {reports[index].devices[device].name}: {peak:.4g} GB"
            scene.boxes.append(Box(x + index * bar, base - height, bar * 0.94, height, fill, tip))
        if limit is not None:
            y = base - limit / most * MEMORY_HEIGHT
            scene.lines.append(Line(x, y, x + group, y, LIMIT, 1.4))
        if slot > 24 or device % 4 == 0:
            scene.labels.append(Label(x + group / 2, base + 13, str(device), 9, MUTED, "middle"))
    return base + 16
