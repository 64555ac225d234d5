"""What `octocp compare` shows on the terminal: tables that fit, and what has no place in them in a few lines."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octocp.cli.inputs import headline
from octocp.cli.output import is_terminal, width, write, write_table
from octocp.comparison import PARTITION_SECONDS, SOLVER, WITHIN, Comparison, Row, standings
from octocp.comparison.standings import counts
from octocp.report.units import counted, has_sizes, milliseconds, printable

if TYPE_CHECKING:
    from octocp.schema import Plan

NONE = "-"
# Where nobody looks at columns: for the lines below a table.
PROSE_WIDTH = 110


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes
    ----------
    give : int
        Columns with larger numbers are left out first where there is no room; 0 stays.
    """

    title: str
    cells: list[str]
    right: bool = True
    give: int = 0

    @property
    def width(self) -> int:
        """Characters that it takes."""
        return max(map(len, [self.title, *self.cells]))


def write_columns(columns: Sequence[Column], strong: Sequence[bool] = ()) -> None:
    """Write a table; where the terminal is too narrow, say which columns are left out."""
    from rich.table import Table

    gap, room = 2, width() if is_terminal() else None
    kept = list(columns)
    while room is not None and sum(column.width + gap for column in kept) - gap > room:
        if gap == 2 and sum(column.width + 1 for column in kept) - 1 <= room:
            gap = 1
            break
        loose = max(kept, key=lambda column: column.give)
        if not loose.give:
            gap = 1
            break
        kept.remove(loose)
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False)
    for column in kept:
        table.add_column(column.title, justify="right" if column.right else "left", no_wrap=True, overflow="ellipsis")
    for index, cells in enumerate(zip(*(column.cells for column in kept), strict=True)):
        table.add_row(*cells, style="bold" if index < len(strong) and strong[index] else None)
    write_table(table)
    left_out = [column.title for column in columns if column not in kept]
    if left_out:
        write(prose(f"No room for: {', '.join(left_out)}. A wider terminal, --json and --csv have them."))


def prose(text: str, indent: str = "") -> str:
    """Wrap a line to the terminal, further lines indented."""
    room = max(40, min(width(), 160)) if is_terminal() else PROSE_WIDTH
    return textwrap.fill(text, room, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) + "\n"


# ---- one instance ----------------------------------------------------------------------------


def write_rows(comparison: Comparison, *, solver: bool, only: bool) -> None:
    """Write the table of one instance, best first, and what is to be said about the rest.

    Parameters
    ----------
    solver, only : bool
        Whether the solver was to run; whether only some methods were asked for.
    """
    instance = comparison.instance
    write(headline(instance) + "\n\n")
    ranked = comparison.ranked()
    if ranked:
        write_columns(_columns(comparison, ranked), [row.kind in ("own", "solver") for row in ranked])
        write("\n")
    _write_without_a_plan(comparison)
    for row in comparison.rows:
        if row.kind == "own" and row.plan is not None:
            write(prose(_verdict(comparison, row)))
    _write_same(comparison)
    cut_short = comparison.ran_out
    finished = [name for name in comparison.no_better_partition if name not in cut_short]
    if finished and len(set(instance.lengths())) > 1:
        write(prose(f"No -best row of {', '.join(finished)}: microbatches differ, and partitions were not searched."))
    elif finished:
        write(prose(f"No -best row of {', '.join(finished)}: no partition is better for their orders."))
    if cut_short:
        why = f"no better partition was found before the seconds for it were over, {PARTITION_SECONDS:g} at most"
        write(prose(f"No -best row of {', '.join(cut_short)}: {why}."))
    if not solver:
        write("No row of cp-sat: --no-solver leaves it out.\n")
    elif only and not any(row.method == SOLVER for row in comparison.rows):
        write("No row of cp-sat: it had no turn.\n")
    if ranked:
        write(
            prose(
                "warm-up, steady and cool-down: idle time as a share of the step, bubble in all; imbal.: its part "
                "that uneven loads explain. ratio: to the best row. gap: the share of its time that could be saved at "
                "most."
            )
        )
    bound = comparison.lower_bound
    if bound is not None:
        write(f"No plan of this instance is below {bound} ticks ({bound * instance.tick_us / 1000:.6g} ms).\n")


def _columns(comparison: Comparison, rows: list[Row]) -> list[Column]:
    plans = [row.plan for row in rows if row.plan is not None]
    shares = [row.shares for row in rows if row.shares is not None]
    return [
        Column("method", [printable(row.method, 48) for row in rows], right=False),
        Column(f"{comparison.instance.objective} ms", [f"{milliseconds(plan, plan.value):.6g}" for plan in plans]),
        Column("ticks", [str(plan.value) for plan in plans], give=9),
        Column("ratio", [f"{comparison.ratio(row) or 0:.3f}" for row in rows]),
        Column("gap", ["optimal" if plan.status == "optimal" else f"{100 * plan.gap:.2f} %" for plan in plans]),
        Column("bubble", [_share(each.bubble) for each in shares], give=3),
        Column("warm-up", [_share(each.warm_up) for each in shares], give=2),
        Column("steady", [_share(each.steady) for each in shares], give=2),
        Column("cool-down", [_share(each.cool_down) for each in shares], give=2),
        Column("imbal.", [_share(each.imbalance) for each in shares], give=4),
        Column("peak GB", [_peak(row, plan) for row, plan in zip(rows, plans, strict=True)]),
        Column("stages", [str(len(plan.partition)) for plan in plans], give=6),
        Column("s", [f"{row.seconds:.2f}" for row in rows], give=7),
    ]


def _share(share: float) -> str:
    return f"{100 * share:.1f} %"


