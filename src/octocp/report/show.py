"""A plan on the terminal: what it reaches, what each device does, and a Gantt strip per device."""

from __future__ import annotations

from collections import defaultdict
from io import StringIO
from itertools import groupby
from statistics import median
from typing import Any

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from octocp.report.bubbles import BubbleReport, DeviceStatistics, analyse
from octocp.report.units import (
    axis_marks,
    chunks,
    counted,
    device_count,
    device_names,
    has_sizes,
    milliseconds,
    percent,
    printable,
    sentence,
    stage_layers,
)
from octocp.report.words import bound_words
from octocp.schema import Plan, PlanOp

MIN_WIDTH = 40
# From here on, the table has room for full headings; a narrower one abbreviates.
WIDE = 88
MAX_RANGES = 8

# 256-colour numbers, two shades a kind: a device's stages alternate between them.
STYLES = {
    "F": ("bold color(231) on color(25)", "bold color(231) on color(67)"),
    "B": ("bold color(16) on color(208)", "bold color(16) on color(215)"),
    "W": ("bold color(16) on color(107)", "bold color(16) on color(150)"),
}
IDLE_STYLE = "color(244)"
# Without colour the kinds differ by letter and by the line that follows it.
FILL = {True: {"F": "─", "B": "═", "W": "┄", "": "·"}, False: {"F": "-", "B": "=", "W": "~", "": "."}}
# Where most ops are narrower than this, letters and numbers are noise: the strip is shaded by kind instead.
LETTER_COLUMNS = 1.25
SHADE = {True: {"F": "█", "B": "▒", "W": "░", "": "·"}, False: {"F": "#", "B": "=", "W": "-", "": "."}}


def render(plan: Plan, width: int = 100, *, colour: bool = False, unicode: bool = True) -> str:
    """Render a plan for the terminal.

    Parameters
    ----------
    plan : Plan
        The plan; it need not be valid.
    width : int
        Columns to fill, at least 40.
    colour : bool
        With ANSI colours; without, kinds differ by letter and line.
    unicode : bool
        Whether the output can show more than ASCII.

    Returns
    -------
    str
        Lines of at most `width` columns, ending in a newline.
    """
    width = max(width, MIN_WIDTH)
    out = StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=colour,
        no_color=not colour,
        color_system="256" if colour else None,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.print(view(plan, width, colour=colour, unicode=unicode))
    text = "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
    return text if unicode else text.encode("ascii", "replace").decode("ascii")


def view(plan: Plan, width: int = 100, *, colour: bool = False, unicode: bool = True) -> RenderableType:
    """Return what `render` renders, for a rich console of one's own."""
    report = analyse(plan)
    return Group(
        _header(plan, report),
        Text(),
        _table(plan, report, width, unicode),
        Text(),
        *_gantt(plan, width, colour, unicode),
    )


def summary(plan: Plan) -> dict[str, Any]:
    """Return the same facts as plain data: times in ticks and milliseconds, sizes in GB."""
    report, layers = analyse(plan), stage_layers(plan)
    return {
        "instance": plan.instance.name,
        "model": plan.instance.model.name,
        "method": plan.method,
        "status": plan.status,
        "objective": plan.objective,
        "tick_us": plan.tick_us,
        "makespan": plan.makespan,
        "makespan_ms": milliseconds(plan, plan.makespan),
        "span": plan.span,
        "span_ms": milliseconds(plan, plan.span),
        "lower_bound": plan.lower_bound,
        "lower_bound_ms": milliseconds(plan, plan.lower_bound),
        "bound_name": plan.solve.bound_name,
        "found_by": plan.solve.found_by,
        "gap": plan.gap,
        "bubble": report.bubble,
        "partition": plan.partition,
        "placement": plan.placement,
        "recompute": plan.recompute,
        "devices": [_device_data(plan, each, layers) for each in report.devices],
    }


