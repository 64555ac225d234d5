"""Print the tables of docs/benchmarks.md from scripts/bench/results/*.jsonl; ``--write`` puts them into the page.

python scripts/bench/tables.py --write
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

from octocp import load_instance
from octocp.costs import build_problem
from octocp.cpsat.joint import build_joint
from octocp.dataset.reading import read_rows
from octocp.dataset.stats import collect

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from groundtruth import table as distance  # noqa: E402
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


def reached(row: Row, value: int) -> float:
    """Return the seconds after which a run had a plan of at most that value; infinite where never."""
    return next((seconds for seconds, found, *_ in row["trace"] if found is not None and found <= value), math.inf)


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
    early = sum(
        any(
            value is not None and value < published[row["instance"]] and seconds <= 10
            for seconds, value, *_ in row["trace"]
        )
        for row in rows
    )
    eight = [ratio for name, ratio in ratios.items() if "-p8-" in name]
    gaps = [gap(row) for row in rows]
    summary = (
        f"{len(rows)} instances ({how(rows[0])}): geometric mean of the ratio {mean_ratio(ratios.values()):.4f}"
        + (f", at P=8 {mean_ratio(eight):.4f}" if eight else "")
        + f", worst {max(ratios.values()):.4f}; gap: median {100 * median(gaps):.2f} %, "
        f"largest {100 * max(gaps):.2f} %; "
        f"{sum(g == 0 for g in gaps)} proven optimal; first plan after at most "
        f"{max(row['first_plan_s'] for row in rows):.2f} s; better than OctoPipe's within 10 s on {early}."
    )
    return "\n".join([summary, "", *lines])


BASELINES = ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "octopipe-dispatch")


def equal_memory() -> str:
    """Tabulate the 36 published instances at 1F1B's memory against the best known schedules under the same cap."""
    every = rows_of("equal-memory")
    rows = [row for row in every if row["method"] == "cp-sat"]
    others: dict[str, dict[str, int]] = {}
    for row in every:
        if row["method"] != "cp-sat" and "value" in row:
            others.setdefault(row["instance"], {})[row["method"]] = row["value"]
    if not rows or not others:
        return "Not run yet."
    lines = [
        f"| instance | {' | '.join(BASELINES)} | OctoPipe's tuner | OctoCP | ratio | bound | gap | stages |",
        f"|---|{'---:|' * len(BASELINES)}---:|---:|---:|---:|---:|---:|",
    ]
    ratios, bounds, against_tuner = {}, [], []
    for row in rows:
        known = others[row["instance"]]
        best = min(known[name] for name in BASELINES if name in known)
        ratios[row["instance"]] = row["value"] / best
        bounds.append(row["lower_bound"] / best)
        if "octopipe" in known:
            against_tuner.append(row["value"] / known["octopipe"])
        shown = " | ".join(f"{known[name]:,}" if name in known else "-" for name in (*BASELINES, "octopipe"))
        lines.append(
            f"| {row['instance'].removesuffix('-equal-memory')} | {shown} | {row['value']:,} "
            f"| {ratios[row['instance']]:.4f} | {row['lower_bound']:,} | {100 * gap(row):.2f} % | {row['stages']} |"
        )
    gaps = [gap(row) for row in rows]
    summary = (
        f"{len(rows)} instances ({how(rows[0])}): geometric mean of the ratio to the best of the five schedules "
        f"{mean_ratio(ratios.values()):.4f}, worst {max(ratios.values()):.4f} "
        f"(the bounds allow {mean_ratio(bounds):.4f}); to OctoPipe's whole tuner with the cap "
        f"kept {mean_ratio(against_tuner):.4f}, worst {max(against_tuner):.4f}; gap: median "
        f"{100 * median(gaps):.2f} %, largest {100 * max(gaps):.2f} %. A dash: the schedule does not fit."
    )
    return "\n".join([summary, "", *lines])


