"""The Gantt chart as PNG, drawn by matplotlib, which is an extra: imported only here, when asked for."""

from __future__ import annotations

import io
import warnings

from octocp.errors import InputError
from octocp.report.export.gantt import PAPER, Scene, layout
from octocp.schema import Plan

POINTS_PER_INCH = 72
DPI = 180
# Enough for print; beyond, a chart of a thousand devices would take gigabytes to draw.
MAX_PIXELS = 40e6


def export(plan: Plan) -> bytes:
    """Return the chart as a PNG file.

    Raises
    ------
    InputError
        matplotlib is not installed.
    """
    return draw(layout(plan), plan.instance.name)


def draw(scene: Scene, title: str) -> bytes:
    """Return a scene as a PNG file.

    Raises
    ------
    InputError
        matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.collections import LineCollection, PolyCollection
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(
            "PNG export needs matplotlib, which is not installed",
            right='pip install "octocp[plot]", or export svg',
        ) from None
    area = scene.width * scene.height / POINTS_PER_INCH**2
    dpi = min(DPI, (MAX_PIXELS / area) ** 0.5)
    # Not pyplot: no global figure, no window system, nothing to close.
    figure = Figure(figsize=(scene.width / POINTS_PER_INCH, scene.height / POINTS_PER_INCH), facecolor=PAPER)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, scene.width)
    axes.set_ylim(scene.height, 0)
    corners = [
        [(b.x, b.y), (b.x + b.width, b.y), (b.x + b.width, b.y + b.height), (b.x, b.y + b.height)] for b in scene.boxes
    ]
    axes.add_collection(
        PolyCollection(corners, facecolors=[box.fill for box in scene.boxes], linewidths=0), autolim=False
    )
    axes.add_collection(
        LineCollection(
            [[(line.x1, line.y1), (line.x2, line.y2)] for line in scene.lines],
            colors=[line.stroke for line in scene.lines],
            linewidths=[line.width for line in scene.lines],
        ),
        autolim=False,
    )
    align = {"start": "left", "middle": "center", "end": "right"}
    for label in scene.labels:
        axes.text(
            label.x,
            label.y,
            label.text,
            size=label.size,
            color=label.fill,
            ha=align[label.anchor],
            va="baseline",
            weight="bold" if label.bold else "normal",
            family=["DejaVu Sans"],
            # A name with dollar signs is a name, not a formula.
            parse_math=False,
        )
    out = io.BytesIO()
    with warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes; that is no reason to fail.
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(
            out,
            format="png",
            dpi=dpi,
            metadata={"Title": title.encode("ascii", "replace").decode()},
        )
    return out.getvalue()
