"""`octocp export`: a plan as a picture, a trace or a table."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from octocp.cli.inputs import as_far_as_possible, load_plan_leniently
from octocp.cli.options import PlanArgument
from octocp.cli.output import ensure_writable, note, write


class Format(StrEnum):
    """What a plan can be exported to."""

    trace = "trace"
    svg = "svg"
    png = "png"
    csv = "csv"


def export(
    plan: PlanArgument,
    to: Annotated[
        Format,
        typer.Option("--to", help="trace: for Perfetto or chrome://tracing; svg, png: a picture; csv: one op a line."),
    ] = Format.svg,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where to write it; - is stdout. [default: NAME.svg here]"),
    ] = None,
) -> None:
    """Write a plan as trace, picture or table."""
    from octocp.report.export import EXPORTERS, SUFFIXES
    from octocp.schema.files import write_whole

    path = output or Path(_stem(plan) + (".trace" if to is Format.trace else "") + SUFFIXES[to.value])
    to_stdout = str(output) == "-"
    if not to_stdout:
        ensure_writable(path, reads=plan)
    loaded, violation = load_plan_leniently(plan)
    with as_far_as_possible(plan, violation):
        content = EXPORTERS[to.value](loaded)
    if to_stdout:
        write(content)
    else:
        write_whole(content, path)
        note(f"Written to {path}.")


def _stem(plan: Path) -> str:
    return plan.name.removesuffix(".json").removesuffix(".plan") or "plan"
