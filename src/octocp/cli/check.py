"""`octocp check`: every violation of a plan, each on a line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octocp.cli.output import complain, write
from octocp.errors import InputError

EXIT_VIOLATIONS = 1


def check(
    plans: Annotated[list[Path], typer.Argument(metavar="PLAN...", help="Plan files written by `octocp solve`.")],
) -> None:
    """Check plans, independently of the solver.

    Everything is computed anew from the instance that a plan carries. Prints each violation on a line.
    """
    from octocp.checker import check_plan
    from octocp.schema.files import load_plan

    codes = set()
    for path in plans:
        try:
            plan = load_plan(path)
        except InputError as error:
            # The other files are still worth checking.
            complain(str(error))
            codes.add(error.exit_code)
            continue
        violations = check_plan(plan)
        if violations:
            write("".join(f"{path}: {violation}\n" for violation in violations))
            codes.add(EXIT_VIOLATIONS)
            continue
        ms = plan.value * plan.tick_us / 1000
        write(
            f"{path}: OK, {plan.objective} {plan.value} ticks ({ms:.6g} ms), lower bound {plan.lower_bound}, "
            f"gap {100 * plan.gap:.2f} %\n"
        )
    if codes:
        raise typer.Exit(max(codes))
