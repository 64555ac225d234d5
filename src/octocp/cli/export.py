"""`octocp export`: a plan as a picture, a trace or a table, or for a runtime to run."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from octocp.cli.inputs import as_far_as_possible, load_plan_leniently
from octocp.cli.options import PlanArgument
from octocp.cli.output import ensure_writable, note, write
from octocp.errors import InputError


class Format(StrEnum):
    """What a plan can be exported to."""

    trace = "trace"
    svg = "svg"
    png = "png"
    csv = "csv"
    torch_csv = "torch-csv"
    torch_csv_comms = "torch-csv-comms"
    torchtitan = "torchtitan"
    megatron = "megatron"
    simpipe = "simpipe"
    jaxpp = "jaxpp"
    chakra = "chakra"


TO = (
    "trace: for Perfetto or chrome://tracing; svg, png: a picture; csv: one op a line. To run the plan: torch-csv "
    "(torch.distributed.pipelining; torch-csv-comms with every transfer), torchtitan, megatron, jaxpp; to simulate "
    "it: simpipe, chakra."
)


def export(
    plan: PlanArgument,
    to: Annotated[Format, typer.Option("--to", help=TO)] = Format.svg,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where to write it; - is stdout. [default: NAME.svg here]"),
    ] = None,
    layout_only: Annotated[
        bool,
        typer.Option("--layout-only", help="megatron: partition and placement, though Megatron's order is another."),
    ] = False,
) -> None:
    """Write a plan as trace, picture or table, or for a runtime to run.

    A runtime that cannot run the plan is refused with the reason; what it will do differently is said on stderr.
    """
    from octocp.report.export import EXPORTERS, SUFFIXES
    from octocp.schema.files import write_whole

    if to.value not in EXPORTERS:
        _for_a_runtime(plan, to, output, layout_only)
        return
    if layout_only:
        raise InputError("--layout-only is for --to megatron", right="leave it out")
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


def _for_a_runtime(plan: Path, to: Format, output: Path | None, layout_only: bool) -> None:
    from octocp.checker import check_plan
    from octocp.report.export.runtime import RUNTIME_SUFFIXES, runtime_files
    from octocp.schema.files import load_plan, write_whole

    loaded = load_plan(plan)
    violations = check_plan(loaded)
    if violations:
        raise InputError(
            f"is not a valid plan: {violations[0]}", file=str(plan), right=f"octocp check {plan} tells all"
        )
    to_stdout = str(output) == "-"
    path = Path(_stem(plan) + RUNTIME_SUFFIXES[to.value]) if to_stdout or output is None else output
    try:
        made = runtime_files(loaded, to.value, path, layout_only=layout_only)
    except InputError as error:
        raise (error if error.file else error.in_file(str(plan))) from None
    if to_stdout and len(made.files) > 1:
        raise InputError(f"--to {to.value} writes {len(made.files)} files, and stdout is one", right="a file for -o")
    for file in () if to_stdout else made.files:
        ensure_writable(file, reads=plan)
        # A file that was not asked for by name is replaced only by a later export of the same.
        if file != path and file.exists() and not (path.exists() or file.suffix == path.suffix):
            raise InputError("is there already and would be replaced", file=str(file), right="another file for -o")
    for line in made.notes:
        note(f"note: {line}")
    if to_stdout:
        write(next(iter(made.files.values())))
        return
    for file, content in made.files.items():
        write_whole(content, file)
        note(f"Written to {file}.")


def _stem(plan: Path) -> str:
    return plan.name.removesuffix(".json").removesuffix(".plan") or "plan"
