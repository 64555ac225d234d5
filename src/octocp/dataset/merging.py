"""Data sets put together: of equal problems, the row that knows most."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import Any

from octocp.dataset.canonical import canonical_hash
from octocp.dataset.manifest import read_manifest
from octocp.dataset.names import MANIFEST
from octocp.dataset.reading import as_row, find, read_anything
from octocp.dataset.rows import Row
from octocp.dataset.store import Store, ensure_usable, unwritable
from octocp.dataset.views import write_views
from octocp.errors import InputError, OctoCPError
from octocp.schema.base import LONGEST_NAME

MERGED = "merged"
# Letters of a folder's name in that of the folder beside it.
SHORT = 40


def merge(sources: Sequence[str | Path], folder: Path) -> tuple[int, int, list[str]]:
    """Put data sets together in a new folder; of equal problems the row that knows most is kept.

    Returns
    -------
    int, int, list of str
        Rows, rows left out as duplicates, notes.

    Raises
    ------
    InputError
        A source cannot be read, two of them contradict each other, or the folder is in use or not empty.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError("is there already and not empty", file=str(folder), right="a new folder for -o")
    ensure_usable(folder, MERGED)
    specs = [_spec(source) for source in sources]
    kept: dict[str, dict[str, Any]] = {}
    dropped = 0
    names: set[str] = set()
    for source in sources:
        for place, data in read_anything(source):
            row = _row(data, place)
            known = kept.get(row["hash"])
            if known is not None:
                _agree(known, row, place)
                dropped += 1
                if _knows(row) <= _knows(known):
                    continue
                row = {**row, "id": known["id"]}
            else:
                row = {**row, "id": _free_name(row, names)}
            names.add(row["id"])
            kept[row["hash"]] = row
    if not kept:
        raise InputError("there is no row in what is to be merged")
    target = Path(os.path.realpath(folder))
    name = target.name if target.name and target.name.isprintable() else MERGED
    manifest = {"name": name, "digest": MERGED, "generator": 0, "count": len(kept)}
    if len(specs) == 1:
        manifest |= specs[0]
    with _aside(target) as made, Store(made, manifest) as store:
        for row in kept.values():
            store.add_row(row)
        _, notes = write_views(made, manifest, lambda: (store.row(name) for name in store.rows))
    return len(kept), dropped, notes


@contextmanager
def _aside(folder: Path) -> Iterator[Path]:
    """Give a folder beside the one that is asked for; it takes that one's place at the end, or goes.

    So there is never half a data set that looks like a whole one: a merge does not go on where another was ended.
    """
    mark = ".merging"
    start = f".{folder.name[:SHORT]}."  # a long name has no room for more
    for old in folder.parent.glob(f"{escape(start)}*{mark}"):
        # Of a merge that was killed.
        if not _runs(old.name.removeprefix(start).removesuffix(mark)):
            shutil.rmtree(old, ignore_errors=True)
    made = folder.with_name(f"{start}{os.getpid()}{mark}")
    try:
        yield made
        try:
            made.replace(folder)
        except OSError as error:
            raise unwritable(folder, error) from None
    except InputError as error:
        # In the words of who asked for `folder`; and nothing is there to go on with.
        file, right = error.file.replace(str(made), str(folder)), "free space, or another folder for -o"
        raise InputError(error.problem, place=error.place, file=file, right=right) from None
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _runs(process: str) -> bool:
    """Whether a process, by its number, may be at work; what is no number may be anything."""
    if not process.isdecimal():
        return True
    if int(process) == os.getpid():  # one before had the same number
        return False
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # another user's
        return True
    return True


def _row(data: dict[str, Any], place: str) -> dict[str, Any]:
    """Return a row as plain data; its hash has to be that of its instance, since equal ones are one problem.

    Raises
    ------
    InputError
        It is not, or the row is wrong otherwise.
    """
    row = as_row(data, place)
    try:
        found = canonical_hash(row.problem())
    except OctoCPError as error:
        raise InputError(f"instance: {error}", file=place, place=row.id) from None
    if found != row.hash:
        raise InputError(f"hash: is {row.hash}", file=place, place=row.id, right=f"{found}, that of the instance")
    return row.data()


def _free_name(row: dict[str, Any], names: set[str]) -> str:
    """Return the row's id, or where another problem has it, one with as much of the hash as it takes."""
    name: str = row["id"]
    for length in (0, 8, 16, 32):
        end = f"-{row['hash'][:length]}" if length else ""
        made = name[: LONGEST_NAME - len(end)] + end
        if made not in names:
            return made
    raise InputError(f"{name}: every name for it is taken", right="other ids")


def _spec(source: str | Path) -> dict[str, Any]:
    """Return what a folder's manifest tells of where its rows are from."""
    path = find(source)
    if not (path / MANIFEST).is_file():
        return {}
    return {key: value for key, value in read_manifest(path).items() if key in ("name", "spec")}


def _knows(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what ranks rows of one problem: a proof, a second proof, a better value, a better bound."""
    check = row["double_check"]
    return (
        row["status"] in ("optimal", "infeasible"),
        check is not None and check["status"] == row["status"],
        -(row["value"] if row["value"] is not None else 2**63),
        row["lower_bound"] or 0,
    )


def _agree(one: dict[str, Any], other: dict[str, Any], place: str) -> None:
    """Raise where two rows of one problem contradict each other."""
    wrong = (one["status"] == "infeasible" and other["value"] is not None) or (
        other["status"] == "infeasible" and one["value"] is not None
    )
    # Equal problems may differ by a factor in time, so values are held against bounds in milliseconds.
    for first, second in ((one, other), (other, one)):
        if first["value"] is not None and second["lower_bound"] is not None and first["tick_us"] == second["tick_us"]:
            same = _ticks(first) == _ticks(second)
            wrong = wrong or (same and first["value"] < second["lower_bound"])
    if wrong:
        told = f"{one['status']} {one['value']} and {other['status']} {other['value']}"
        raise InputError(f"contradicts {one['id']}, which is the same problem: {told}", file=place, place=other["id"])


def _ticks(row: dict[str, Any]) -> Any:
    problem = Row.model_validate(row).problem()
    return sum(map(sum, problem.layer_ticks))
