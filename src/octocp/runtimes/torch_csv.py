"""PyTorch's pipeline CSV (``torch.distributed.pipelining``, `_PipelineScheduleRuntime._load_csv`; PyTorch 2.13, 2.14).

No header; row r is what rank r runs, in order; a cell is ``<stage><kind><microbatch>``, or several of them as
``(0F1;1B0)OVERLAP_F_B``. F is the forward, I the gradient of the input, W that of the weights, B both at once:
what a plan calls B is I here. A ``compute_only`` file has these kinds and may have empty cells; a
``compute_comms`` file has transfers and REDUCE_GRAD too and is run as it is written.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from octocp.errors import InputError
from octocp.runtimes.text import shortened

COMPUTE = ("F", "B", "I", "W")
TRANSFERS = ("SEND_F", "RECV_F", "SEND_B", "RECV_B")
WITHOUT_MICROBATCH = ("UNSHARD", "RESHARD", "REDUCE_GRAD")
MOST_RANKS = 1_024

Key = tuple[int, str, int]
"""Stage, kind, microbatch."""

_KINDS = "|".join((*WITHOUT_MICROBATCH, *TRANSFERS, *COMPUTE))
_ACTION = re.compile(rf"([0-9]{{1,6}})({_KINDS})([0-9]{{0,6}})")
_OVERLAP = re.compile(r"\((.*)\)OVERLAP_F_B")


@dataclass(frozen=True)
class Action:
    """What a cell asks for; `row` and `column` count from 0, `microbatch` is None where the kind has none."""

    stage: int
    kind: str
    microbatch: int | None
    row: int = 0
    column: int = 0

    def __str__(self) -> str:
        """Return the text of the cell."""
        return f"{self.stage}{self.kind}{'' if self.microbatch is None else self.microbatch}"

    @property
    def where(self) -> str:
        """The cell, as a spreadsheet counts."""
        return f"{cell(self.row, self.column)} ({self})"


def cell(row: int, column: int) -> str:
    """Name a cell; rows and columns count from 1, ranks from 0."""
    return f"row {row + 1} (rank {row}), column {column + 1}"


@dataclass(frozen=True)
class Table:
    """A file as it was read.

    Attributes
    ----------
    rows : tuple [rank] of tuples of Action
        Without empty cells.
    unreadable : tuple of str
        Cells that are no action, one complaint each.
    empty : tuple of (row, column)
        Cells with nothing in them.
    garbled : frozenset of int
        Rows with a cell that is no action.
    """

    rows: tuple[tuple[Action, ...], ...]
    unreadable: tuple[str, ...]
    empty: tuple[tuple[int, int], ...]
    garbled: frozenset[int] = frozenset()

    @property
    def has_transfers(self) -> bool:
        """Whether it is a ``compute_comms`` file, which PyTorch runs as it is written."""
        return any(action.kind not in COMPUTE for row in self.rows for action in row)

    @property
    def stages(self) -> int:
        """One more than the largest stage."""
        return 1 + max((action.stage for row in self.rows for action in row), default=-1)

    @property
    def microbatches(self) -> int:
        """One more than the largest microbatch."""
        return 1 + max((action.microbatch or 0 for row in self.rows for action in row), default=-1)

    def owners(self) -> dict[int, int]:
        """Return the rank of each stage: the one that runs an op of it first."""
        found: dict[int, int] = {}
        for rank, row in enumerate(self.rows):
            for action in row:
                if action.kind in COMPUTE:
                    found.setdefault(action.stage, rank)
        return found

    def index(self) -> dict[Key, Action]:
        """Return every action that has a microbatch; of one given twice, the first."""
        found: dict[Key, Action] = {}
        for row in self.rows:
            for action in row:
                if action.microbatch is not None:
                    found.setdefault((action.stage, action.kind, action.microbatch), action)
        return found


def parse(text: str) -> Table:
    """Read a file; what is in no cell's format is kept as a complaint, so that all of them can be told.

    Raises
    ------
    InputError
        It is no CSV at all, or has far too many rows.
    """
    rows: list[tuple[Action, ...]] = []
    unreadable: list[str] = []
    empty: list[tuple[int, int]] = []
    garbled: set[int] = set()
    try:
        lines = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise InputError(f"not valid CSV: {error}") from None
    if len(lines) > MOST_RANKS:
        raise InputError(f"has {len(lines)} rows, one for each rank; at most {MOST_RANKS}")
    for row, cells in enumerate(lines):
        actions: list[Action] = []
        for column, content in enumerate(cells):
            if not content.strip():
                empty.append((row, column))
                continue
            read = _actions(content.strip(), row, column)
            if read is None:
                unreadable.append(f"{cell(row, column)}: {content.strip()[:40]!r} {_reason(content)}")
                garbled.add(row)
            else:
                actions += read
        rows.append(tuple(actions))
    return Table(tuple(rows), tuple(unreadable), tuple(empty), frozenset(garbled))


def _reason(content: str) -> str:
    several = re.split(r"[;\s|]+", content.strip())
    if len(several) > 1 and all(map(_ACTION.fullmatch, several)):
        return "holds several actions; commas stand between cells"
    return "is no action (a stage, a kind and a microbatch, as in 2F0)"


def _actions(content: str, row: int, column: int) -> list[Action] | None:
    overlap = _OVERLAP.fullmatch(content)
    parts = [part.strip() for part in overlap[1].split(";")] if overlap else [content]
    made = []
    for part in parts:
        # PyTorch only matches the beginning, and would take 1F0x for 1F0.
        match = _ACTION.fullmatch(part)
        if match is None or (match[2] in WITHOUT_MICROBATCH) == bool(match[3]):
            return None
        if overlap and match[2] not in COMPUTE:
            return None
        made.append(Action(int(match[1]), match[2], int(match[3]) if match[3] else None, row, column))
    return made


def write(rows: Sequence[Iterable[Action]]) -> str:
    """Return the file of rows of actions: no blanks, and a newline after every row but no row after the last."""
    return "".join(",".join(str(action) for action in row) + "\n" for row in rows)


def unreadable(table: Table) -> list[str]:
    """Return the complaints about cells that are no action."""
    return shortened(table.unreadable)
