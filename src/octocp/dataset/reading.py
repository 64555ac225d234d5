"""Rows from a data set's folder, a JSONL file (plain or gzip), a Parquet file, or a set that is shipped."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from octocp import catalog
from octocp.dataset.rows import Row
from octocp.dataset.store import CHECK_FORMAT, LOG
from octocp.errors import InputError
from octocp.schema.reading import shorten

VIEW = "rows.jsonl.gz"
SHARDS = "shards"
KNOWN = "a data set's folder, or a .jsonl, .jsonl.gz or .parquet file of one"


def find(source: str | Path) -> Path:
    """Return the file or folder that a path, or the name of a shipped data set, means.

    Raises
    ------
    InputError
        There is none.
    """
    path = Path(source)
    try:
        if path.exists():
            return path
        shipped = catalog.folder("instances") / str(source)
        if path.name == str(source) and (shipped / VIEW).is_file():
            return shipped
    except (OSError, ValueError):  # a name with a NUL byte, or far too long
        raise InputError(f"{shorten(str(source))} names no data set", right=KNOWN) from None
    raise InputError("no such data set", file=str(source), right=KNOWN)


def read_rows(source: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every row as plain data with the place that it is at, e.g. ``rows.jsonl.gz: line 7``.

    Raises
    ------
    InputError
        The source is missing, or no data set.
    """
    path = find(source)
    if path.is_dir():
        if (path / LOG).is_file():
            yield from _logged(path / LOG)
        elif (path / VIEW).is_file():
            yield from _lines(path / VIEW)
        elif shards := sorted((path / SHARDS).glob("*.parquet")):
            for shard in shards:
                yield from _parquet(shard)
        else:
            raise InputError("holds no data set", file=str(path), right=KNOWN)
    elif path.suffix == ".parquet":
        yield from _parquet(path)
    elif path.name.endswith((".jsonl", ".jsonl.gz")):
        yield from _lines(path)
    else:
        raise InputError("is no data set", file=str(path), right=KNOWN)


def load_rows(source: str | Path = "groundtruth") -> list[Row]:
    """Load a data set.

    Parameters
    ----------
    source : str or Path
        A folder or file of one, or the name of a shipped one.

    Raises
    ------
    InputError
        It is missing, or a row of it is wrong.
    """
    return [as_row(data, place) for place, data in read_rows(source)]


def as_row(data: dict[str, Any], place: str) -> Row:
    """Validate a row.

    Raises
    ------
    InputError
        It is wrong; one line with its place.
    """
    try:
        return Row.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        name = data.get("id", "a row") if isinstance(data, dict) else "a row"
        raise InputError(f"{where}: {first['msg']}", place=str(name), file=place) from None


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    data = json.loads(line)
                    if not isinstance(data, dict):
                        raise ValueError("not an object")
                    yield f"{path}: line {number}", data
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot be read: {reason}", file=str(path)) from None
    except (ValueError, RecursionError):
        raise InputError("is not JSON", file=str(path), place=f"line {number}", right="a row a line") from None


def _logged(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a log with the second proofs that come later in it; a last line may be incomplete."""
    checks: dict[str, Any] = {}
    for _, data in _whole_lines(path):
        if data.get("format") == CHECK_FORMAT:
            checks[data["id"]] = data["check"]
    for place, data in _whole_lines(path):
        if data.get("format") != CHECK_FORMAT:
            if data.get("id") in checks:
                data["double_check"] = checks[data["id"]]
            yield place, data


def _whole_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.endswith(b"\n"):
                    try:
                        yield f"{path}: line {number}", json.loads(line)
                    except ValueError:
                        place = f"line {number}"
                        raise InputError("is not JSON", file=str(path), place=place, right="a row a line") from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=str(path)) from None


def _parquet(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    from octocp.dataset.parquet import read_parquet

    for number, data in enumerate(read_parquet(path), 1):
        yield f"{path}: row {number}", data