def _device_data(plan: Plan, device: DeviceStatistics, layers: list[tuple[int, int]]) -> dict[str, Any]:
    return {
        "device": device.device,
        "name": device.name,
        "stages": [
            {
                "stage": stage,
                "first_layer": layers[stage][0],
                "last_layer": layers[stage][1],
                "recompute": _recomputes(plan, stage),
            }
            for stage in device.stages
        ],
        "busy": device.busy,
        "busy_ms": milliseconds(plan, device.busy),
        "idle": device.idle,
        "idle_ms": milliseconds(plan, device.idle),
        "leading": device.leading,
        "inner": device.inner,
        "trailing": device.trailing,
        "warm_up": device.warm_up,
        "steady": device.steady,
        "cool_down": device.cool_down,
        "imbalance": device.imbalance,
        "peak_memory_gb": device.peak_memory_gb,
        "memory_gb": device.memory_gb,
    }


def _recomputes(plan: Plan, stage: int) -> bool:
    return stage < len(plan.recompute) and plan.recompute[stage]


def _header(plan: Plan, report: BubbleReport) -> Text:
    instance = plan.instance
    text = Text()
    text.append(printable(instance.name), "bold")
    text.append(f", method {printable(plan.method)}: {sentence(plan, report.bubble)}.\n")
    shape = ", ".join(
        [
            f"Model {printable(instance.model.name)}",
            counted(len(instance.model.layer_kinds()), "layer"),
            counted(len(plan.partition), "stage"),
            counted(device_count(plan), "device"),
            counted(len(instance.lengths()), "microbatch", "microbatches"),
        ]
    )
    text.append(f"{shape}.")
    if plan.solve.found_by:
        text.append(f"\nFound by {printable(plan.solve.found_by, 60)}.")
    if plan.solve.bound_name:
        name = printable(plan.solve.bound_name, 60)
        words = bound_words(plan.solve.bound_name)
        text.append(f"\nBound: {name}" + (f" ({words})." if words else "."))
    return text


def _table(plan: Plan, report: BubbleReport, width: int, unicode: bool) -> RenderableType:
    wide = width >= WIDE
    table = Table(box=box.SIMPLE_HEAD if wide and unicode else None, padding=(0, 1, 0, 0), pad_edge=False)
    # Numbers are never cut short, so the names get what is left.
    table.add_column("device" if wide else "dev", no_wrap=True, max_width=min(24, width - 78) if wide else None)
    table.add_column("layers", overflow="fold", min_width=5)
    names = ("busy", "warm-up", "steady", "cool-down") if wide else ("busy", "warm", "stdy", "cool")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    if wide:
        table.add_column("imbalance*", justify="right", no_wrap=True)
    table.add_column("peak memory" if wide else "GB", justify="right", no_wrap=True)
    layers, labels, sized = stage_layers(plan), _labels(plan, width), has_sizes(plan)
    for device in report.devices:
        parts = [device.busy, device.warm_up, device.steady, device.cool_down, *([device.imbalance] * wide)]
        shares = [part / report.makespan if report.makespan else 0.0 for part in parts]
        label = device.name if wide else labels[device.device]
        cells = [label, _layers(plan, device, layers)]
        cells += [percent(share) if wide else f"{100 * share:.0f}%" for share in shares]
        table.add_row(*(Text(cell) for cell in (*cells, _memory(device, wide, sized))))
    notes = ["Idle time is warm-up, steady and cool-down; with busy they add up to the whole step."]
    if wide:
        notes.append("* of the idle time, what is due to less work than on the busiest device; no further share.")
    if not sized:
        notes.append("No peak memory, since nothing in the model has a size.")
    if any(plan.recompute):
        notes.append("r: recomputes its forward during backward.")
    return Group(table, Text("\n".join(notes), "dim"))


def _labels(plan: Plan, width: int) -> list[str]:
    """Return a short label for each device: its own name where that fits, or else d and its index."""
    room = width // 5 if width >= WIDE else 2 + (width - MIN_WIDTH) // 4
    return [
        f"d{index}" if name == f"device {index}" or cell_len(name) > room else name
        for index, name in enumerate(device_names(plan))
    ]