def _peak(row: Row, plan: Plan) -> str:
    """Word the peak of the device with least room: of its limit, and which it is where there are several."""
    if not has_sizes(plan) or row.worst_device is None or row.report is None:
        return NONE
    device = row.report.devices[row.worst_device]
    peak = f"{device.peak_memory_gb or 0.0:.4g}"
    return f"{peak}/{device.memory_gb:.4g} d{device.device}" if device.memory_gb else f"{peak} d{device.device}"


def _write_without_a_plan(comparison: Comparison) -> None:
    """Write the rows without a plan in as few lines as their reasons allow."""
    rows = comparison.rows
    over = [row for row in rows if row.status == "infeasible"]
    if over:
        # The least excess first: it is the nearest to a plan.
        over.sort(key=lambda row: row.excess.gigabytes if row.excess else float("inf"))
        words = [
            f"{printable(row.method, 60)} by {row.excess.gigabytes:.4g} GB on {printable(row.excess.name, 24)}"
            f"{_over_limit(comparison, row)}"
            if row.excess
            else f"{row.method} ({row.reason})"
            for row in over
        ]
        write(prose(f"Infeasible, over the memory limit: {'; '.join(words)}.", "  "))
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.status == "not-applicable":
            reasons.setdefault(row.reason, []).append(row.method)
    if reasons:
        write("Not applicable:\n")
        for reason, methods in reasons.items():
            write(prose(f"  {', '.join(methods)}: {reason}", "    "))
    for row in rows:
        if row.status == "unknown":
            write(prose(f"{row.method}: {row.reason}.", "  "))


def _over_limit(comparison: Comparison, row: Row) -> str:
    """Word what a schedule that breaks a limit would take."""
    ticks = row.value_over_limit
    return "" if ticks is None else f" ({ticks * comparison.instance.tick_us / 1000:.6g} ms)"


def _verdict(comparison: Comparison, row: Row) -> str:
    """Say how good a schedule of one's own is."""
    plan, best = row.plan, comparison.ranked()[0]
    assert plan is not None
    name = printable(row.method, 60)
    if plan.status == "optimal":
        return f"{name}: optimal; no plan of this instance is better."
    at_most = f"at most {100 * plan.gap:.2f} % of it can be saved"
    if best.plan is None or best.value == row.value:
        return f"{name}: no method here is better; {at_most}."
    saved = 100 * (1 - 1 / (comparison.ratio(row) or 1.0))
    return f"{name}: {best.method} saves {saved:.1f} % of its time; {at_most}."


def _write_same(comparison: Comparison) -> None:
    """Say which methods have no balanced row since that partition is their uniform one."""
    known = {row.method for row in comparison.rows}
    same = [row.method for row in comparison.rows if row.plan and row.kind == "known" and row.method == row.family]
    same = [name for name in same if f"{name}-balanced" not in known]
    if same:
        write(prose(f"No -balanced row of {', '.join(same)}: the balanced partition is the uniform one."))


# ---- several instances -----------------------------------------------------------------------


def write_standings(done: Sequence[Comparison]) -> None:
    """Write what became of each instance, then how each method stands over all of them."""
    _write_instances([each for each in done if each.rows])
    for each in done:
        if each.reason:
            write(prose(f"{printable(each.instance.name)}: proven infeasible, no plan exists: {each.reason}", "  "))
    found = standings(done)
    number = sum(map(counts, done))
    if not found:
        write("No method has a plan of any instance.\n")
        return
    write("\n")
    write_columns(
        [
            Column("method", [printable(one.method, 40) for one in found], right=False),
            Column("ratio", ["-" if one.mean is None else f"{one.mean:.3f}" for one in found]),
            Column("plans", [str(one.plans) for one in found]),
            Column("best", [str(one.best) for one in found]),
            Column("infeasible", [str(one.infeasible) for one in found], give=1),
            Column("n/a", [str(one.not_applicable) for one in found], give=1),
            Column("unknown", [str(one.unknown) for one in found], give=3 if any(o.unknown for o in found) else 9),
            *(
                Column(
                    f"<={factor:.4g}", [f"{100 * one.within(factor):.0f} %" for one in found], give=2 * (factor > 1.1)
                )
                for factor in WITHIN
            ),
        ]
    )
    write(
        prose(
            f"{counted(number, 'instance')}; each known schedule with the best of its partitions. ratio: geometric "
            "mean, over the instances with a plan, of value / best value of all methods; best: on how many it is the "
            "best. <=1.05: share of all instances on which it is within 1.05 of the best (performance profile)."
        )
    )
    left_out = [printable(each.instance.name) for each in done if not counts(each)]
    if left_out:
        write(prose(f"Not counted: {', '.join(left_out)}."))


def _write_instances(done: Sequence[Comparison]) -> None:
    if not done:
        return
    names, best, by, known, ratios, gaps = [], [], [], [], [], []
    for each in done:
        ranked = each.ranked()
        first = next((row for row in ranked if row.kind != "solver"), None)
        top = ranked[0].plan if ranked else None
        names.append(printable(each.instance.name, 48))
        best.append(f"{milliseconds(top, top.value):.6g}" if top else NONE)
        by.append(ranked[0].method if ranked else NONE)
        known.append(first.method if first else NONE)
        ratios.append(f"{each.ratio(first) or 0:.3f}" if first else NONE)
        gaps.append(NONE if top is None else "optimal" if top.status == "optimal" else f"{100 * top.gap:.2f} %")
    write_columns(
        [
            Column("instance", names, right=False),
            Column("best ms", best),
            Column("gap", gaps),
            Column("by", by, right=False),
            Column("best but the solver", known, right=False, give=1),
            Column("ratio", ratios),
        ]
    )
