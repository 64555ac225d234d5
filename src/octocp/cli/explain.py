"""`octocp explain`: why a plan takes as long as it does, and what would help most."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octocp.cli.inputs import load, naming
from octocp.cli.options import Json, PlanArgument
from octocp.cli.output import program, write, write_json, write_table
from octocp.errors import InputError

if TYPE_CHECKING:
    from octocp.schema import Instance, Plan

OtherInstance = Annotated[
    str | None,
    typer.Argument(
        metavar="INSTANCE",
        help="Another instance, a file or a name: the plan's decisions timed anew on it. [default: the plan's own]",
        show_default=False,
    ),
]


def explain(plan: PlanArgument, instance: OtherInstance = None, as_json: Json = False) -> None:
    """Say why a plan takes as long as it does, and what would help.

    Its critical path, the bounds that hold it, each device's idle time by cause, and the single changes that would help
    most: each one made, timed and checked, with the command that applies it.
    """
    from octocp import analysis
    from octocp.analysis.summary import explanation_data
    from octocp.analysis.text import explanation_blocks, try_command

    loaded, other = load_both(plan, instance)
    with naming_both(plan, instance):
        found = analysis.explain(loaded, other)
    command = f"{program()} try {shlex.quote(str(plan))}" + (
        f" {shlex.quote(instance)}" if instance is not None else ""
    )
    commands = [try_command(each.moves, command) for each in found.advice.suggestions]
    if as_json:
        write_json(explanation_data(found, commands))
        return
    for block in explanation_blocks(found, commands):
        if isinstance(block, str):
            write(block + "\n")
        else:
            write_table(block)


def load_both(plan: Path, instance: str | None) -> tuple[Plan, Instance | None]:
    """Load a plan, and the other instance if one is named."""
    from octocp.costs import build_problem
    from octocp.schema.files import load_plan

    loaded = load_plan(plan)
    if instance is None:
        return loaded, None
    other, source = load(instance)
    with naming(source):
        build_problem(other)
    return loaded, other


@contextmanager
def naming_both(plan: Path, instance: str | None) -> Iterator[None]:
    """Add the plan's file to errors, and the other instance where it is what does not fit."""
    try:
        with naming(plan):
            yield
    except InputError as error:
        if instance is None or error.place != "instance":
            raise
        raise InputError(error.problem, place=f"on {instance}", file=error.file, right=error.right) from None
