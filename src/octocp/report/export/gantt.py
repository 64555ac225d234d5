"""The Gantt chart as a list of boxes, lines and texts; SVG and PNG only draw it, so they look the same."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import ceil
from statistics import median
from typing import Literal

from octocp.report.bubbles import BubbleReport, analyse
from octocp.report.units import (
    amount,
    axis_marks,
    chunks,
    device_names,
    milliseconds,
    percent,
    printable,
    stage_layers,
)
from octocp.schema import Plan, PlanOp

# Apart in hue for most eyes and in lightness for a grey print.
COLOURS = {"F": (49, 101, 163), "B": (232, 140, 60), "W": (176, 207, 121)}
INK, MUTED, GRID, IDLE, PAPER = "#1f2328", "#667079", "#dde1e6", "#f3f4f6", "#ffffff"
# Mean advance of a sans-serif digit or letter, in parts of the font size.
ADVANCE = 0.6
# Points below which a number cannot be read; where most ops have no room for one, none has.
LEAST_NUMBER = 6.0
LEAST_NAME = 7.0

LEFT, RIGHT, TOP, BOTTOM = 16.0, 20.0, 84.0, 46.0
NODE = "#8b949e"
SHARE_WIDTH = 44.0
MIN_CHART, CROWDED_CHART, MAX_CHART = 860.0, 1500.0, 2600.0
MAX_ROWS_HEIGHT = 2400.0

Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True)
class Box:
    """A filled rectangle, in points from the top left; `tip` is what a viewer may show for it."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    tip: str = ""


@dataclass(frozen=True)
class Line:
    """A straight line, in points."""

    x1: float
    y1: float
    x2: float
    y2: float
    stroke: str
    width: float = 0.6


@dataclass(frozen=True)
class Label:
    """A text on its baseline, in points."""

    x: float
    y: float
    text: str
    size: float
    fill: str = INK
    anchor: Anchor = "start"
    bold: bool = False


@dataclass
class Scene:
    """All of a chart, in drawing order: boxes, lines, labels."""

    width: float
    height: float
    boxes: list[Box] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)


def colour(kind: str, chunk: int, count: int) -> str:
    """Return a kind's colour, the lighter the later the stage is among the device's own."""
    mix = 0.0 if count < 2 else 0.5 * chunk / (count - 1)
    return "#" + "".join(f"{round(part + (255 - part) * mix):02x}" for part in COLOURS[kind])


def ink_on(fill: str) -> str:
    """Return the text colour that is legible on `fill`."""
    red, green, blue = (int(fill[i : i + 2], 16) for i in (1, 3, 5))
    return PAPER if 0.299 * red + 0.587 * green + 0.114 * blue < 140 else INK


@dataclass(frozen=True)
class Frame:
    """Where the chart proper lies on the page, in points; `scale` is points per tick, `name_size` a font size."""

    left: float
    width: float
    top: float
    bottom: float
    pitch: float
    row: float
    scale: float
    name_size: float


def frame_for(names: list[str], top: float, width: float, pitch: float, makespan: int) -> Frame:
    """Return the frame of a timeline with a row for each name; `makespan` in ticks fills its width."""
    name_size = min(11.0, max(pitch * 0.8, LEAST_NAME))
    return Frame(
        left=LEFT + max(map(len, names)) * name_size * ADVANCE + 8,
        width=width,
        top=top,
        bottom=top + pitch * len(names),
        pitch=pitch,
        row=pitch * (0.8 if pitch > 12 else 0.9),
        scale=width / makespan if makespan else 0.0,
        name_size=name_size,
    )


