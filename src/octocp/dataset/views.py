"""What a data set's folder holds beside its log: rows as gzip JSONL and as Parquet, and the card."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from octocp.dataset import parquet
from octocp.dataset.card import card
from octocp.dataset.names import SHARDS, VIEW
from octocp.dataset.stats import Stats, collect
from octocp.dataset.store import unwritable
from octocp.schema.files import write_whole

ROWS_PER_SHARD = 2000
CARD = "README.md"


def write_views(
    folder: Path, manifest: dict[str, Any], rows: Callable[[], Iterable[dict[str, Any]]]
) -> tuple[list[Path], list[str]]:
    """Write rows as ``rows.jsonl.gz`` and, with pyarrow, ``shards/*.parquet``, and the card ``README.md``.

    Parameters
    ----------
    rows : callable
        Returns all rows as plain data, in order; called more than once.

    Returns
    -------
    list of Path, list of str
        The files, and what to tell the user.
    """
    files = [write_jsonl(rows(), folder / VIEW)]
    notes = []
    with_parquet = parquet.available()
    if with_parquet:
        files += write_shards(folder / SHARDS, rows())
    else:
        notes.append('no Parquet: pyarrow is not installed (pip install "octocp[data]", then the same command)')
    stats: Stats = collect(rows())
    write_whole(card(stats, manifest, parquet=with_parquet).encode(), folder / CARD)
    return [*files, folder / CARD], notes


def write_jsonl(rows: Iterable[dict[str, Any]], path: Path) -> Path:
    """Write rows, a line each, compressed where the name ends in ``.gz``; the file appears whole or not at all.

    Raises
    ------
    InputError
        It cannot be written.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as raw:
            if path.suffix == ".gz":
                # No time and no name inside: the same rows make the same file.
                with gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=9, mtime=0) as file:
                    file.writelines(_lines(rows))
            else:
                raw.writelines(_lines(rows))
        temporary.replace(path)
    except OSError as error:
        raise unwritable(path, error, "another file for -o") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return path


def _lines(rows: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    for row in rows:
        yield (json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n").encode()


def write_shards(folder: Path, rows: Iterable[dict[str, Any]]) -> list[Path]:
    """Write rows as ``part-*.parquet``; parts of an earlier, larger set go.

    Raises
    ------
    InputError
        They cannot be written.
    """
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from None
    coming = iter(rows)
    files: list[Path] = []
    while shard := list(islice(coming, ROWS_PER_SHARD)):
        files.append(folder / f"part-{len(files):05d}.parquet")
        parquet.write_parquet(shard, files[-1])
    for old in folder.glob("part-*.parquet"):
        if old not in files:
            old.unlink(missing_ok=True)
    return files
