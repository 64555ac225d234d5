"""`octocp check`: every violation of a plan, or of a file for a runtime, each on a line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octocp.cli.output import complain, note, tell
from octocp.errors import InputError

EXIT_VIOLATIONS = 1


def check(
    plans: Annotated[
        list[Path] | None, typer.Argument(metavar="PLAN...", help="Plan files written by `octocp solve`.")
    ] = None,
    runtime: Annotated[
        list[Path] | None,
        typer.Option(
            "--runtime",
            metavar="FILE",
            help="A PyTorch pipelining CSV: what PyTorch needs and does not check itself, by row and column; or a "
            "TorchTitan file with its CSV. Or a Megatron layout, by character. May be repeated.",
        ),
    ] = None,
) -> None:
    """Check plans, independently of the solver, and files for runtimes.

    Everything is computed anew from the instance that a plan carries. Prints each violation on a line.
    """
    if not plans and not runtime:
        raise InputError("Missing argument 'PLAN...'", right="or --runtime FILE; see octocp check --help")
    codes = {_check_plan(path) for path in plans or ()} | {_check_runtime(path) for path in runtime or ()}
    if max(codes):
        raise typer.Exit(max(codes))


def _check_plan(path: Path) -> int:
    from octocp.checker import check_plan
    from octocp.schema.files import load_plan

    try:
        plan = load_plan(path)
    except InputError as error:
        # The other files are still worth checking.
        complain(str(error))
        return error.exit_code
    violations = check_plan(plan)
    if violations:
        tell("".join(f"{path}: {violation}\n" for violation in violations))
        return EXIT_VIOLATIONS
    ms = plan.value * plan.tick_us / 1000
    tell(
        f"{path}: OK, {plan.objective} {plan.value} ticks ({ms:.6g} ms), lower bound {plan.lower_bound}, "
        f"gap {100 * plan.gap:.2f} %\n"
    )
    return 0


def _check_runtime(path: Path) -> int:
    from octocp.runtimes.check import check_file

    try:
        report = check_file(path)
    except InputError as error:
        complain(str(error))
        return error.exit_code
    for line in report.remarks:
        note(f"{path}: note: {line}")
    if report.violations:
        tell("".join(f"{path}: {violation}\n" for violation in report.violations))
        return EXIT_VIOLATIONS
    tell(f"{path}: OK, {report.summary}\n")
    return 0
