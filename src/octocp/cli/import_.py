"""`octocp import`: a schedule of another tool as a plan file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octocp.cli.inputs import load, naming
from octocp.cli.options import InstanceArgument
from octocp.cli.output import ensure_writable, note, write
from octocp.errors import InputError

if TYPE_CHECKING:
    from octocp.schema import Plan


def import_(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A PyTorch pipelining CSV (FILE@N,N,... adds the layers of each stage, which it does not say), a "
            "Megatron layout, a SimPipe or TorchTitan file, a plan.",
        ),
    ],
    instance: InstanceArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write it, - for stdout. [default: NAME.imported.plan.json here]",
        ),
    ] = None,
) -> None:
    """Turn a schedule of your own into a plan.

    Its partition, placement and order, timed on the instance and checked: for show, explain, try, export and run.
    """
    from octocp.comparison import file_and_partition
    from octocp.importers import read_as_plan
    from octocp.report.bubbles import analyse
    from octocp.report.units import sentence
    from octocp.schema.files import plan_json, write_plan

    path, partition = file_and_partition(file)
    if not os.path.exists(path):  # which, other than Path.exists, takes names that are too long
        raise InputError("no such file", file=str(path))
    output = output or Path(_stem(path) + ".imported.plan.json")
    to_stdout = str(output) == "-"
    if not to_stdout:
        ensure_writable(output, reads=path)
        _ensure_plan(output)
    loaded, source = load(instance)
    with naming(source):
        plan, notes = read_as_plan(loaded, path, partition=partition)
    for text in notes:
        note(f"{path}: {text}")
    summary = f"{plan.instance.name}: {sentence(plan, analyse(plan).bubble)}"
    if to_stdout:
        note(summary)
        write(plan_json(plan))
    else:
        write_plan(plan, output)
        write(f"{summary}\n")
    note(f"note: {_how_good(plan, instance)}")
    if not to_stdout:
        note(f"Written to {output}.")


def _ensure_plan(output: Path) -> None:
    """Refuse to replace what is no plan: the instance, its model, the CSV beside a TorchTitan file."""
    if not output.is_file():
        return
    with output.open("rb") as file:
        begins = file.read(2000)
    if begins.strip() and b'"octocp.plan/1"' not in begins:
        raise InputError("is there already and is no plan", file=str(output), right="another file for -o")


def _stem(path: Path) -> str:
    """Return a name that tells files of several formats apart; never one under which `solve` writes."""
    name = path.name
    for suffix in (".json", ".csv", ".txt", ".yaml", ".yml", ".toml", ".plan"):
        name = name.removesuffix(suffix)
    return name or "own"


def _how_good(plan: Plan, instance: str) -> str:
    """Say how far the schedule may be from the best one."""
    from octocp.report.units import percent

    if plan.value <= plan.lower_bound:
        return f"no plan of this instance has a smaller {plan.objective}"
    return (
        f"the lower bound ({plan.solve.bound_name}) holds for every plan of the instance: the best one is at most "
        f"{percent(plan.gap)} shorter; octocp solve {instance} looks for it"
    )
