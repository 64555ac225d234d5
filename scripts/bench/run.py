"""Solve a suite of instances one by one; append one JSON row each, and skip what is there already.

    python scripts/bench/run.py known --time-limit 60 --workers 2
    python scripts/bench/run.py equal-memory --heuristics

With --heuristics, every schedule that `octocp compare` knows is run instead, and OctoPipe's tuner; a row tells the best
partition rule of each.

Suites are in suites.py. Rows go to scripts/bench/results/SUITE.jsonl. Run on a quiet machine: neighbours disturb
the timings.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import time
from collections.abc import Callable
from pathlib import Path

from suites import known_values, suite

import octocp
from octocp.costs import build_problem
from octocp.heuristics import ALL_HEURISTICS, OCTOPIPE, Attempt, attempts, best_attempt
from octocp.progress import Event
from octocp.schema import Instance
from octocp.strategy import PHASES

RESULTS = Path(__file__).parent / "results"


def solve_row(
    name: str,
    instance: Instance,
    time_limit: float,
    workers: int,
    seed: int,
    label: str,
    phases: list[str],
    without: list[str],
) -> dict[str, object]:
    """Solve one instance and describe the run as one row of the schema shared by all methods."""
    events: list[Event] = []
    row: dict[str, object] = {
        "instance": name,
        "method": label,
        "time_limit": time_limit,
        "workers": workers,
        "seed": seed,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "octocp": octocp.__version__,
    }
    try:
        result = octocp.solve(
            instance,
            time_limit=args.time_limit,
            workers=args.workers,
            seed=args.seed,
            on_event=events.append,
            phases=args.phases.split(","),
            without=[part for part in args.without.split(",") if part],
        )
    except octocp.OctoCPError as error:
        return {**row, "status": "error", "reason": str(error)}
    within = [e.seconds for e in events if e.incumbent is not None and e.incumbent <= 1.01 * result.value]
    return {
        **row,
        "status": result.status,
        "value": result.value,
        "lower_bound": result.lower_bound,
        "bound_name": result.bound_name,
        "found_by": result.plan.solve.found_by,
        "stages": len(result.plan.partition),
        "seconds": round(result.seconds, 2),
        "first_plan_s": next((e.seconds for e in events if e.incumbent is not None), None),
        "within_1pct_s": within[0] if within else None,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "trace": [[e.seconds, e.incumbent, e.bound, e.phase] for e in events],
    }


def heuristic_rows(name: str, instance: Instance) -> list[dict[str, object]]:
    """Run every heuristic and OctoPipe's tuner on one instance: one row each, of its best partition rule."""
    problem = build_problem(instance)
    rows: list[dict[str, object]] = []
    runs: dict[str, Callable[[], Attempt]] = {
        heuristic.name: lambda heuristic=heuristic: best_attempt(list(attempts(heuristic, problem)))  # type: ignore
        for heuristic in ALL_HEURISTICS
    }
    for method, run in {**runs, OCTOPIPE.name: lambda: OCTOPIPE.run(problem)}.items():
        began = time.process_time()
        found = run()
        row: dict[str, object] = {
            "instance": name,
            "method": method,
            "time_limit": 0.0,
            "workers": 1,
            "seed": 0,
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "octocp": octocp.__version__,
            "status": found.status,
            "seconds": round(time.process_time() - began, 3),
        }
        if found.status == "feasible" and found.schedule is not None:
            row |= {"value": found.schedule.value, "stages": found.schedule.layout.stages, "partition": found.partition}
        else:
            row["reason"] = found.reason
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite")
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--label", default="cp-sat", help="name of the method in the rows")
    parser.add_argument("--phases", default=",".join(PHASES), help="phases to run, for ablation")
    parser.add_argument("--heuristics", action="store_true", help="run the known schedules instead of the solver")
    parser.add_argument("--without", default="", help="bounds and constraint families to leave out, for ablation")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    out: Path = args.out or RESULTS / f"{args.suite}.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    done = set()
    if out.exists():
        rows = (json.loads(line) for line in out.read_text().splitlines())
        done = {(row["instance"], row["method"], row["time_limit"], row["workers"], row["seed"]) for row in rows}
    known = known_values()
    if args.heuristics:
        for name, load in suite(args.suite).items():
            if (name, OCTOPIPE.name, 0.0, 1, 0) in done:
                continue
            rows = heuristic_rows(name, load())
            with out.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
            print(name, {row["method"]: row.get("value", row["status"]) for row in rows}, flush=True)
        return
    for name, load in suite(args.suite).items():
        if (name, args.label, args.time_limit, args.workers, args.seed) in done:
            continue
        row = solve_row(name, load(), args)
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        best = known.get(name, {}).get("value")
        print(
            f"{name:40s} {row['status']:9s} {row.get('value', row.get('reason'))!s:>10s} "
            f"bound {row.get('lower_bound', '')!s:>9s} known {best!s:>9s} {row.get('seconds', '')!s:>7s} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
