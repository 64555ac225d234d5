"""Rows as Parquet; needs the extra ``data`` (pyarrow)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from octocp.dataset.store import unwritable
from octocp.errors import InputError

# Columns by their type; the instance is JSON text, since no two need to have the same keys.
TEXTS = (
    "format",
    "id",
    "hash",
    "family",
    "instance",
    "objective",
    "status",
    "reason",
    "bound_name",
    "method",
    "found_by",
)
NUMBERS = ("layers", "devices", "microbatches", "value", "makespan", "span", "lower_bound", "seed", "workers")
FRACTIONS = ("tick_us", "gap", "time_limit", "seconds")


def available() -> bool:
    """Whether Parquet can be written here."""
    return find_spec("pyarrow") is not None


def _pyarrow(file: str) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(
            "Parquet needs pyarrow, which is not installed", file=file, right='pip install "octocp[data]"'
        ) from None
    return pyarrow


def schema() -> Any:
    """Return the columns of a shard, in the order of a row's fields."""
    from octocp.dataset.rows import Row

    pa = _pyarrow("")
    heuristic = pa.struct(
        [("method", pa.string()), ("status", pa.string()), ("value", pa.int64()), ("rule", pa.string())]
    )
    check = pa.struct(
        {
            **dict.fromkeys(("status", "value", "lower_bound", "bound_name", "settings", "seconds"), pa.string()),
            **dict.fromkeys(("value", "lower_bound"), pa.int64()),
            "seconds": pa.float64(),
        }
    )
    versions = pa.struct(
        [(name, pa.string()) for name in ("octocp", "ortools", "numpy", "numba", "python")]
        + [("generator", pa.int64())]
    )
    types = {
        **dict.fromkeys(TEXTS, pa.string()),
        **dict.fromkeys(NUMBERS, pa.int64()),
        **dict.fromkeys(FRACTIONS, pa.float64()),
        "features": pa.list_(pa.string()),
        "partition": pa.list_(pa.int64()),
        "placement": pa.list_(pa.int64()),
        "orders": pa.list_(pa.list_(pa.string())),
        "starts": pa.list_(pa.list_(pa.int64())),
        "ends": pa.list_(pa.list_(pa.int64())),
        "peak_memory_gb": pa.list_(pa.float64()),
        "versions": versions,
        "heuristics": pa.list_(heuristic),
        "double_check": check,
    }
    return pa.schema([(name, types[name]) for name in Row.model_fields])


def write_parquet(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Write rows as one file; it appears whole or not at all.

    Raises
    ------
    InputError
        pyarrow is not installed, or the file cannot be written.
    """
    pa = _pyarrow(str(path))
    flat = [{**row, "instance": json.dumps(row["instance"], separators=(",", ":"))} for row in rows]
    table = pa.Table.from_pylist(flat, schema=schema())
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:  # pyarrow itself takes no path that is no Unicode
            pa.parquet.write_table(table, file, compression="zstd")
        temporary.replace(path)
    except OSError as error:
        raise unwritable(path, error) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def read_parquet(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file.

    Raises
    ------
    InputError
        pyarrow is not installed, or the file is not Parquet.
    """
    pa = _pyarrow(str(path))
    try:
        with path.open("rb") as file:
            for batch in pa.parquet.ParquetFile(file).iter_batches(batch_size=500):
                yield from batch.to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"cannot be read: {str(error).splitlines()[0]}", file=str(path)) from None
