"""Rows and standings as plain data, for JSON and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from octocp.comparison.rows import Comparison, Row
from octocp.comparison.standings import WITHIN, Standing, standings
from octocp.report.units import device_names, milliseconds

DIGITS = 6


def rows_data(comparison: Comparison) -> list[dict[str, Any]]:
    """Return one object per row; keys for which there is no plan are None. Times in ticks, sizes in GB."""
    return [_row_data(comparison, row) for row in comparison.rows]


def _row_data(comparison: Comparison, row: Row) -> dict[str, Any]:
    plan, shares, excess = row.plan, row.shares, row.excess
    worst = row.worst_device
    return {
        "instance": comparison.instance.name,
        "method": row.method,
        "family": row.family,
        "kind": row.kind,
        "status": row.status,
        "makespan": plan and plan.makespan,
        "span": plan and plan.span,
        "value": row.value,
        "value_ms": plan and milliseconds(plan, plan.value),
        "ratio": _rounded(comparison.ratio(row)),
        "lower_bound": row.lower_bound,
        "gap": plan and _rounded(plan.gap),
        "bubble": shares and _rounded(shares.bubble),
        "warm_up": shares and _rounded(shares.warm_up),
        "steady": shares and _rounded(shares.steady),
        "cool_down": shares and _rounded(shares.cool_down),
        "imbalance": shares and _rounded(shares.imbalance),
        "peak_memory_gb": plan and plan.peak_memory_gb,
        "memory_gb": [device.memory_gb for device in comparison.instance.cluster.device_list()],
        "worst_device": None if worst is None or plan is None else device_names(plan)[worst],
        "excess_gb": excess and _rounded(excess.gigabytes),
        "excess_device": excess and excess.name,
        "seconds": round(row.seconds, 6),
        "partition": plan and plan.partition,
        "placement": plan and plan.placement,
        "reason": row.reason,
        "file": row.file or None,
        "value_over_limit": row.value_over_limit,
        "value_over_limit_ms": _over_limit_ms(comparison, row),
    }


def _over_limit_ms(comparison: Comparison, row: Row) -> float | None:
    ticks = row.value_over_limit
    return None if ticks is None else _rounded(ticks * comparison.instance.tick_us / 1000)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)


def all_data(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return one object for several instances: what became of each, all rows, and how the methods stand."""
    return {
        "instances": [
            {
                "instance": each.instance.name,
                "complete": each.complete,
                "best": each.best,
                "best_method": ranked[0].method if (ranked := each.ranked()) else None,
                "lower_bound": each.lower_bound,
                "reason": each.reason,
                "infeasible": bool(each.reason),
            }
            for each in comparisons
        ],
        "rows": [row for each in comparisons for row in rows_data(each)],
        "methods": [_standing_data(one) for one in standings(comparisons)],
    }


def _standing_data(one: Standing) -> dict[str, Any]:
    return {
        "method": one.method,
        "instances": len(one.ratios),
        "plans": one.plans,
        "geometric_mean_ratio": _rounded(one.mean),
        "best": one.best,
        "infeasible": one.infeasible,
        "not_applicable": one.not_applicable,
        "unknown": one.unknown,
        "within": {f"{factor:.2f}": _rounded(one.within(factor)) for factor in WITHIN},
    }


def csv_text(comparisons: Iterable[Comparison]) -> str:
    """Return all rows as CSV with the keys of the JSON rows; lists are separated by blanks, None is empty."""
    rows = [row for each in comparisons for row in rows_data(each)]
    out = io.StringIO()
    if rows:
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return " ".join("" if each is None else str(each) for each in value).strip()
    return "" if value is None else value
