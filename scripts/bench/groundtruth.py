"""How far known schedules are from the proven optimum, by family: a table as Markdown on stdout, and a picture.

    python scripts/bench/groundtruth.py --picture docs/img/groundtruth.svg

The values are those in the rows of the data set; with --run, every known schedule is run anew.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from octocp.costs import build_problem
from octocp.dataset.reading import read_rows
from octocp.dataset.stats import ALL, Stats, collect
from octocp.heuristics import ALL_HEURISTICS, OCTOPIPE, attempts, best_attempt
from octocp.report.export import draw
from octocp.report.export.gantt import INK, MUTED, Box, Label, Scene
from octocp.schema import Instance
from octocp.schema.files import write_whole

ROOT = Path(__file__).resolve().parents[2]
LEFT, TOP, CELL, PITCH = 190.0, 96.0, 92.0, 34.0
# From no distance to half as long again as the optimum, and beyond.
PALE, DEEP, FULL = (247, 250, 252), (208, 84, 48), 0.5
NOTHING = "#e4e7ea"


def run_anew(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with what the known schedules reach today."""
    if row["status"] != "optimal":
        return row
    problem = build_problem(Instance.model_validate(row["instance"]))
    found = [*(best_attempt(list(attempts(one, problem))) for one in ALL_HEURISTICS), OCTOPIPE.run(problem)]
    values = [
        {
            "method": one.heuristic,
            "value": one.schedule.value if one.status == "feasible" and one.schedule is not None else None,
        }
        for one in found
    ]
    for one in values:
        if one["value"] is not None and one["value"] < row["value"]:
            raise SystemExit(f"{row['id']}: {one['method']} reaches {one['value']}, below the optimum {row['value']}")
    return {**row, "heuristics": values}


def families(stats: Stats) -> list[str]:
    """Return the families, all of them together first."""
    return [ALL, *(name for name in stats.families if name != ALL)]


def table(stats: Stats) -> str:
    """Return mean, 95th percentile and worst distance of every schedule on every family, as Markdown."""
    names = families(stats)
    optima = [f"{stats.families[name].statuses['optimal']:,}" for name in names]
    lines = [
        f"| | has a plan | optimal | {' | '.join(names)} |",
        f"|---|---:|---:|{'---:|' * len(names)}",
        f"| *instances* | | | {' | '.join(optima)} |",
    ]
    for method in stats.methods():
        whole = stats.summary(method, ALL)
        rows = len(stats.distances[method][ALL])
        share = f"{100 * (whole.plans if whole else 0) / rows:.0f} %"
        optimal = f"{100 * (whole.optimal if whole else 0) / rows:.0f} %"
        lines.append(f"| {method} | {share} | {optimal} | {' | '.join(cell(stats, method, name) for name in names)} |")
    total = stats.families[ALL]
    summary = (
        f"{total.statuses['optimal']:,} instances with a proven optimum ({total.confirmed:,} of {total.proven:,} "
        "proofs repeated by the joint model alone). Above the optimum, in %: mean / 95th percentile / worst, over the "
        "instances on which a schedule has a plan, each with its best partition rule; a dash where it has none on any."
    )
    return "\n".join([summary, "", *lines])


def cell(stats: Stats, method: str, family: str) -> str:
    """Return one cell of the table."""
    found = stats.summary(method, family)
    if found is None:
        return "-"
    return f"{100 * found.mean:.1f} / {100 * found.p95:.1f} / {100 * found.worst:.1f}"


def picture(stats: Stats) -> Scene:
    """Lay out the same as a heat map: the mean large, the 95th percentile and the worst below it."""
    names, methods = families(stats), stats.methods()
    scene = Scene(LEFT + CELL * len(names) + 20, TOP + PITCH * len(methods) + 30)
    scene.labels += [
        Label(16, 26, "Distance of known schedules from the proven optimum", 15, bold=True),
        Label(16, 45, "mean, and below it 95th percentile and worst, in % above the optimum; grey: no plan", 11, MUTED),
    ]
    for column, name in enumerate(names):
        x = LEFT + CELL * (column + 0.5)
        scene.labels.append(Label(x, TOP - 22, name, 11, INK, "middle", bold=True))
        count = stats.families[name].statuses["optimal"]
        scene.labels.append(Label(x, TOP - 9, f"{count:,}", 9.5, MUTED, "middle"))
    for line, method in enumerate(methods):
        y = TOP + PITCH * line
        whole = stats.summary(method, ALL)
        share = 0.0 if whole is None else whole.plans / whole.rows
        scene.labels.append(Label(LEFT - 10, y + 15, method, 11, INK, "end"))
        scene.labels.append(Label(LEFT - 10, y + 27, f"a plan on {100 * share:.0f} %", 8.5, MUTED, "end"))
        for column, name in enumerate(names):
            x = LEFT + CELL * column
            found = stats.summary(method, name)
            fill = NOTHING if found is None else shade(found.mean)
            tip = f"{method}, {name}: {cell(stats, method, name)} %"
            scene.boxes.append(Box(x + 1, y + 1, CELL - 2, PITCH - 2, fill, tip))
            if found is not None:
                scene.labels.append(Label(x + CELL / 2, y + 15, f"{100 * found.mean:.1f}", 11.5, INK, "middle"))
                below = f"{100 * found.p95:.0f} | {100 * found.worst:.0f}"
                scene.labels.append(Label(x + CELL / 2, y + 27, below, 8.5, INK, "middle"))
    return scene


def shade(share: float) -> str:
    """Return a colour for a distance."""
    part = min(1.0, share / FULL) ** 0.5
    red, green, blue = (round(pale + part * (deep - pale)) for pale, deep in zip(PALE, DEEP, strict=True))
    return f"#{red:02x}{green:02x}{blue:02x}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", default="groundtruth", help="a data set; by default the shipped one")
    parser.add_argument("--picture", type=Path, default=None, help="an .svg or .png file to write")
    parser.add_argument("--run", action="store_true", help="run the known schedules anew")
    args = parser.parse_args()

    def rows() -> Iterator[dict[str, Any]]:
        for _, data in read_rows(args.source):
            yield run_anew(data) if args.run else data

    stats = collect(rows())
    print(table(stats))
    if args.picture is not None:
        made = draw(picture(stats), "Distance from the proven optimum", args.picture.suffix.removeprefix("."))
        write_whole(made, args.picture)


if __name__ == "__main__":
    main()