def layout(plan: Plan) -> Scene:
    """Lay the chart out.

    The chart is as wide as its typical op needs to show its microbatch number, within limits;
    rows get lower where there are many devices.
    """
    report, names = analyse(plan), device_names(plan)
    width = chart_width(plan, report.makespan)
    frame = frame_for(names, TOP, width, min(34.0, MAX_ROWS_HEIGHT / len(names)), report.makespan)
    scene = Scene(frame.left + width + SHARE_WIDTH + RIGHT, frame.bottom + BOTTOM)
    _title(scene, plan, report.bubble)
    legend(scene, plan, frame.left, TOP - 6.0, numbered=numbered(plan, frame), nodes=bool(_node_borders(plan)))
    axis(scene, milliseconds(plan, report.makespan), frame)
    timeline(scene, plan, report, frame)
    return scene


def timeline(scene: Scene, plan: Plan, report: BubbleReport, frame: Frame) -> None:
    """Draw a row for each device: its name, its ops, and how much of the plan's makespan it is busy."""
    names, place, layers = device_names(plan), chunks(plan), stage_layers(plan)
    makespan, size, with_numbers = report.makespan, frame.name_size, numbered(plan, frame)
    beside = frame.left + frame.width + 8
    scene.labels.append(Label(beside, frame.top - 6, "busy", 9, MUTED))
    by_device: dict[int, list[PlanOp]] = defaultdict(list)
    for op in plan.ops:
        by_device[op.device].append(op)
    named = ceil(size * 1.1 / frame.pitch)
    for device, name in enumerate(names):
        y = frame.top + frame.pitch * device + (frame.pitch - frame.row) / 2
        scene.boxes.append(Box(frame.left, y, makespan * frame.scale, frame.row, IDLE))
        if device % named == 0:
            baseline = y + frame.row / 2 + size * 0.36
            busy = report.devices[device].busy / makespan if makespan else 0.0
            scene.labels += [
                Label(frame.left - 8, baseline, name, size, anchor="end"),
                Label(beside, baseline, f"{100 * busy:.0f} %", size * 0.9, MUTED),
            ]
        for op in sorted(by_device[device], key=lambda op: (op.start, op.end)):
            if op.end > op.start:
                fill = colour(op.kind, *place.get(op.stage, (0, 1)))
                _op(scene, op, frame, y, fill=fill, tip=_tip(plan, op, layers), numbered=with_numbers)
    for device in _node_borders(plan):
        y = frame.top + frame.pitch * device
        scene.lines.append(Line(LEFT, y, frame.left + frame.width + SHARE_WIDTH, y, NODE, 1.2))


def _node_borders(plan: Plan) -> list[int]:
    """Return the devices that begin another node than the device before them is on."""
    nodes = [device.node for device in plan.instance.cluster.device_list()]
    return [device for device in range(1, len(nodes)) if nodes[device] != nodes[device - 1]]


def numbered(plan: Plan, frame: Frame) -> bool:
    """Tell whether at least half of the ops have room for their microbatch's number."""
    timed = [op for op in plan.ops if op.end > op.start]
    room = sum(_number_size(op, frame) >= LEAST_NUMBER for op in timed)
    return 2 * room >= len(timed)


def _number_size(op: PlanOp, frame: Frame) -> float:
    """Return the font size at which an op's number fits its box."""
    width = _op_width(op, frame)
    return min(9.5, frame.row * 0.55, (width - 1.5) / (len(str(op.microbatch)) * ADVANCE))


def _op_width(op: PlanOp, frame: Frame) -> float:
    width = (op.end - op.start) * frame.scale
    # A hairline of paper between neighbours, as long as the box is wide enough to spare it.
    return width - (0.7 if width > 3 else 0.0)


def chart_width(plan: Plan, makespan: int) -> float:
    """Return the width at which the typical op has room for its microbatch's number, within limits; points."""
    lengths = [op.end - op.start for op in plan.ops if op.end > op.start]
    if not lengths:
        return MIN_CHART
    digits = len(str(max(op.microbatch for op in plan.ops)))
    legible = (digits * 8 * ADVANCE + 4) * makespan / median(lengths)
    # Where no page could show the numbers, a wide one only makes the rest small.
    return CROWDED_CHART if legible > 2 * MAX_CHART else min(max(legible, MIN_CHART), MAX_CHART)


