"""What PyTorch needs of a pipeline CSV and mostly does not check: one complaint a line, each with its cell.

Checked against PyTorch 2.13 and 2.14 (`_validate_schedule` and the runtime's loop). Its own checks count a stage's
actions as sets, so that an op given twice passes and runs twice; a ``compute_comms`` file it does not check at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

from octocp.runtimes import torch_transfers
from octocp.runtimes.text import shortened
from octocp.runtimes.torch_csv import COMPUTE, Action, Key, Table, cell, unreadable


def violations(table: Table) -> list[str]:
    """Return every rule that a file breaks, one line each, with the row and the column of the cell."""
    found = unreadable(table)
    for rule in (_ranks, _owners, _twice, _last_stage, _first_stage, _overlaps):
        found += shortened(list(rule(table)))
    found += _missing(table) + shortened(list(_order_on_rank(table)))
    if table.has_transfers:
        for rule in torch_transfers.RULES:
            found += shortened(list(rule(table)))
    # With anything missing or in the wrong place, waiting ranks would only repeat it.
    return found or list(_deadlock(table))


def remarks(table: Table) -> list[str]:
    """Return what a file is not wrong in and its user should still know."""
    owner = table.owners()
    said = []
    adjacent = next((stage for stage in sorted(owner) if owner.get(stage + 1) == owner[stage]), None)
    if adjacent is not None:
        said.append(
            f"rank {owner[adjacent]} holds the adjacent stages {adjacent} and {adjacent + 1}: training runs, "
            "but PyTorch's eval() fails"
        )
    if two_way(owner):
        said.append("a rank sends both activations and gradients to one other: never set defer_pp_recv=True with it")
    if table.has_transfers:
        said += shortened(list(torch_transfers.crossing(table)))
    return said


def two_way(owner: dict[int, int]) -> bool:
    """Tell whether some rank sends both activations and gradients to one peer, as in every V placement."""
    down = {(owner[stage], owner[stage + 1]) for stage in owner if stage + 1 in owner}
    return any(one != other and (other, one) in down for one, other in down)


def _compute(table: Table) -> Iterator[Action]:
    return (action for row in table.rows for action in row if action.kind in COMPUTE)


def _ranks(table: Table) -> Iterator[str]:
    """Every rank owns a stage; a blank line, also at the end, is a rank."""
    for row, actions in enumerate(table.rows):
        # Of a row with cells that cannot be read, nobody knows.
        if row not in table.garbled and not any(action.kind in COMPUTE for action in actions):
            blank = not actions and not any(place[0] == row for place in table.empty)
            # Behind the last rank, a blank line is one too many; before it, the rank's own may be lost.
            more = "" if not any(table.rows[row + 1 :]) else f", or write there what rank {row} runs"
            yield f"row {row + 1} (rank {row}): " + (
                f"is blank, and every line is a rank; delete it{more}"
                if blank
                else "runs no stage; every rank needs one"
            )


def _owners(table: Table) -> Iterator[str]:
    owner = table.owners()
    for action in _compute(table):
        if owner[action.stage] != action.row:
            yield (
                f"{action.where}: stage {action.stage} is on rank {owner[action.stage]}; a stage runs on one rank only"
            )


def _twice(table: Table) -> Iterator[str]:
    seen: dict[tuple[int, str, int | None], Action] = {}
    for row in table.rows:
        for action in row:
            before = seen.setdefault((action.stage, action.kind, action.microbatch), action)
            if before is not action and action.kind not in ("UNSHARD", "RESHARD"):
                yield f"{action.where}: is there already, in {cell(before.row, before.column)}, and would run twice"


def _last_stage(table: Table) -> Iterator[str]:
    """Losses are kept in order of arrival: another order crashes, or trains on the wrong loss without a word."""
    last = table.stages - 1
    forwards = [action for action in _compute(table) if action.stage == last and action.kind == "F"]
    for before, action in pairwise(forwards):
        if (action.microbatch or 0) < (before.microbatch or 0):
            yield (
                f"{action.where}: comes after {before}; the last stage must run its forwards in order of microbatches"
            )


def _first_stage(table: Table) -> Iterator[str]:
    for action in _compute(table):
        if action.stage == 0 and action.kind == "I":
            yield (
                f"{action.where}: does nothing in stage 0, whose W runs the whole backward; write 0B{action.microbatch}"
            )


def _missing(table: Table) -> list[str]:
    """Every stage runs every microbatch: F, then either B or I and W."""
    done: dict[tuple[int, str], set[int]] = defaultdict(set)
    for action in _compute(table):
        done[action.stage, action.kind].add(action.microbatch or 0)
    stages, everything = sorted({stage for stage, _ in done}), range(table.microbatches)
    absent = table.stages - len(stages)
    present = set(stages)
    found = shortened((f"stage {s} is on no rank" for s in range(table.stages) if s not in present), absent)
    owner, index = table.owners(), table.index()
    for stage in stages:
        f, b, i, w = (done[stage, kind] for kind in "FBIW")
        row = f"row {owner[stage] + 1} (rank {owner[stage]})"
        found += shortened(
            (f"{row}: {stage}F{m} is missing" for m in everything if m not in f), len(everything) - len(f)
        )
        backward = b | i | w
        found += shortened(
            (
                f"{row}: {stage}B{m} (or {stage}I{m} and {stage}W{m}) is missing"
                for m in everything
                if m not in backward
            ),
            len(everything) - len(backward),
        )
        found += shortened(
            f"{index[stage, 'I', m].where}: has no {stage}W{m}; the gradient of the weights would be lost"
            for m in sorted(i - w - b)
        )
        found += shortened(f"{index[stage, 'W', m].where}: has no {stage}I{m} before it" for m in sorted(w - i - b))
        found += shortened(
            f"{index[stage, 'B', m].where}: runs the whole backward, and so do {stage}I{m} or {stage}W{m}"
            for m in sorted(b & (i | w))
        )
    return found


def _order_on_rank(table: Table) -> Iterator[str]:
    """F before B or I, I before W; across ranks, `_deadlock` sees to it."""
    for row in table.rows:
        there = {(action.stage, action.kind, action.microbatch) for action in row}
        seen: set[tuple[int, str, int | None]] = set()
        for action in row:
            needs = {"B": "F", "I": "F", "W": "I"}.get(action.kind)
            key = (action.stage, needs or "", action.microbatch)
            if needs and key not in seen and key in there:
                yield f"{action.where}: comes before {action.stage}{needs}{action.microbatch}"
            seen.add((action.stage, action.kind, action.microbatch))


def _parts(row: Sequence[Action]) -> list[list[Action]]:
    """Return the actions of a row by cell; several in one are the parts of an OVERLAP_F_B."""
    return [list(parts) for _, parts in groupby(row, key=lambda action: action.column)]


def _overlaps(table: Table) -> Iterator[str]:
    """The parts of an OVERLAP_F_B run at the same time: none may need another."""
    for row in table.rows:
        for parts in _parts(row):
            names = {(a.stage, "I" if a.kind == "B" else a.kind, a.microbatch): a for a in parts if len(parts) > 1}
            for action in parts:
                stage, m = action.stage, action.microbatch
                needs = {
                    "F": [(stage - 1, "F", m)],
                    "B": [(stage, "F", m), (stage + 1, "I", m)],
                    "I": [(stage, "F", m), (stage + 1, "I", m)],
                    "W": [(stage, "I", m)],
                }.get(action.kind, [])
                for need in needs:
                    if need in names:
                        yield f"{action.where}: needs {names[need]} of its own cell, whose parts run at the same time"


def _deadlock(table: Table) -> Iterator[str]:
    """Run all ranks, a cell once all of its parts can; where none can go on, say what each waits for."""
    owner, comms = table.owners(), table.has_transfers
    done: set[Key] = set()
    rows = [_parts(row) for row in table.rows]
    at = [0] * len(rows)

    def waits_for(action: Action) -> Key | None:
        stage, m = action.stage, action.microbatch or 0
        if action.kind == "F":
            needs, sends = (stage - 1, "F", m), (stage - 1, "SEND_F", m)
        elif action.kind in ("B", "I"):
            needs, sends = (stage + 1, "I", m), (stage + 1, "SEND_B", m)
        else:
            return None
        if needs[0] not in owner:
            return None
        if comms and owner[needs[0]] != action.row:
            return None if sends in done else sends
        return None if needs in done else needs

    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while at[rank] < len(row) and not any(map(waits_for, row[at[rank]])):
                for action in row[at[rank]]:
                    done.add((action.stage, "I" if action.kind == "B" else action.kind, action.microbatch or 0))
                at[rank] += 1
                moved = True
    for rank, row in enumerate(rows):
        if at[rank] < len(row):
            action = next(part for part in row[at[rank]] if waits_for(part))
            stage, kind, m = waits_for(action) or (0, "", 0)
            name = f"{stage}{'B' if kind == 'I' else kind}{m}"
            yield f"{action.where}: waits for {name}, which never runs: the ranks wait for each other"
