"""Solve a suite of instances one by one; append one JSON row each, and skip what is there already.

    python scripts/bench/run.py known --time-limit 60 --workers 2
    python scripts/bench/run.py equal-memory --heuristics
    python scripts/bench/run.py ablation --ablation --time-limit 20

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


def solve_row(name: str, instance: Instance, args: argparse.Namespace) -> dict[str, object]:
    """Solve one instance and describe the run as one row of the schema shared by all methods."""
    events: list[Event] = []
    row: dict[str, object] = {
        "instance": name,
        "method": args.label,
        "time_limit": args.time_limit,
        "workers": args.workers,
        "seed": args.seed,
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
            phases=args.phases,
            without=args.without,
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
        "ops": len(result.plan.ops),
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
            row |= {"value": found.schedule.value, "stages": found.schedule.layout.stages, "partition": found.rule}
        else:
            row["reason"] = found.reason
        rows.append(row)
    return rows


def variants() -> dict[str, tuple[list[str], list[str]]]:
    """Return what an ablation leaves out, by label: (phases to run, bounds to leave out)."""
    found: dict[str, tuple[list[str], list[str]]] = {"everything": (list(PHASES), [])}
    for phase in PHASES[1:]:
        found[f"without {phase}"] = ([other for other in PHASES if other != phase], [])
    found["warm start alone"] = (["heuristics"], [])
    # What a bound is worth shows without any search.
    proofs = ["heuristics", "balance"]
    found["all bounds"] = (proofs, [])
    for bound in ("work", "averaged heads", "indivisible layer", "one microbatch", "energy"):
        found[f"without bound: {bound}"] = (proofs, [bound])
    found["without bound: balanced load"] = (["heuristics"], [])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite")
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--label", default="cp-sat", help="name of the method in the rows")
    parser.add_argument("--phases", default=",".join(PHASES), help="phases to run")
    parser.add_argument("--without", default="", help="bounds and constraint families to leave out")
    parser.add_argument("--heuristics", action="store_true", help="run the known schedules instead of the solver")
    parser.add_argument("--ablation", action="store_true", help="run the suite once without each phase and each bound")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    out: Path = args.out or RESULTS / f"{args.suite}.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    done = set()
    if out.exists():
        rows = (json.loads(line) for line in out.read_text().splitlines())
        done = {(row["instance"], row["method"], row["time_limit"], row["workers"], row["seed"]) for row in rows}
    given = {args.label: (args.phases.split(","), [part for part in args.without.split(",") if part])}
    chosen = variants() if args.ablation else given
    for name, load in suite(args.suite).items():
        if args.heuristics:
            if (name, OCTOPIPE.name, 0.0, 1, 0) not in done:
                append(out, heuristic_rows(name, load()))
            continue
        for label, (phases, without) in chosen.items():
            args.label, args.phases, args.without = label, phases, without
            if (name, args.label, args.time_limit, args.workers, args.seed) not in done:
                append(out, [solve_row(name, load(), args)])


def append(out: Path, rows: list[dict[str, object]]) -> None:
    """Append rows to a results file and print them."""
    with out.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    known = known_values()
    for row in rows:
        best = known.get(str(row["instance"]), {}).get("value")
        print(
            f"{row['instance']:40s} {row['method']:20s} {row['status']:14s} "
            f"{row.get('value', row.get('reason'))!s:>10.60s} bound {row.get('lower_bound', '')!s:>9s} "
            f"known {best!s:>9s} {row.get('seconds', '')!s:>7s} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
