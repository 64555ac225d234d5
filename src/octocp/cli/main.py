"""The entry point: one typer app, and every error as one line and an exit code."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.main import get_command

import octocp
from octocp.cli import (
    bound,
    calibrate,
    catalogue,
    check,
    compare,
    dataset,
    explain,
    export,
    import_,
    new,
    profile,
    show,
    solve,
    try_,
)
from octocp.cli import run as run_command
from octocp.cli.output import PipeClosedError, complain, cut, write
from octocp.errors import OctoCPError

EXIT_USAGE = 2
# EX_SOFTWARE of sysexits.h: a crash must not look like a verdict about a plan, which exit code 1 is.
EXIT_BUG = 70
EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141

EPILOG = (
    "A first plan: octocp new mine.yaml writes a commented instance to start from, and octocp solve mine.yaml plans it "
    "and writes mine.plan.json. Documentation: README.md and docs/ in the repository; docs/formats.md has every key. "
    "Exit codes: 0 done; 1 check found violations; 2 wrong input or command line; 3 proven infeasible; "
    "4 no plan within the time limit; 70 a bug in OctoCP (OCTOCP_DEBUG=1 shows where)."
)

# rich's help panels alone take 0.15 s to import; plain help keeps `octocp --help` instant.
app = typer.Typer(
    name="octocp", rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False, epilog=EPILOG
)


def _version(wanted: bool) -> None:
    if wanted:
        write(f"octocp {octocp.__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    _version_wanted: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Optimal pipeline-parallel training plans: partition, placement and ordering in one CP-SAT model."""


app.command("solve")(solve.solve)
app.command("check")(check.check)
app.command("show")(show.show)
app.command("explain")(explain.explain)
app.command("try", help=try_.HELP)(try_.try_)
app.command("export")(export.export)
app.command("import")(import_.import_)
app.command("compare", help=compare.HELP)(compare.compare)
app.command("bound")(bound.bound)
app.command("models")(catalogue.models)
app.command("instances")(catalogue.instances)
app.command("new")(new.new)
app.command("run")(run_command.run)
app.command("profile")(profile.profile)
app.command("calibrate")(calibrate.calibrate)
app.add_typer(dataset.app, name="dataset")


def run() -> None:
    """Run the command line on ``sys.argv`` and exit: the console script, once all of this is imported."""
    sys.exit(main())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        By default those of the process.

    Returns
    -------
    int
        The exit code. Nothing but a wish to exit is raised; every error has become a line on stderr.
    """
    for stream in (sys.stdout, sys.stderr):
        # Names come from files; a terminal that lacks a letter must not end a command.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    # Without a command there is nothing to do but to help; asking for it outright skips parsing.
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        code = get_command(app).main(args=words, prog_name="octocp", standalone_mode=False)
    except OctoCPError as error:
        complain(str(error))
        return error.exit_code
    except PipeClosedError:
        return EXIT_PIPE_CLOSED
    except (KeyboardInterrupt, typer.Abort):
        code = EXIT_INTERRUPTED
    except Exception as error:
        return _unexpected(error)
    if code == EXIT_INTERRUPTED:
        complain("interrupted")
    return code if isinstance(code, int) else 0


def _unexpected(error: Exception) -> int:
    # click's own errors. typer carries its own copy of click in some versions, so no class to name.
    if callable(wording := getattr(error, "format_message", None)):
        context = getattr(error, "ctx", None)
        where = context.command_path if context is not None else "octocp"
        complain(f"{cut(_plain(str(wording())).rstrip('.'))} (see {where} --help)")
        return EXIT_USAGE
    if os.environ.get("OCTOCP_DEBUG"):
        import traceback

        traceback.print_exception(error)
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    complain(f"{text}; this is a bug in OctoCP, please report it (OCTOCP_DEBUG=1 shows where)")
    return EXIT_BUG


def _plain(text: str) -> str:
    """Word what some versions of typer take from pydantic as it is."""
    text = text.replace("Value error, ", "")
    text = re.sub(r"Input should be a valid integer\b.*", "a whole number is needed", text)
    text = re.sub(r"Input should be a valid number\b.*", "a number is needed", text)
    return text.replace("Input should be", "it should be")
