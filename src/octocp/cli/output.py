"""Writing to the terminal: results on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octocp.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

MAX_COMPLAINT = 1000
WIDTH_WITHOUT_TERMINAL = 100
# Where nobody looks at columns, a row of a table is one line.
WIDTH_OF_A_FILE = 1000


class PipeClosedError(Exception):
    """Whoever read stdout has gone (``octocp show x | head``): nothing is left to do or to say."""


def write(content: str | bytes) -> None:
    """Write to stdout and flush, so that a failure shows here and not at exit.

    Raises
    ------
    PipeClosedError
        Nobody reads any more.
    InputError
        stdout cannot be written to, e.g. a full disk.
    """
    ensure_stdout()
    out = sys.stdout
    try:
        if isinstance(content, bytes):
            out.flush()
            out.buffer.write(content)
            out.buffer.flush()
        else:
            out.write(content)
            out.flush()
    except BrokenPipeError:
        _discard_stdout()
        raise PipeClosedError from None
    except OSError as error:
        _discard_stdout()
        raise InputError(f"cannot be written: {error.strerror}", file="standard output") from None


def ensure_stdout() -> None:
    """Find out before any long work that there is no stdout for its result.

    Raises
    ------
    InputError
        The command was started with stdout closed.
    """
    if sys.stdout is None:
        raise InputError("cannot be written: it is closed", file="standard output")


def tell(text: str) -> None:
    """Write to stdout what files or the exit code say as well, so that nothing is lost where stdout is closed.

    Raises
    ------
    PipeClosedError, InputError
        As `write`.
    """
    if sys.stdout is not None:
        write(text)


def _discard_stdout() -> None:
    """Point stdout at nothing, or the interpreter complains when it flushes what is left at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_json(data: Any) -> None:
    """Write data as one JSON document to stdout."""
    write(json.dumps(data, indent=2, allow_nan=False) + "\n")


def note(text: str) -> None:
    """Write a line to stderr; that nobody may read it is no reason to fail."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def complain(text: str) -> None:
    """Write an error: exactly one line, however long and whatever is in it."""
    note("octocp: " + cut(one_line(text), MAX_COMPLAINT))


def one_line(text: str) -> str:
    """Make one printable line of a text, which may hold names from files."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def cut(text: str, limit: int = 300) -> str:
    """Cut a text to `limit` characters."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def write_table(table: Table) -> None:
    """Write a rich table to stdout, in colour where that is a terminal."""
    from io import StringIO

    from rich.console import Console

    # Rendered first and written by `write`, so that a closed pipe is handled in one place.
    text = StringIO()
    console = Console(
        file=text,
        width=width() if is_terminal() else WIDTH_OF_A_FILE,
        force_terminal=colour(),
        no_color=not colour(),
        highlight=False,
        markup=False,
        emoji=False,
        safe_box=not unicode(),
    )
    console.print(table)
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    write("\n".join(line for line in lines if line) + "\n")


def is_terminal() -> bool:
    """Tell whether stdout is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def colour() -> bool:
    """Tell whether stdout should have colour."""
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def unicode() -> bool:
    """Tell whether stdout can show the characters that the Gantt strip is drawn with."""
    try:
        "─═┄·┴".encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def width() -> int:
    """Return the columns of the terminal."""
    return shutil.get_terminal_size((WIDTH_WITHOUT_TERMINAL, 24)).columns


def program() -> str:
    """Return how this program was called, for commands to copy: a path where that is what was typed."""
    called = Path(sys.argv[0]) if sys.argv and sys.argv[0] else Path("octocp")
    if called.name != "octocp":
        return "octocp"
    found = shutil.which("octocp")
    with contextlib.suppress(OSError):
        if found is not None and Path(found).samefile(called):
            return "octocp"
    return shlex.quote(str(called))


def safe_stem(name: str) -> str:
    """Turn an instance's name, which may hold anything, into a file name."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name)[:100].strip(".-")
    return kept or "plan"


# Pictures that are drawn as SVG only; a file that says otherwise opens nowhere.
OTHER_PICTURES = (".png", ".pdf", ".jpg", ".jpeg")


def ensure_writable(path: Path, reads: Path | None = None) -> None:
    """Find out before any long work that a file cannot be written.

    Parameters
    ----------
    reads : Path, optional
        The input, which must not be overwritten.

    Raises
    ------
    InputError
        The folder is missing or read-only, or the path is a folder or the input itself.
    """
    file = str(path)
    try:
        if reads is not None and path.exists() and reads.exists() and path.samefile(reads):
            raise InputError("is the input itself", file=file, right="another file for -o")
        if path.is_dir():
            raise InputError("cannot be written: is a folder", file=file, right="a file name for -o")
        if not path.parent.is_dir():
            raise InputError(f"cannot be written: there is no folder {path.parent}", file=file, right="make it first")
        if path.exists():
            if not os.access(path, os.W_OK):
                raise InputError("cannot be written: is read-only", file=file, right="another file for -o")
            if not path.is_file():
                return
        # The plan is written through a neighbour of this name, so this is the very thing that must work.
        probe = path.with_name(f".{path.name}.tmp")
        probe.touch()
        probe.unlink()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot be written: {reason}", file=file, right="another file for -o") from None
