"""`octocp try`: change a plan by hand and see what it is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octocp.cli.explain import OtherInstance, load_both, naming_both
from octocp.cli.options import Json, PlanArgument
from octocp.cli.output import ensure_writable, note, write, write_json
from octocp.errors import InputError

# Shown as it is: typer would run the lines together.
HELP = """Change a plan by hand and see what it is worth.

Every --move is one change; several are made one after the other. Then every op is timed anew, memory and all rules are
checked, and the value before and after is shown. Without --move, the plan's own orders are timed anew.

\b
layer 3->2             one layer from stage 3 to stage 2; every stage
                       between passes one on (2 layers 3->0: two)
cut 3 -1               the cut before stage 3, one layer earlier (+1: later)
stage 5->2             stage 5 to device 2
swap 4 5               stages 4 and 5 swap devices
F(3,5) before B(3,2)   F of stage 3, microbatch 5, right before B of
                       stage 3, microbatch 2, on their device (or: after)
dispatch               a new order on all devices, by list scheduling
split                  hand gradients on after B (a fused backward: after W)
fuse                   run W right after B, hand gradients on after W

Put changes in quotes, for the shell. Stages, devices, microbatches and layers count from 0.
"""


def try_(
    plan: PlanArgument,
    instance: OtherInstance = None,
    moves: Annotated[
        list[str] | None, typer.Option("--move", "-m", metavar="CHANGE", help="A change, as above; may be repeated.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the new plan. [default: only show]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Change a plan by hand; `HELP` is what --help shows."""
    from octocp import analysis
    from octocp.analysis.summary import trial_data
    from octocp.schema.files import write_plan

    if output is not None:
        ensure_writable(output, reads=plan)
    loaded, other = load_both(plan, instance)
    try:
        with naming_both(plan, instance):
            trial = analysis.try_move(loaded, moves or [], other)
    except analysis.IllegalMoveError as error:
        # The change is wrong and not the file, which stays out of the line.
        raise InputError(error.problem, place=error.place, right=error.right) from None
    if output is not None:
        write_plan(trial.plan, output)
    if as_json:
        write_json(trial_data(trial, None if output is None else str(output)))
    else:
        write(f"{trial}\n")
    if output is not None:
        note(f"Written to {output}.")
