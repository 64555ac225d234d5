"""`octocp compare`: known schedules and the solver, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from octocp.cli.inputs import headline, load, naming
from octocp.cli.options import DEFAULT_TIME_LIMIT, InstanceArgument, Json, Seed, TimeLimit, Workers
from octocp.cli.output import note, write, write_json, write_table

if TYPE_CHECKING:
    from octocp.api import Row
    from octocp.schema import Instance


def compare(
    instance: InstanceArgument,
    time_limit: TimeLimit = DEFAULT_TIME_LIMIT,
    workers: Workers = None,
    seed: Seed = 0,
    no_solver: Annotated[bool, typer.Option("--no-solver", help="Only the heuristics.")] = False,
    as_json: Json = False,
) -> None:
    """Compare known schedules with the solver.

    GPipe, 1F1B and its interleaved, eager, zero-bubble, V-shaped and other kin, each with the partitions that people
    use: a heuristic's own name means the uniform one; -balanced, one that evens out the work; -memory and -megatron,
    shown where they are better, one that 1F1B can hold and Megatron's.
    """
    problem, source = load(instance)

    from octocp import api
    from octocp.cli.progress import Watch, interruptible, shown

    watch = Watch(problem.tick_us)
    with naming(source), interruptible() as interruption, shown(watch, quiet=no_solver):
        rows = api.compare(
            problem, time_limit=time_limit, workers=workers, seed=seed, solver=not no_solver, on_event=watch
        )
    if interruption.happened:
        note("Interrupted: the solver's row is the best plan found so far.")
    if as_json:
        write_json([_data(row) for row in rows])
    else:
        _write_rows(problem, rows, solver=not no_solver)


def _data(row: Row) -> dict[str, Any]:
    from octocp.report.bubbles import analyse

    plan = row.plan
    return {
        "method": row.method,
        "status": row.status,
        "makespan": plan and plan.makespan,
        "span": plan and plan.span,
        "lower_bound": row.lower_bound,
        "gap": plan and plan.gap,
        "bubble": plan and analyse(plan).bubble,
        "peak_memory_gb": plan and plan.peak_memory_gb,
        "seconds": round(row.seconds, 6),
        "partition": plan and plan.partition,
        "placement": plan and plan.placement,
        "reason": row.reason,
    }


def _write_rows(instance: Instance, rows: list[Row], *, solver: bool) -> None:
    from rich.table import Table

    from octocp.heuristics import ALL_HEURISTICS
    from octocp.report.bubbles import analyse
    from octocp.report.units import has_sizes

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name, right in (
        ("method", False),
        (f"{instance.objective} ms", True),
        ("ticks", True),
        ("gap", True),
        ("bubble", True),
        ("peak GB", True),
        ("stages", True),
        ("seconds", True),
        ("note", False),
    ):
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "note")
    for row in rows:
        if row.plan is None:
            table.add_row(row.method, "-", "-", "-", "-", "-", "-", f"{row.seconds:.2f}", f"{row.status}: {row.reason}")
            continue
        plan = row.plan
        table.add_row(
            row.method,
            f"{plan.value * plan.tick_us / 1000:.6g}",
            str(plan.value),
            f"{100 * plan.gap:.2f} %",
            f"{100 * analyse(plan).bubble:.1f} %",
            f"{max(plan.peak_memory_gb, default=0.0):.4g}" if has_sizes(plan) else "-",
            str(len(plan.partition)),
            f"{row.seconds:.2f}",
            "optimal" if plan.status == "optimal" else "",
        )
    write(headline(instance) + "\n\n")
    write_table(table)
    known = {row.method for row in rows}
    heuristics = {heuristic.name for heuristic in ALL_HEURISTICS}
    same = [row.method for row in rows if row.plan and row.method in heuristics]
    same = [name for name in same if f"{name}-balanced" not in known]
    if same:
        write(f"No -balanced row of {', '.join(same)}: the balanced partition is the uniform one.\n")
    if not solver:
        write("No row of cp-sat: --no-solver leaves it out.\n")
    if rows:
        bound = rows[0].lower_bound
        write(f"No plan of this instance is below {bound} ticks ({bound * instance.tick_us / 1000:.6g} ms).\n")
