"""Rows from a data set's folder, a JSONL file (plain or gzip), a Parquet file, or a set that is shipped."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from octocp import catalog
from octocp.dataset.names import CHECK_FORMAT, LOG, MANIFEST, SHARDS, VIEW
from octocp.dataset.rows import BeyondJsonError, DoubleCheck, PlainRow, Row, strict_json
from octocp.errors import InputError
from octocp.schema.reading import shorten

REMEDY = "a row a line; without this line the rest can be read, and the build makes its row again"
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

    Every column has its type; what is in the instance is for `as_row` to validate.

    Raises
    ------
    InputError
        The source is missing, or no data set, or a row of it is none.
    """
    for place, data in read_anything(source):
        yield place, as_plain(data, place)


def read_anything(source: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what should be rows, whatever they hold, each with its place.

    Raises
    ------
    InputError
        The source is missing, or no data set, or a line of it is no JSON object.
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


def holds_set(folder: Path) -> bool:
    """Whether a folder is a data set's: one that is built, or one that was published without its log."""
    return all((folder / name).is_file() for name in (MANIFEST, LOG)) or (
        (folder / VIEW).is_file() and (folder / SHARDS).is_dir()
    )


def incomplete_line(source: str | Path) -> str:
    """Say that the last line of a folder's log is incomplete, and so left out; "" where it is not."""
    path = find(source) / LOG
    try:
        with path.open("rb") as file:
            if not file.seek(0, os.SEEK_END):
                return ""
            file.seek(-1, os.SEEK_END)
            if file.read(1) == b"\n":
                return ""
    except OSError:
        return ""
    return f"{path}: the last line is incomplete and was left out; the build that was ended goes on with its command"


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
    return [as_row(data, place) for place, data in read_anything(source)]


def as_row(data: dict[str, Any], place: str) -> Row:
    """Validate a row.

    Raises
    ------
    InputError
        It is wrong; one line with its place.
    """
    return _validated(Row, data, place)


def as_plain(data: dict[str, Any], place: str) -> dict[str, Any]:
    """Validate a row but for what is in its instance; returns it as plain data.

    Raises
    ------
    InputError
        It is wrong; one line with its place.
    """
    row = _validated(PlainRow, data, place)
    try:
        return row.model_dump(mode="json")
    except (ValueError, RecursionError):  # deeper than pydantic goes; the schema of an instance is shallow
        raise InputError("instance: is nested too deep", place=row.id, file=place) from None


RowT = TypeVar("RowT", bound=Row)


def _validated(kind: type[RowT], data: dict[str, Any], place: str) -> RowT:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        name = data.get("id")
        shown = shorten(name).strip("'") if isinstance(name, str) else "a row"
        raise InputError(f"{where}: {first['msg'].removeprefix('Value error, ')}", place=shown, file=place) from None
    except (ValueError, RecursionError):  # the text of an instance
        raise InputError("instance: is not JSON", place="a row", file=place) from None


def as_check(data: dict[str, Any], place: str) -> tuple[str, dict[str, Any]]:
    """Validate a second proof's line; returns the row's id and the proof as plain data.

    Raises
    ------
    InputError
        It is wrong; one line with its place.
    """
    name = data.get("id")
    if not isinstance(name, str):
        raise InputError("is a second proof of no row: id is missing or no text", file=place, right=REMEDY)
    try:
        return name, DoubleCheck.model_validate(data.get("check")).model_dump(mode="json")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(["check", *(str(step) for step in first["loc"])])
        raise InputError(f"{where}: {first['msg']}", place=shorten(name).strip("'"), file=place, right=REMEDY) from None


def parsed(line: bytes, place: str) -> dict[str, Any]:
    """Return a line's JSON object.

    Raises
    ------
    InputError
        It is none.
    """
    try:
        data = strict_json(line)
    except BeyondJsonError as error:
        raise InputError(str(error), file=place, right=REMEDY) from None
    except (ValueError, RecursionError):
        raise InputError("is not JSON", file=place, right=REMEDY) from None
    if not isinstance(data, dict):
        raise InputError("is not a row", file=place, right=REMEDY)
    return data


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    place = f"{path}: line {number}"
                    yield place, parsed(line, place)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot be read: {reason}", file=str(path)) from None


def _logged(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a log with the second proofs that come later in it; a last line may be incomplete."""
    checks: dict[str, Any] = {}
    for place, data in _whole_lines(path):
        if data.get("format") == CHECK_FORMAT:
            name, check = as_check(data, place)
            checks[name] = check
    for place, data in _whole_lines(path):
        if data.get("format") != CHECK_FORMAT:
            known = data.get("id")
            if isinstance(known, str) and known in checks:
                data["double_check"] = checks[known]
            yield place, data


def _whole_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.endswith(b"\n"):
                    place = f"{path}: line {number}"
                    yield place, parsed(line, place)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=str(path)) from None


def _parquet(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    from octocp.dataset.parquet import read_parquet

    for number, data in enumerate(read_parquet(path), 1):
        yield f"{path}: row {number}", data
