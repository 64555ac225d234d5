"""`octocp import`: a schedule of another tool as a plan file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octocp.cli.inputs import load, naming
from octocp.cli.options import InstanceArgument
from octocp.cli.output import ensure_writable, note, write
from octocp.errors import InputError


def import_(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A PyTorch pipelining CSV (FILE@N,N,... adds the layers of each stage, which it does not say), a "
            "Megatron layout, a SimPipe file or a plan.",
        ),
    ],
    instance: InstanceArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where to write it. [default: NAME.plan.json here]"),
    ] = None,
) -> None:
    """Turn a schedule of your own into a plan.

    Its partition, placement and order, timed on the instance and checked: for show, explain, try, export and run.
    """
    from octocp.comparison import file_and_partition
    from octocp.importers import read_as_plan
    from octocp.report.bubbles import analyse
    from octocp.report.units import sentence
    from octocp.schema.files import write_plan

    path, partition = file_and_partition(file)
    if not path.exists():
        raise InputError("no such file", file=str(path))
    output = output or Path((path.name.partition(".")[0] or "own") + ".plan.json")
    ensure_writable(output, reads=path)
    loaded, source = load(instance)
    with naming(source):
        plan, notes = read_as_plan(loaded, path, partition=partition)
    for text in notes:
        note(f"{path}: {text}")
    write_plan(plan, output)
    write(f"{plan.instance.name}: {sentence(plan, analyse(plan).bubble)}\n")
    note(f"Written to {output}.")
