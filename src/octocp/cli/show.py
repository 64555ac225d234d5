"""`octocp show`: a plan on the terminal."""

from __future__ import annotations

from typing import Annotated

import typer

from octocp.cli.inputs import as_far_as_possible, load_plan_leniently
from octocp.cli.options import Json, PlanArgument
from octocp.cli.output import WIDTH_WITHOUT_TERMINAL, colour, is_terminal, unicode, width, write, write_json


def show(
    plan: PlanArgument,
    columns: Annotated[
        int | None,
        typer.Option("--width", metavar="COLUMNS", min=40, max=2000, help="Columns to fill. [default: the terminal's]"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a plan: value, devices, timeline."""
    from octocp.report.show import render, summary

    loaded, violation = load_plan_leniently(plan)
    with as_far_as_possible(plan, violation):
        if as_json:
            write_json(summary(loaded))
            return
        fill = columns or (width() if is_terminal() else WIDTH_WITHOUT_TERMINAL)
        write(render(loaded, fill, colour=colour(), unicode=unicode()))
