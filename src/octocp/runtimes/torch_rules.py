"""What PyTorch needs of a pipeline CSV and mostly does not check: one complaint a line, each with its cell.

Checked against PyTorch 2.13 and 2.14 (`_validate_schedule` and the runtime's loop). Its own checks count a stage's
actions as sets, so that an op given twice passes and runs twice; a ``compute_comms`` file it does not check at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise, zip_longest

from octocp.runtimes.text import shortened
from octocp.runtimes.torch_csv import COMPUTE, TRANSFERS, Action, Table, cell, unreadable

Key = tuple[int, str, int]


def violations(table: Table) -> list[str]:
    """Return every rule that a file breaks, one line each, with the row and the column of the cell."""
    found = unreadable(table)
    for rule in (_ranks, _owners, _twice, _last_stage, _first_stage):
        found += shortened(list(rule(table)))
    found += _missing(table) + shortened(list(_order_on_rank(table)))
    if table.has_transfers:
        for rule in (_empty_cells, _transfers, _first_in_first_out, _reduce):
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
    return said


def two_way(owner: dict[int, int]) -> bool:
    """Tell whether some rank sends both activations and gradients to one peer, as in every V placement."""
    down = {(owner[stage], owner[stage + 1]) for stage in owner if stage + 1 in owner}
    return any(one != other and (other, one) in down for one, other in down)


def _compute(table: Table) -> Iterator[Action]:
    return (action for row in table.rows for action in row if action.kind in COMPUTE)


def _first(table: Table) -> dict[Key, Action]:
    """Index every action that has a microbatch; of one given twice, the first."""
    index: dict[Key, Action] = {}
    for row in table.rows:
        for action in row:
            if action.microbatch is not None:
                index.setdefault((action.stage, action.kind, action.microbatch), action)
    return index


def _ranks(table: Table) -> Iterator[str]:
    """Every rank owns a stage; a blank line, also at the end, is a rank."""
    for row, actions in enumerate(table.rows):
        if not any(action.kind in COMPUTE for action in actions):
            blank = not actions and not any(place[0] == row for place in table.empty)
            yield (
                f"row {row + 1} (rank {row}): is blank, and every line is a rank; delete it"
                if blank
                else f"row {row + 1} (rank {row}): runs no stage; every rank needs one"
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
    owner, index = table.owners(), _first(table)
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
        seen: set[tuple[int, str, int | None]] = set()
        for action in row:
            needs = {"B": "F", "I": "F", "W": "I"}.get(action.kind)
            key = (action.stage, needs or "", action.microbatch)
            if needs and key not in seen and any((a.stage, a.kind, a.microbatch) == key for a in row):
                yield f"{action.where}: comes before {action.stage}{needs}{action.microbatch}"
            seen.add((action.stage, action.kind, action.microbatch))


def _empty_cells(table: Table) -> Iterator[str]:
    for row, column in table.empty:
        yield f"{cell(row, column)}: is empty; a file with transfers is run as it is, and may have no empty cells"


def _partner(action: Action) -> Key:
    """Return the other half of a transfer."""
    step = 1 if action.kind in ("SEND_F", "RECV_B") else -1
    half = action.kind.replace("SEND", "RECV") if "SEND" in action.kind else action.kind.replace("RECV", "SEND")
    return action.stage + step, half, action.microbatch or 0


def _transfers(table: Table) -> Iterator[str]:
    """Every op whose neighbour is on another rank has its transfer, in the right place."""
    owner, index = table.owners(), _first(table)
    for row in table.rows:
        at = {(a.stage, a.kind, a.microbatch): position for position, a in enumerate(row)}
        for position, action in enumerate(row):
            m = action.microbatch or 0
            if action.kind in TRANSFERS:
                other = _partner(action)
                if owner.get(action.stage) != action.row:
                    yield f"{action.where}: stage {action.stage} is not on this rank"
                elif other[0] not in owner:
                    yield f"{action.where}: there is no stage {other[0]} to talk to"
                elif owner[other[0]] == action.row:
                    yield f"{action.where}: stage {other[0]} is on the same rank, where nothing is sent"
                elif other not in index:
                    yield f"{action.where}: has no {other[0]}{other[1]}{m} on rank {owner[other[0]]}"
                elif "SEND" in action.kind:
                    kinds = ("F",) if action.kind == "SEND_F" else ("B", "I")
                    if not any(at.get((action.stage, kind, m), position) < position for kind in kinds):
                        yield f"{action.where}: sends before {action.stage}{kinds[0]}{m} has run"
                continue
            neighbour = {"F": action.stage - 1, "B": action.stage + 1, "I": action.stage + 1}.get(action.kind, -1)
            if neighbour in owner and owner[neighbour] != action.row:
                receive = "RECV_F" if action.kind == "F" else "RECV_B"
                if at.get((action.stage, receive, m), position) >= position:
                    yield f"{action.where}: has no {action.stage}{receive}{m} before it"


def _first_in_first_out(table: Table) -> Iterator[str]:
    """Between two ranks nothing is labelled: the k-th receive gets what the k-th send sent."""
    owner = table.owners()
    sent: dict[tuple[int, int], list[Action]] = defaultdict(list)
    received: dict[tuple[int, int], list[Action]] = defaultdict(list)
    for row in table.rows:
        for action in row:
            if action.kind in TRANSFERS and _partner(action)[0] in owner:
                peer = owner[_partner(action)[0]]
                if "SEND" in action.kind:
                    sent[action.row, peer].append(action)
                else:
                    received[peer, action.row].append(action)
    for pair in sorted(sent.keys() & received.keys()):
        for one, other in zip_longest(sent[pair], received[pair]):
            if one is None or other is None:
                break  # a missing half, which `_transfers` has told of
            if _partner(one) != (other.stage, other.kind, other.microbatch or 0):
                yield (
                    f"{other.where}: would receive what {one.where} sends; "
                    f"rank {pair[1]} must receive in the order in which rank {pair[0]} sends"
                )
                break  # everything after it is shifted too


def _reduce(table: Table) -> Iterator[str]:
    """Without REDUCE_GRAD, gradients are not divided by the number of microbatches."""
    for row in table.rows:
        last: dict[int, int] = {}
        reduced: dict[int, int] = {}
        for position, action in enumerate(row):
            if action.kind in ("B", "W"):
                last[action.stage] = position
            elif action.kind == "REDUCE_GRAD":
                reduced.setdefault(action.stage, position)
        for stage, position in last.items():
            if stage not in reduced:
                yield (
                    f"{row[position].where}: no {stage}REDUCE_GRAD follows; gradients would not be divided by the "
                    "number of microbatches"
                )
            elif reduced[stage] < position:
                yield f"{row[reduced[stage]].where}: comes before {row[position].where}; it must follow the last B or W"


def _deadlock(table: Table) -> Iterator[str]:
    """Run all ranks; where none can go on, say what each waits for."""
    owner, comms = table.owners(), table.has_transfers
    done: set[Key] = set()
    at = [0] * len(table.rows)

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
        for rank, row in enumerate(table.rows):
            while at[rank] < len(row) and waits_for(row[at[rank]]) is None:
                action = row[at[rank]]
                done.add((action.stage, "I" if action.kind == "B" else action.kind, action.microbatch or 0))
                at[rank] += 1
                moved = True
    for rank, row in enumerate(table.rows):
        if at[rank] < len(row):
            stage, kind, m = waits_for(row[at[rank]]) or (0, "", 0)
            name = f"{stage}{'B' if kind == 'I' else kind}{m}"
            yield f"{row[at[rank]].where}: waits for {name}, which never runs: the ranks wait for each other"