def solved(name: str) -> str:
    """Tabulate a suite that has nothing to compare with: value, bound, gap, size, times."""
    rows = [row for row in rows_of(name) if "value" in row]
    if not rows:
        return "Not run yet."
    lines = [
        "| instance | value | bound | gap | bound from | stages | ops | first plan | within 1 % | time | memory |",
        "|---|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        shown = "**0**" if gap(row) == 0 else f"{100 * gap(row):.2f} %"
        lines.append(
            f"| {row['instance']} | {row['value']:,} | {row['lower_bound']:,} | {shown} | {row['bound_name']} "
            f"| {row['stages']} | {row.get('ops', '')} | {row['first_plan_s']:.2f} s | {row['within_1pct_s']:.1f} s "
            f"| {row['seconds']:.1f} s | {row['peak_rss_mb']} MB |"
        )
    gaps = [gap(row) for row in rows]
    summary = (
        f"{len(rows)} instances ({how(rows[0])}): {sum(g == 0 for g in gaps)} proven optimal; largest gap "
        f"{100 * max(gaps):.2f} %."
    )
    return "\n".join([summary, "", *lines])


def ablation() -> str:
    """Tabulate what is lost without each phase and each bound."""
    rows = rows_of("ablation")
    if not rows:
        return "Not run yet."
    by: dict[str, dict[str, Row]] = {}
    for row in rows:
        by.setdefault(row["method"], {})[row["instance"]] = row
    names = list(by["everything"])
    lines = [
        f"| | {' | '.join(names)} | value | bound |",
        f"|---|{'---:|' * len(names)}---:|---:|",
    ]
    for method, found in by.items():
        proofs = "bound" in method
        base = by["all bounds" if proofs else "everything"]
        shown = " | ".join(
            f"{found[n]['lower_bound' if proofs else 'value']:,}" if "value" in found.get(n, {}) else "-" for n in names
        )
        both = [n for n in names if "value" in found.get(n, {}) and "value" in base[n]]
        value = mean_ratio(found[n]["value"] / base[n]["value"] for n in both)
        bound = mean_ratio(found[n]["lower_bound"] / base[n]["lower_bound"] for n in both)
        lines.append(f"| {method} | {shown} | {'' if proofs else f'{value:.4f}'} | {bound:.4f} |")
    summary = (
        f"{how(rows[0])}. Upper rows: values without a phase; lower rows: bounds without one of them, no search. The "
        "last columns are geometric means of the ratio to the row with everything."
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


def sizes() -> str:
    """Tabulate the size of the joint model over every stage count, or the largest that is built."""
    lines = [
        "| instance | devices | stages | microbatches | variables | constraints | built in |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, stages in SIZES.items():
        problem = build_problem(load_instance(name))
        began = time.perf_counter()
        proto = build_joint(problem, stages=(problem.min_stages, stages)).model.proto
        took = time.perf_counter() - began
        lines.append(
            f"| {name} | {problem.n_devices} | {problem.min_stages} to {stages} | {problem.n_microbatches} "
            f"| {len(proto.variables):,} | {len(proto.constraints):,} | {took:.2f} s |"
        )
    return "\n".join(lines)


# By instance, the largest number of stages.
SIZES = {
    "nemotron-nano-v2-9b-p4-m8-v1": 4,
    "nemotron-nano-v2-9b-p4-m8-v2": 8,
    "nemotron-nano-v2-9b-p4-m8-v3": 12,
    "slackpipe-w8-n8-b8-l64-c0": 8,
    "nemotron-nano-v2-9b-p8-m16": 16,
    "jamba-100b-p8-m16": 24,
}

TABLES: dict[str, Callable[[], str]] = {
    "octopipe": octopipe,
    "equal-memory": equal_memory,
    "slackpipe": slackpipe,
    "proxies": lambda: solved("proxies"),
    "scale": lambda: solved("scale"),
    "known": known,
    "groundtruth": lambda: distance(collect(row for _, row in read_rows("groundtruth"))),
    "sizes": sizes,
    "ablation": ablation,
}


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
