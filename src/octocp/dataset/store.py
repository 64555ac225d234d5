"""The folder of a data set: a log that a crash costs at most its last line, and a lock.

``log.jsonl`` is the truth: one line per row or second proof, appended and synced by the one process that holds the
lock. Everything else in the folder is made from it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from octocp.dataset.manifest import read_manifest
from octocp.dataset.names import CHECK_FORMAT, DISAGREEMENTS, LOCK, LOG, MANIFEST, MANIFEST_FORMAT, SLURM
from octocp.dataset.reading import as_check, as_plain, holds_set, parsed
from octocp.dataset.rows import FORMAT as ROW_FORMAT
from octocp.dataset.rows import PROVEN
from octocp.errors import InputError
from octocp.schema.files import write_whole

# What may be there before the manifest is, also where a crash came in between.
EARLY = (LOCK, SLURM, f".{MANIFEST}.tmp")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Entry(NamedTuple):
    """What the store keeps of a row in memory: where it is in the log, and its status."""

    offset: int
    length: int
    status: str


class Store:
    """A data set's folder, held by this process; a context manager.

    Parameters
    ----------
    folder : Path
        Made if it is not there.
    manifest : mapping
        What identifies the data set: `digest` has to be that of the folder.

    Attributes
    ----------
    rows : dict
        The rows that there are, by id.
    checks : dict
        The second proofs that there are, by id, as plain data.
    proven : int
        Rows with nothing left open.
    lost : int
        Bytes of a line that a crash left incomplete, and that were dropped.

    Raises
    ------
    InputError
        The folder cannot be written to, holds another data set, is broken, or another process has it.
    """

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        self.folder = folder
        self.rows: dict[str, Entry] = {}
        self.checks: dict[str, dict[str, Any]] = {}
        self.proven = 0
        self.lost = 0
        self._log = -1
        self._size = 0
        self._lock: Any = None
        self._manifest = {"format": MANIFEST_FORMAT, **manifest}

    def __enter__(self) -> Store:
        ensure_usable(self.folder, self._manifest["digest"])
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            try:
                self._claim()
                self._log = os.open(self.folder / LOG, os.O_RDWR | os.O_CREAT, 0o666)
                self._recover()
            except BaseException:
                self._close()
                raise
        except OSError as error:
            raise unwritable(self.folder, error) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._log >= 0:
            os.close(self._log)
            self._log = -1
        if self._lock is not None:
            with contextlib.suppress(OSError, ValueError):
                self._lock.truncate(0)
            self._lock.close()
            self._lock = None

    # ---- one process at a time ------------------------------------------------------------

    def _take_lock(self) -> None:
        """Take the folder: the kernel gives it free when the process ends, however it ends."""
        import fcntl

        path = self.folder / LOCK
        self._lock = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.seek(0)
            holder = self._lock.read(500).strip() or "another process"
            self._lock.close()
            self._lock = None
            raise InputError(
                f"is in use by {holder}", file=str(self.folder), right="wait for it, or another folder for -o"
            ) from None
        self._lock.truncate(0)
        began = time.strftime("%Y-%m-%d %H:%M:%S")
        self._lock.write(f"process {os.getpid()} on {socket.gethostname()} since {began}\n")
        self._lock.flush()

    def _claim(self) -> None:
        """Make sure that the folder is this data set's, or make it so."""
        ensure_usable(self.folder, self._manifest["digest"])  # again: another process may have begun here
        path = self.folder / MANIFEST
        if not path.exists() or read_manifest(self.folder)["digest"] != self._manifest["digest"]:
            write_whole((json.dumps(self._manifest, indent=1) + "\n").encode(), path)

    # ---- the log ---------------------------------------------------------------------------

    def _recover(self) -> None:
        """Read what is there; cut off a last line that a crash left incomplete."""
        with open(os.dup(self._log), "rb") as file:
            offset = 0
            for number, line in enumerate(file, 1):
                place = f"{self.folder / LOG}: line {number}"
                try:
                    if not line.endswith(b"\n"):
                        raise InputError("is incomplete", file=place)
                    record = parsed(line, place)
                except InputError:
                    if file.read(1):
                        raise
                    self.lost = len(line)
                    break
                self._note(_checked(record, place), offset, len(line), place)
                offset += len(line)
        os.ftruncate(self._log, offset)
        self._size = offset

    def _note(self, record: Mapping[str, Any], offset: int, length: int, place: str = "") -> None:
        name = record["id"]
        if record["format"] == CHECK_FORMAT:
            if name not in self.rows:
                raise InputError(
                    f"is a second proof of {name}, which has no row", file=place, right="without this line"
                )
            self.checks[name] = record["check"]
            return
        if name in self.rows:
            raise InputError(f"row {name} is there twice", file=place, right="without one of the two lines")
        self.rows[name] = Entry(offset, length, record["status"])
        self.proven += record["status"] in PROVEN

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Write a row, once; when this returns, it is on disk."""
        if row["id"] not in self.rows:
            self._append(row)

    def add_check(self, name: str, check: Mapping[str, Any]) -> None:
        """Write the second proof of a row."""
        if name not in self.checks:
            self._append({"format": CHECK_FORMAT, "id": name, "check": check})

    def _append(self, record: Mapping[str, Any]) -> None:
        line = (json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n").encode()
        try:
            os.lseek(self._log, self._size, os.SEEK_SET)
            left = memoryview(line)
            while left:
                left = left[os.write(self._log, left) :]
            os.fsync(self._log)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._log, self._size)
            raise unwritable(self.folder / LOG, error) from None
        self._note(record, self._size, len(line))
        self._size += len(line)

    def row(self, name: str) -> dict[str, Any]:
        """Return a row as plain data, with its second proof."""
        entry = self.rows[name]
        place = f"{self.folder / LOG}: {name}"
        # What a hand has left out is there again, with its default.
        row = as_plain(parsed(os.pread(self._log, entry.length, entry.offset), place), place)
        if name in self.checks:
            row["double_check"] = self.checks[name]
        return row

    def in_order(self, names: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Yield the rows that there are, in the order of `names`."""
        yield from (self.row(name) for name in names if name in self.rows)

    def unchecked(self, name: str) -> bool:
        """Whether a row claims a proof that has not been repeated."""
        return name in self.rows and self.rows[name].status in PROVEN and name not in self.checks

    # ---- disagreements ---------------------------------------------------------------------

    def keep_disagreement(self, name: str, found: Mapping[str, Any]) -> Path:
        """Keep both sides of a disagreement, plans as plan files; return the file that says what it is."""
        from octocp.schema import Plan
        from octocp.schema.files import plan_json

        folder = self.folder / DISAGREEMENTS
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise unwritable(folder, error) from None
        for side in ("first", "second"):
            data = found[side]
            if data.get("format") == "octocp.plan/1":
                content, suffix = plan_json(Plan.model_validate(data)), "plan.json"
            else:
                content, suffix = json.dumps(data, indent=1) + "\n", "json"
            write_whole(content.encode(), folder / f"{name}-{side}.{suffix}")
        path = folder / f"{name}.txt"
        write_whole(f"{name}: {found['what']}\n".encode(), path)
        return path


