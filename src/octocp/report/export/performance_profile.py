"""A performance profile (Dolan and Moré, 2002): per method, the share of instances within a factor of the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octocp.report.export.gantt import GRID, INK, MUTED, Label, Line, Scene
from octocp.report.units import axis_marks, printable

WIDTH, HEIGHT = 620.0, 360.0
LEFT, TOP, BESIDE = 62.0, 66.0, 300.0
LEAST_FACTOR, MOST_FACTOR = 1.1, 2.0
# Methods beyond these are grey: more colours than that no eye keeps apart.
COLOURS = ("#31659f", "#e88c3c", "#5b8c3a", "#8d4f9f", "#c0392b", "#1f9e9e", "#8c6d1f", "#d16ba5")
REST = "#b9c0c7"
LEGEND_PITCH = 17.0


def layout(curves: Mapping[str, Sequence[float | None]], title: str) -> Scene:
    """Lay out one step curve per method.

    Parameters
    ----------
    curves : mapping of str to sequence of float or None
        By method, best first: on each instance, value over the best value; None where there is no plan.
    title : str
        What the picture is of.
    """
    known = [ratio for ratios in curves.values() for ratio in ratios if ratio is not None]
    most = min(MOST_FACTOR, max([LEAST_FACTOR, *known]))
    height = max(HEIGHT, LEGEND_PITCH * len(curves))
    scene = Scene(LEFT + WIDTH + BESIDE, TOP + height + 56)
    scene.labels += [
        Label(16, 26, printable(title, 90), 15, bold=True),
        Label(16, 45, "share of instances on which a method is within a factor of the best plan of all", 11, MUTED),
        Label(LEFT + WIDTH / 2, TOP + height + 40, "factor", 10, MUTED, "middle"),
    ]

    def across(factor: float) -> float:
        return LEFT + (min(factor, most) - 1) / (most - 1) * WIDTH

    def up(share: float) -> float:
        return TOP + (1 - share) * height

    for quarter in range(5):
        y = up(quarter / 4)
        scene.lines.append(Line(LEFT, y, LEFT + WIDTH, y, GRID))
        scene.labels.append(Label(LEFT - 8, y + 3.5, f"{25 * quarter} %", 10, MUTED, "end"))
    for position, _ in axis_marks(most - 1, 8):
        x = across(1 + position)
        scene.lines.append(Line(x, TOP + height, x, TOP + height + 4, MUTED, 0.8))
        scene.labels.append(Label(x, TOP + height + 18, f"{1 + position:.4g}", 10, MUTED, "middle"))
    # The best one last, on top of the others.
    for index, (method, ratios) in reversed(list(enumerate(curves.items()))):
        fill = COLOURS[index] if index < len(COLOURS) else REST
        width = 2.0 if index < len(COLOURS) else 1.0
        x, share = LEFT, 0.0
        for ratio in sorted(ratio for ratio in ratios if ratio is not None and ratio <= most):
            step = across(ratio)
            scene.lines.append(Line(x, up(share), step, up(share), fill, width))
            scene.lines.append(Line(step, up(share), step, up(share + 1 / len(ratios)), fill, width))
            x, share = step, share + 1 / len(ratios)
        scene.lines.append(Line(x, up(share), LEFT + WIDTH, up(share), fill, width))
        y = TOP + 8 + LEGEND_PITCH * index
        scene.lines.append(Line(LEFT + WIDTH + 18, y - 3.5, LEFT + WIDTH + 40, y - 3.5, fill, width))
        scene.labels.append(Label(LEFT + WIDTH + 46, y, printable(method, 36), 10.5, INK))
    return scene