def _layers(plan: Plan, device: DeviceStatistics, layers: list[tuple[int, int]]) -> str:
    ranges = [
        (f"{first}-{last}" if first < last else str(first)) + ("r" if _recomputes(plan, stage) else "")
        for stage in device.stages[:MAX_RANGES]
        for first, last in [layers[stage]]
    ]
    rest = len(device.stages) - len(ranges)
    return ", ".join(ranges + ([f"and {rest} more"] if rest else [])) or "none"


def _memory(device: DeviceStatistics, wide: bool, sized: bool) -> str:
    peak = "?" if device.peak_memory_gb is None else _size(device.peak_memory_gb, wide)
    if not sized:
        return "-"
    if device.memory_gb is None:
        return f"{peak} GB" if wide else peak
    limit = _size(device.memory_gb, wide)
    return f"{peak} / {limit} GB" if wide else f"{peak}/{limit}"


def _size(gigabytes: float, wide: bool) -> str:
    return f"{gigabytes:,.0f}" if gigabytes >= 1000 else f"{gigabytes:{'.4g' if wide else '.3g'}}"


# ---------------------------------------------------------------------------------------------
# The Gantt strip


def _gantt(plan: Plan, width: int, colour: bool, unicode: bool) -> list[Text]:
    makespan = max((op.end for op in plan.ops), default=0)
    if not makespan:
        return [Text("No op takes any time.")]
    names = _labels(plan, width)
    margin = max(map(cell_len, names))
    columns = width - margin - 1
    by_device: dict[int, list[PlanOp]] = defaultdict(list)
    for op in plan.ops:
        by_device[op.device].append(op)
    place = chunks(plan)
    crowded = _crowded(plan, makespan, columns)
    lines = []
    for device, name in enumerate(names):
        line = Text(set_cell_size(name, margin) + " ", no_wrap=True)
        if crowded:
            _shaded(line, strip_kinds(by_device[device], makespan, columns), colour, unicode)
        else:
            _strip(line, strip_owners(by_device[device], makespan, columns), place, colour, unicode)
        lines.append(line)
    legend = _legend(plan, colour, unicode, crowded)
    return [*lines, *_axis(plan, makespan, margin, columns, unicode), *legend]


def _crowded(plan: Plan, makespan: int, columns: int) -> bool:
    """Tell whether the typical op is too narrow for a letter of its own."""
    lengths = [op.end - op.start for op in plan.ops if op.end > op.start]
    return bool(lengths) and median(lengths) * columns < LETTER_COLUMNS * makespan


