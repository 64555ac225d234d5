"""Comparisons as scenes to draw: which rows, and the curves of all methods."""

from __future__ import annotations

from collections.abc import Sequence

from octocp.comparison.rows import Comparison, Row, plan_of
from octocp.comparison.standings import counts, standings
from octocp.report.export import performance_profile, side_by_side
from octocp.report.export.gantt import Scene
from octocp.report.units import counted
from octocp.schema import Plan


def rows_scene(comparison: Comparison, names: Sequence[str] = ()) -> Scene:
    """Return timelines, bubbles and memory of rows.

    Parameters
    ----------
    names : sequence of str
        The rows; by default one's own, the best known one and the solver's, three at most.

    Raises
    ------
    InputError
        There is no such row, or it has no plan.
    """
    plans = [plan_of(comparison, name) for name in names] if names else _defaults(comparison)
    return side_by_side.layout(plans)


def _defaults(comparison: Comparison) -> list[Plan]:
    ranked = comparison.ranked()
    own = [row for row in ranked if row.kind == "own"]
    solver = [row for row in ranked if row.kind == "solver"]
    known = [row for row in ranked if row.kind not in ("own", "solver")]
    chosen: list[Row] = [*own[:1], *known[:1], *solver]
    if len(chosen) < 2:
        chosen += own[1:2] or [row for row in known[1:] if row.family != known[0].family][:1]
    return [row.plan for row in chosen if row.plan is not None]


def profile_scene(comparisons: Sequence[Comparison]) -> Scene:
    """Return the performance profile over several instances."""
    number = sum(map(counts, comparisons))
    curves = {one.method: one.ratios for one in standings(comparisons)}
    return performance_profile.layout(curves, f"Performance profile, {counted(number, 'instance')}")
