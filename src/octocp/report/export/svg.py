"""The Gantt chart as SVG, written out by hand: no dependency, crisp at any size."""

from __future__ import annotations

from xml.sax.saxutils import escape

from octocp.report.export.gantt import PAPER, Box, Label, Line, Scene, layout
from octocp.schema import Plan

FONT = "Helvetica Neue, Helvetica, Arial, DejaVu Sans, sans-serif"


def export(plan: Plan) -> bytes:
    """Return the chart as an SVG file; each op tells its times when pointed at."""
    return draw(layout(plan), plan.instance.name)


def draw(scene: Scene, title: str) -> bytes:
    """Return a scene as an SVG file."""
    width, height = _short(scene.width), _short(scene.height)
    parts = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="{FONT}" role="img">',
        f"<title>{_text(title)}</title>",
        f'<rect width="100%" height="100%" fill="{PAPER}"/>',
        *map(_box, scene.boxes),
        *map(_line, scene.lines),
        *map(_label, scene.labels),
        "</svg>",
    ]
    return ("\n".join(parts) + "\n").encode()


def _short(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _text(text: str) -> str:
    # XML has no way to hold control characters or lone surrogates.
    return escape("".join(character if character.isprintable() else "?" for character in text))


def _box(box: Box) -> str:
    head = (
        f'<rect x="{_short(box.x)}" y="{_short(box.y)}" width="{_short(box.width)}" '
        f'height="{_short(box.height)}" fill="{box.fill}"'
    )
    return f"{head}><title>{_text(box.tip)}</title></rect>" if box.tip else f"{head}/>"


def _line(line: Line) -> str:
    return (
        f'<line x1="{_short(line.x1)}" y1="{_short(line.y1)}" x2="{_short(line.x2)}" y2="{_short(line.y2)}" '
        f'stroke="{line.stroke}" stroke-width="{_short(line.width)}"/>'
    )


def _label(label: Label) -> str:
    anchor = f' text-anchor="{label.anchor}"' if label.anchor != "start" else ""
    weight = ' font-weight="bold"' if label.bold else ""
    return (
        f'<text x="{_short(label.x)}" y="{_short(label.y)}" font-size="{_short(label.size)}" '
        f'fill="{label.fill}"{anchor}{weight}>{_text(label.text)}</text>'
    )