def _shares(ops: list[PlanOp], makespan: int, columns: int) -> list[dict[str, int]]:
    """Return how much of each column each kind of op fills, and idle time as kind ""; a column is `makespan` wide."""
    shares: list[dict[str, int]] = [defaultdict(int) for _ in range(columns)]
    for op in ops:
        start, end = op.start * columns, op.end * columns
        for column in range(start // makespan, min(-(-end // makespan), columns)):
            shares[column][op.kind] += min(end, (column + 1) * makespan) - max(start, column * makespan)
    for share in shares:
        share[""] = makespan - sum(share.values())
    return shares


def strip_kinds(ops: list[PlanOp], makespan: int, columns: int) -> list[str]:
    """Return the kind that each column of a crowded strip shows; "" for idle.

    What a column holds beside the kind it shows is carried on to its neighbours, so that over any stretch
    each kind, and idle time, gets about as many columns as it has time. A column shows only what is in it.
    """
    owed: dict[str, int] = defaultdict(int)
    kinds = []
    for share in _shares(ops, makespan, columns):
        for kind, part in share.items():
            owed[kind] += part
        shown = max((kind for kind, part in share.items() if part > 0), key=lambda kind: owed[kind], default="")
        owed[shown] -= makespan
        kinds.append(shown)
    return kinds


def strip_owners(ops: list[PlanOp], makespan: int, columns: int) -> list[PlanOp | None]:
    """Return which op each column of a strip shows; None for idle.

    A column shows what fills most of it: idle time, or the kind of op with the largest share and
    of that kind the op with the largest share.
    """
    shares: list[dict[str, int]] = [defaultdict(int) for _ in range(columns)]
    largest: list[dict[str, tuple[int, PlanOp]]] = [{} for _ in range(columns)]
    for op in ops:
        # In units of a tick over `columns`, columns are whole: column c spans [c, c + 1) x makespan.
        start, end = op.start * columns, op.end * columns
        for column in range(start // makespan, min(-(-end // makespan), columns)):
            share = min(end, (column + 1) * makespan) - max(start, column * makespan)
            shares[column][op.kind] += share
            if share > largest[column].get(op.kind, (0, op))[0]:
                largest[column][op.kind] = (share, op)
    owners: list[PlanOp | None] = []
    for share_of, best in zip(shares, largest, strict=True):
        idle = makespan - sum(share_of.values())
        kind = max(share_of, key=lambda kind: share_of[kind], default="")
        owners.append(best[kind][1] if kind in best and share_of[kind] >= idle else None)
    return owners


def _strip(
    line: Text,
    owners: list[PlanOp | None],
    place: dict[int, tuple[int, int]],
    colour: bool,
    unicode: bool,
) -> None:
    fill = FILL[unicode]
    column = 0
    while column < len(owners):
        owner, stop = owners[column], column
        while stop < len(owners) and owners[stop] is owner:
            stop += 1
        if owner is None:
            line.append(fill[""] * (stop - column), IDLE_STYLE if colour else "")
        else:
            shade = place.get(owner.stage, (0, 1))[0] % 2
            letter = owner.kind.lower() if shade else owner.kind
            label = f"{letter}{owner.microbatch}"
            shown = label if len(label) <= stop - column else letter
            text = shown.ljust(stop - column, " " if colour else fill[owner.kind])
            line.append(text, STYLES[owner.kind][shade] if colour else "")
        column = stop


def _shaded(line: Text, kinds: list[str], colour: bool, unicode: bool) -> None:
    for kind, run in groupby(kinds):
        length = len(list(run))
        if colour:
            line.append((" " if kind else FILL[unicode][""]) * length, STYLES[kind][0] if kind else IDLE_STYLE)
        else:
            line.append(SHADE[unicode][kind] * length)


def _axis(plan: Plan, makespan: int, margin: int, columns: int, unicode: bool) -> list[Text]:
    extent = milliseconds(plan, makespan)
    rule, tick = ("─", "┴") if unicode else ("-", "+")
    line, labels = [rule] * columns, [" "] * columns
    free = 0
    for position, label in axis_marks(extent, max(1, columns // 11)):
        column = min(columns - 1, int(position / extent * columns))
        line[column] = tick
        # The unit stands at the right end; a label that would run into it or its neighbour is left out.
        if column >= free and column + len(label) <= columns - 3:
            labels[column : column + len(label)] = label
            free = column + len(label) + 1
    labels[-2:] = "ms"
    indent = " " * (margin + 1)
    return [Text(indent + "".join(line), no_wrap=True), Text(indent + "".join(labels), no_wrap=True)]


def _legend(plan: Plan, colour: bool, unicode: bool, crowded: bool) -> list[Text]:
    fill = (SHADE if crowded else FILL)[unicode]
    split = plan.instance.training.split_backward
    words = {"F": "forward", "B": "backward, input" if split else "backward"}
    if split:
        words["W"] = "backward, weights"
    text = Text()
    for kind, word in words.items():
        sample = fill[kind] * 3 if crowded else f"{kind}0" + fill[kind] * 2
        if colour:
            sample = " " * 3 if crowded else f"{kind}0 "
        text.append(sample, STYLES[kind][0] if colour else "")
        text.append(f" {word}   ")
    text.append(fill[""] * 3, IDLE_STYLE if colour else "")
    text.append(" idle   ")
    if crowded:
        text.append("Ops are too many to tell apart: each column is one kind, and kinds have their share of columns.")
        return [text]
    text.append("number: microbatch")
    if any(count > 1 for _, count in chunks(plan).values()):
        text.append("   f, b, w: every other stage of a device" if split else "   f, b: every other stage of a device")
    return [text]
