"""`octocp solve`: an instance to a checked plan with a bound."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octocp.cli.inputs import headline, load, naming
from octocp.cli.options import DEFAULT_TIME_LIMIT, Gap, InstanceArgument, Json, Seed, TimeLimit, Workers
from octocp.cli.output import ensure_stdout, ensure_writable, note, program, tell, write, write_json

if TYPE_CHECKING:
    from octocp.api import SolveResult


def solve(
    instance: InstanceArgument,
    time_limit: TimeLimit = DEFAULT_TIME_LIMIT,
    workers: Workers = None,
    seed: Seed = 0,
    gap: Gap = 0.0,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write the plan; - is stdout. [default: mine.plan.json in the current folder for mine.yaml, "
            "and the name with .plan.json for an instance of the catalogue]",
        ),
    ] = None,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no summary.")] = False,
) -> None:
    """Plan an instance, with a proven bound.

    Finds the best partition, placement and order it can, proves how good they are, and writes the plan.
    Ctrl-C ends the search and keeps the best plan found so far.
    """
    to_stdout = str(output) == "-"
    if to_stdout and as_json:
        raise typer.BadParameter("--json and -o - both write to stdout; leave one out")
    if to_stdout or as_json:
        ensure_stdout()
    problem, source = load(instance)
    path = output or Path(f"{source.stem}.plan.json")
    if not to_stdout:
        ensure_writable(path, reads=source)

    from octocp import api
    from octocp.cli.progress import Watch, interruptible, shown
    from octocp.schema.files import plan_json, write_plan

    with naming(source):
        shape = headline(problem)
    if not quiet:
        note(shape)
    watch = Watch(problem.tick_us)
    with interruptible() as interruption:
        with naming(source), shown(watch, quiet):
            result = api.solve(problem, time_limit=time_limit, workers=workers, seed=seed, gap=gap, on_event=watch)
        interruption.settle()
        if not to_stdout:
            write_plan(result.plan, path)
    if to_stdout:
        write(plan_json(result.plan))
    if as_json:
        write_json(_data(result, path, interruption.happened))
    if quiet:
        return
    told = note if to_stdout or as_json else lambda line: tell(line + "\n")
    if interruption.happened:
        told("Interrupted: the best plan found so far is kept.")
    told(result.sentence())
    if not to_stdout:
        told(f"Written to {path}. To look at it: {program()} show {shlex.quote(str(path))}")


def _data(result: SolveResult, path: Path, interrupted: bool) -> dict[str, Any]:
    from octocp.report.bubbles import analyse

    plan = result.plan
    return {
        "instance": plan.instance.name,
        "method": plan.method,
        "status": result.status,
        "objective": plan.objective,
        "tick_us": plan.tick_us,
        "value": result.value,
        "makespan": plan.makespan,
        "span": plan.span,
        "lower_bound": result.lower_bound,
        "bound_name": result.bound_name,
        "gap": result.gap,
        "best_heuristic": result.baseline and result.baseline.method,
        "best_heuristic_value": result.baseline and result.baseline.value,
        "bubble": analyse(plan).bubble,
        "peak_memory_gb": plan.peak_memory_gb,
        "partition": plan.partition,
        "placement": plan.placement,
        "seconds": result.seconds,
        "interrupted": interrupted,
        "plan": str(path),
    }
