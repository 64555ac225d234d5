"""What PyTorch needs of a CSV with transfers (``compute_comms``), of which it checks nothing; complaints with cells.

Checked against PyTorch 2.13 and 2.14 (the loop of `_PipelineScheduleRuntime`). A SEND is an isend and a RECV an irecv,
each by itself; what uses a tensor waits for its receive. UNSHARD and RESHARD do something with FSDP only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import zip_longest

from octocp.runtimes.torch_csv import COMPUTE, TRANSFERS, Action, Key, Table, cell


def empty_cells(table: Table) -> Iterator[str]:
    """Find empty cells: PyTorch refuses them here, and without transfers takes them for idle time."""
    for row, column in table.empty:
        yield f"{cell(row, column)}: is empty; a file with transfers is run as it is, and may have no empty cells"


def foreign(table: Table) -> Iterator[str]:
    """Find transfers, UNSHARD, RESHARD and REDUCE_GRAD of a stage that the rank does not hold."""
    owner = table.owners()
    for row in table.rows:
        for action in row:
            if action.kind not in COMPUTE and owner.get(action.stage) != action.row:
                there = f"it is on rank {owner[action.stage]}" if action.stage in owner else "it is on none"
                yield f"{action.where}: stage {action.stage} is not on this rank, {there}"


def partner(action: Action) -> Key:
    """Return the other half of a transfer."""
    step = 1 if action.kind in ("SEND_F", "RECV_B") else -1
    half = action.kind.replace("SEND", "RECV") if "SEND" in action.kind else action.kind.replace("RECV", "SEND")
    return action.stage + step, half, action.microbatch or 0


def transfers(table: Table) -> Iterator[str]:
    """Find ops without the transfer that they need, and transfers that have no use or are in the wrong place."""
    owner, index = table.owners(), table.index()
    for row in table.rows:
        at = {(a.stage, a.kind, a.microbatch): position for position, a in enumerate(row)}
        for position, action in enumerate(row):
            m = action.microbatch or 0
            if action.kind in TRANSFERS:
                other = partner(action)
                if owner.get(action.stage) != action.row:
                    continue  # which `foreign` tells
                if other[0] not in owner:
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


def first_in_first_out(table: Table) -> Iterator[str]:
    """Compare sends with receives: between two ranks nothing is labelled, the k-th receive gets the k-th send."""
    sent: dict[tuple[int, int], list[Action]] = defaultdict(list)
    received: dict[tuple[int, int], list[Action]] = defaultdict(list)
    for action, peer in _with_peers(table):
        if "SEND" in action.kind:
            sent[action.row, peer].append(action)
        else:
            received[peer, action.row].append(action)
    for pair in sorted(sent.keys() & received.keys()):
        for one, other in zip_longest(sent[pair], received[pair]):
            if one is None or other is None:
                break  # a missing half, which `transfers` has told of
            if partner(one) != (other.stage, other.kind, other.microbatch or 0):
                yield (
                    f"{other.where}: would receive what {one.where} sends; "
                    f"rank {pair[1]} must receive in the order in which rank {pair[0]} sends"
                )
                break  # everything after it is shifted too


def _with_peers(table: Table) -> Iterator[tuple[Action, int]]:
    """Go through the transfers, rank by rank, with the rank at their other end."""
    owner = table.owners()
    for row in table.rows:
        for action in row:
            if action.kind in TRANSFERS and partner(action)[0] in owner:
                yield action, owner[partner(action)[0]]


def crossing(table: Table) -> Iterator[str]:
    """Find ranks whose transfers wait for each other where each rank has its own one by one, in its order.

    NCCL does: those of a pair of ranks, or all of a rank, depending on how its communicators were made. A transfer ends
    when both of its ranks have come to it. Two sends at once go on only if they fit into NCCL's buffers, two receives
    never do. One line for each round of ranks that wait; what comes after it is not looked at.
    """
    queues: list[list[tuple[Action, int]]] = [[] for _ in table.rows]
    for action, peer in _with_peers(table):
        queues[action.row].append((action, peer))
    at = [0] * len(queues)
    look = list(range(len(queues)))
    while look:
        rank = look.pop()
        while at[rank] < len(queues[rank]):
            action, peer = queues[rank][at[rank]]
            if at[peer] >= len(queues[peer]):
                break
            other, _ = queues[peer][at[peer]]
            if partner(action) != (other.stage, other.kind, other.microbatch or 0):
                break
            at[rank] += 1
            at[peer] += 1
            look.append(peer)
    stuck = {rank: queue[at[rank]] for rank, queue in enumerate(queues) if at[rank] < len(queue)}
    told: set[int] = set()
    for first in stuck:
        path: list[int] = []
        rank = first
        while rank in stuck and rank not in told:
            told.add(rank)
            path.append(rank)
            rank = stuck[rank][1]
        if rank in path:  # else it leads to a round that has been told, or to a transfer without its other half
            cells = [stuck[each][0].where for each in path[path.index(rank) :]]
            yield (
                f"{', '.join(cells[:-1])} and {cells[-1]} cross: runs with buffered sends (gloo), can hang with NCCL, "
                "where each waits for the rank of the next; both ends of a transfer need the same place in the order"
            )


def sharding(table: Table) -> Iterator[str]:
    """Follow UNSHARD and RESHARD of each stage: what ends a run with FSDP."""
    for row in table.rows:
        managed = {action.stage for action in row if action.kind in ("UNSHARD", "RESHARD")}
        asked: dict[int, Action] = {}
        whole: set[int] = set()
        for action in row:
            stage = action.stage
            if stage not in managed:
                continue
            if action.kind == "UNSHARD":
                if stage in asked or stage in whole:
                    yield f"{action.where}: stage {stage} is unsharded already"
                asked[stage] = action
            elif action.kind == "RESHARD":
                if stage not in whole:
                    why = f"nothing of stage {stage} runs between" if stage in asked else f"has no {stage}UNSHARD"
                    yield f"{action.where}: {why} before it"
                whole.discard(stage)
                asked.pop(stage, None)
            elif action.kind in COMPUTE:
                if stage not in whole and stage not in asked:
                    yield f"{action.where}: has no {stage}UNSHARD before it"
                whole.add(stage)
                asked.pop(stage, None)
        for action in asked.values():
            yield f"{action.where}: nothing of stage {action.stage} runs after it"


def reduce(table: Table) -> Iterator[str]:
    """Find stages without REDUCE_GRAD, whose gradients are not divided by the number of microbatches."""
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


RULES = (empty_cells, foreign, transfers, first_in_first_out, sharding, reduce)
"""All but `crossing`, which holds for some backends only."""