def _checked(record: dict[str, Any], place: str) -> dict[str, Any]:
    """Return a line of the log, or raise where it is neither a row nor a second proof."""
    if record.get("format") == CHECK_FORMAT:
        name, check = as_check(record, place)
        return {**record, "id": name, "check": check}
    if record.get("format") != ROW_FORMAT:
        raise InputError("is not a row", file=place, right=f"format: {ROW_FORMAT}")
    return as_plain(record, place)


def ensure_usable(folder: Path, digest: str) -> None:
    """Refuse a folder that a data set cannot be begun in or gone on with, before anything is made there.

    Parameters
    ----------
    digest : str
        The data set's.

    Raises
    ------
    InputError
        It is a file, holds another data set or something else, or lies in the folder of a data set.
    """
    right = "a new folder for -o"
    # What `a/missing/../b` is once `missing` is made. Not `resolve`, which raises what it likes at circles of links.
    place = Path(os.path.realpath(folder))
    try:
        if place.exists() and not place.is_dir():
            raise InputError("is no folder", file=str(folder), right=right)
        if (place / MANIFEST).exists():
            known = read_manifest(place, right)
            # One without rows is free, e.g. of a spec that turned out to ask for what there is not.
            if known["digest"] != digest and _size(place / LOG):
                raise InputError(
                    f"was begun for another spec, or this one ({known['name']}) or a model of it has changed since",
                    file=str(folder),
                    right=f"that spec as it was, or {right}",
                )
        elif others := sorted(each.name for each in _entries(place) if each.name not in EARLY):
            raise InputError(
                f"is not empty and holds no data set that was being built: {others[0]}", file=str(folder), right=right
            )
        for outer in place.parents:
            if holds_set(outer):
                raise InputError(f"lies in the folder of a data set, {outer}", file=str(folder), right=right)
    except OSError as error:
        raise unwritable(folder, error) from None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _entries(folder: Path) -> Iterable[Path]:
    return folder.iterdir() if folder.exists() else ()


def unwritable(path: Path, error: OSError, right: str = "another folder for -o") -> InputError:
    """Word that a path cannot be written, in one line."""
    if error.errno in FULL:
        right = "free space; the same command goes on where it was"
    # pyarrow's errors tell in `strerror` what the number says.
    reason = os.strerror(error.errno) if error.errno else error.strerror or str(error).splitlines()[0]
    return InputError(f"cannot be written: {reason}", file=str(path), right=right)