def _tip(plan: Plan, op: PlanOp, layers: list[tuple[int, int]]) -> str:
    held = "layers {}-{}, ".format(*layers[op.stage]) if op.stage < len(layers) else ""
    start, end = milliseconds(plan, op.start), milliseconds(plan, op.end)
    return f"{op.kind} of stage {op.stage}, microbatch {op.microbatch}: {held}{start:,.6g} to {end:,.6g} ms"


def _op(scene: Scene, op: PlanOp, frame: Frame, y: float, *, fill: str, tip: str, numbered: bool) -> None:
    x, width = frame.left + op.start * frame.scale, _op_width(op, frame)
    scene.boxes.append(Box(x, y, width, frame.row, fill, tip))
    size = _number_size(op, frame)
    if numbered and size >= LEAST_NUMBER:
        baseline = y + frame.row / 2 + size * 0.36
        scene.labels.append(Label(x + width / 2, baseline, str(op.microbatch), size, ink_on(fill), "middle"))


def _title(scene: Scene, plan: Plan, bubble: float) -> None:
    name = f"{printable(plan.instance.name, 70)}, {printable(plan.method, 30)}"
    scene.labels.append(Label(LEFT, 26, name, 15, bold=True))
    parts = [f"{plan.objective} {amount(plan, plan.value)}"]
    if plan.objective == "span":
        parts.append(f"makespan {amount(plan, plan.makespan)}")
    proof = "optimal" if plan.status == "optimal" else f"gap {percent(plan.gap)}"
    parts += [f"lower bound {amount(plan, plan.lower_bound)}, {proof}", f"bubble {percent(bubble)}"]
    scene.labels.append(Label(LEFT, 45, "   ·   ".join(parts), 11, MUTED))


def legend(scene: Scene, plan: Plan, x: float, y: float, *, numbered: bool, nodes: bool) -> None:
    """Draw what the colours stand for, on a baseline `y`."""
    split = plan.instance.training.split_backward
    words = {"F": "forward", "B": "backward (inputs)" if split else "backward"}
    if split:
        words["W"] = "backward (weights)"
    deepest = min(max((count for _, count in chunks(plan).values()), default=1), 6)
    size = 10.0
    for kind, word in words.items():
        for chunk in range(deepest):
            scene.boxes.append(Box(x + chunk * 10, y - 8.5, 10, 10, colour(kind, chunk, deepest)))
        x += deepest * 10 + 5
        scene.labels.append(Label(x, y, word, size, MUTED))
        x += len(word) * size * 0.55 + 16
    scene.boxes.append(Box(x, y - 8.5, 10, 10, IDLE))
    _outline(scene, x, y - 8.5, 10)
    scene.labels.append(Label(x + 15, y, "idle", size, MUTED))
    notes = ["number: microbatch"] * numbered + ["lighter: later stage of the device"] * (deepest > 1)
    scene.labels.append(Label(x + 52, y, "; ".join(notes + ["line: another node"] * nodes), size, MUTED))


def _outline(scene: Scene, x: float, y: float, size: float) -> None:
    right, below = x + size, y + size
    for x1, y1, x2, y2 in (
        (x, y, right, y),
        (x, below, right, below),
        (x, y, x, below),
        (right, y, right, below),
    ):
        scene.lines.append(Line(x1, y1, x2, y2, GRID))


def axis(scene: Scene, extent: float, frame: Frame) -> None:
    """Draw the time axis under the rows; `extent` in milliseconds."""
    left, right, y = frame.left, frame.left + frame.width, frame.bottom + 2
    scene.lines.append(Line(left, y, right, y, MUTED, 0.8))
    for position, label in axis_marks(extent, int(frame.width // 90)):
        x = left + (position / extent * frame.width if extent else 0.0)
        scene.lines.append(Line(x, y, x, y + 4, MUTED, 0.8))
        scene.labels.append(Label(x, y + 16, label, 10, MUTED, "middle"))
    scene.labels.append(Label((left + right) / 2, y + 34, "time (ms)", 10, MUTED, "middle"))
