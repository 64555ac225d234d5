"""Print the tables of docs/benchmarks.md from scripts/bench/results/*.jsonl; ``--write`` puts them into the page.

python scripts/bench/tables.py --write
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from suites import SUITES, wavefront  # noqa: E402

from make_instances import ROWS  # noqa: E402

RESULTS = Path(__file__).parent / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
Row = dict[str, Any]


def rows_of(name: str) -> list[Row]:
    """Return the rows of one results file, the last one where an instance was run again."""
    path = RESULTS / f"{name}.jsonl"
    if not path.exists():
        return []
    found = (json.loads(line) for line in path.read_text().splitlines())
    return list({(row["instance"], row["method"], row["time_limit"]): row for row in found}.values())


def tuner() -> dict[str, int]:
    """Return the published value of OctoPipe's tuner by instance, ticks."""
    return {row.name: row.tuner for row in ROWS}


def mean_ratio(ratios: Iterable[float]) -> float:
    """Return the geometric mean."""
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs))


def gap(row: Row) -> float:
    """Return (value - bound) / value."""
    return (row["value"] - row["lower_bound"]) / row["value"]


def how(row: Row) -> str:
    """Say under which conditions a row was measured."""
    return f"{row['time_limit']:g} s, {row['workers']} workers, seed {row['seed']}, {row['machine']}"


def octopipe() -> str:
    """Tabulate the 36 published instances against OctoPipe's tuner."""
    rows, published = rows_of("octopipe"), tuner()
    if not rows:
        return "Not run yet."
    lines = [
        "| instance | OctoPipe | OctoCP | ratio | bound | gap | bound from | stages | first plan | within 1 % |",
        "|---|---:|---:|---:|---:|---:|---|---:|---:|---:|",
    ]
    for row in rows:
        value = published[row["instance"]]
        shown = "**0**" if gap(row) == 0 else f"{100 * gap(row):.2f} %"
        lines.append(
            f"| {row['instance']} | {value:,} | {row['value']:,} | {row['value'] / value:.4f} | {row['lower_bound']:,} "
            f"| {shown} | {row['bound_name']} | {row['stages']} "
            f"| {row['first_plan_s']:.2f} s | {row['within_1pct_s']:.1f} s |"
        )
    ratios = {row["instance"]: row["value"] / published[row["instance"]] for row in rows}
    eight = [ratio for name, ratio in ratios.items() if "-p8-" in name]
    gaps = [gap(row) for row in rows]
    summary = (
        f"{len(rows)} instances ({how(rows[0])}): geometric mean of the ratio {mean_ratio(ratios.values()):.4f}"
        + (f", at P=8 {mean_ratio(eight):.4f}" if eight else "")
        + f", worst {max(ratios.values()):.4f}; gap: median {100 * median(gaps):.2f} %, "
        f"largest {100 * max(gaps):.2f} %; "
        f"{sum(g == 0 for g in gaps)} proven optimal."
    )
    return "\n".join([summary, "", *lines])


def known() -> str:
    """Tabulate the cases with known answers."""
    rows = rows_of("known")
    if not rows:
        return "Not run yet."
    answers = json.loads((ROOT / "instances" / "best_known.json").read_text())
    lines = ["| instance | known optimum | value | bound | status | time |", "|---|---:|---:|---:|---|---:|"]
    for row in rows:
        lines.append(
            f"| {row['instance']} | {answers[row['instance']]['value']:,} | {row['value']:,} | {row['lower_bound']:,} "
            f"| {row['status']} | {row['seconds']:.1f} s |"
        )
    proven = sum(row["status"] == "optimal" for row in rows)
    right = sum(row["value"] == answers[row["instance"]]["value"] for row in rows)
    summary = f"{len(rows)} instances ({how(rows[0])}): {right} at the known optimum, {proven} proven."
    return "\n".join([summary, "", *lines])


def slackpipe() -> str:
    """Tabulate SlackPipe's matrix against the wavefront order."""
    rows, cases = rows_of("slackpipe"), SUITES["slackpipe"]()
    if not rows:
        return "Not run yet."
    lines = ["| case | bfs | OctoCP | ratio | bound | gap | time |", "|---|---:|---:|---:|---:|---:|---:|"]
    ratios = []
    for row in rows:
        value = wavefront(cases[row["instance"]]())
        ratios.append(row["value"] / value)
        shown = "**0**" if gap(row) == 0 else f"{100 * gap(row):.2f} %"
        lines.append(
            f"| {row['instance']} | {value:,} | {row['value']:,} | {ratios[-1]:.4f} | {row['lower_bound']:,} | {shown} "
            f"| {row['seconds']:.1f} s |"
        )
    summary = (
        f"{len(rows)} of {len(cases)} cases ({how(rows[0])}): geometric mean of the ratio {mean_ratio(ratios):.4f}, "
        f"worst {max(ratios):.4f}; {sum(gap(row) == 0 for row in rows)} proven optimal."
    )
    return "\n".join([summary, "", *lines])


TABLES: dict[str, Callable[[], str]] = {"octopipe": octopipe, "slackpipe": slackpipe, "known": known}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="replace the tables in docs/benchmarks.md")
    args = parser.parse_args()
    page = PAGE.read_text()
    for name, table in TABLES.items():
        text = table()
        if not args.write:
            print(f"## {name}\n\n{text}\n")
            continue
        begin, end = f"<!-- table: {name} -->", "<!-- end -->"
        before, rest = page.split(begin, 1)
        page = before + begin + "\n" + text + "\n" + end + rest.split(end, 1)[1]
    if args.write:
        PAGE.write_text(page)


if __name__ == "__main__":
    main()
