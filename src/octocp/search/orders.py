"""Local search over explicit orders, compiled: what each device runs, op after op, with the stages' devices held.

The list scheduler of `octocp.search.evaluator` treats all microbatches of a stage alike; an explicit order need not. A
device's order is a row of tokens, one per op without its microbatch: the k-th token of a (stage, kind) is microbatch k,
since microbatches run in order within each (semantics, fact 1). Memory depends on a device's own order alone
(octocp.timing), so that one pass over the tokens finds the starts, the memory and whether devices wait for each other.

Moves act on the critical path: an op of it goes to an earlier or a later place among its device's. Of two ops in a row
on the path one of the two must move for the makespan to fall (van Laarhoven, Aarts, Lenstra, Operations Research 40,
1992). Some move a cut instead and leave the tokens as they are.
"""

from __future__ import annotations

import numpy as np

from octocp.search.compiled import compiled
from octocp.search.evaluator import BACKWARD, FORWARD, NEVER, SCRATCH_ROWS, WEIGHT, Ints, latest_span
from octocp.search.measure import (
    S_DEVICES,
    S_FREE_CUTS,
    S_KINDS,
    S_LIMITED,
    S_MICROBATCHES,
    S_SPAN,
    measure,
)

# A token: the stage, shifted by two bits, and the kind.
KIND_BITS = 2
KIND_MASK = 3
# How far an op is moved at most, in places.
FURTHEST = 12


@compiled
def run_orders(
    stages: int,
    microbatches: int,
    kinds: int,
    devices: int,
    duration: Ints,
    place: Ints,
    entry: Ints,
    sizes: Ints,
    room: Ints,
    limited: bool,
    tokens: Ints,
    length: Ints,
    give_up: int,
    start: Ints,
    microbatch_at: Ints,
    position: Ints,
    sequence: Ints,
    done: Ints,
    waiting: Ints,
    scratch: Ints,
) -> int:
    """Start every op as early as the orders allow; return the makespan in ticks, or `NEVER`.

    `NEVER` where devices wait for each other, memory does not hold the order, or some op ends after `give_up`.

    Parameters
    ----------
    duration, place, entry, sizes, room : int arrays
        As `octocp.search.measure.measure` fills them.
    tokens : int array [device, place in its order]
    length : int array [device]
        Tokens of each device.
    start, position : int array [kind, stage, microbatch]
        Filled: ticks, and places in the devices' orders.
    microbatch_at : int array [device, place in its order]
        Filled.
    sequence : int array [ops]
        Filled with the ops, numbered kind-major, in an order that all of them can run in.
    """
    reached, free, held, remaining = scratch[0], scratch[1], scratch[2], scratch[3]
    left = 0
    for device in range(devices):
        reached[device], free[device], held[device], remaining[device] = 0, 0, 0, 0
        left += length[device]
        waiting[device] = device
    for stage in range(stages):
        for kind in range(kinds):
            done[kind, stage] = 0
            remaining[place[stage]] += microbatches * duration[kind, stage]
    top, total, makespan = devices, 0, 0
    while top > 0:
        # A device that can go on, until it cannot.
        top -= 1
        device = waiting[top]
        while reached[device] < length[device]:
            token = tokens[device, reached[device]]
            kind, stage = token & KIND_MASK, token >> KIND_BITS
            microbatch = done[kind, stage]
            now = free[device]
            if kind == FORWARD:
                if stage > 0:
                    if done[FORWARD, stage - 1] <= microbatch:
                        break
                    now = max(now, start[0, stage - 1, microbatch] + duration[0, stage - 1] + entry[stage])
            elif kind == BACKWARD:
                if stage + 1 < stages:
                    if done[BACKWARD, stage + 1] <= microbatch:
                        break
                    now = max(now, start[1, stage + 1, microbatch] + duration[1, stage + 1] + entry[stage + 1])
                elif done[FORWARD, stage] <= microbatch:
                    break
            elif done[BACKWARD, stage] <= microbatch:
                break
            if now + remaining[device] > give_up:
                return NEVER
            if limited:
                if kind == FORWARD:
                    held[device] += sizes[0, stage]
                elif kind == BACKWARD:
                    held[device] -= sizes[0, stage]
                    if kinds > WEIGHT:
                        held[device] += sizes[1, stage]
                else:
                    held[device] -= sizes[1, stage]
                if held[device] > room[device]:
                    return NEVER
            start[kind, stage, microbatch] = now
            microbatch_at[device, reached[device]] = microbatch
            position[kind, stage, microbatch] = reached[device]
            sequence[total] = (kind * stages + stage) * microbatches + microbatch
            total += 1
            done[kind, stage] = microbatch + 1
            reached[device] += 1
            free[device] = now + duration[kind, stage]
            remaining[device] -= duration[kind, stage]
            makespan = max(makespan, free[device])
            # Whoever waits for just this op goes on.
            after = -1
            if kind == FORWARD and stage + 1 < stages:
                after = stage + 1
            elif kind == BACKWARD and stage > 0:
                after = stage - 1
            if after >= 0:
                other = place[after]
                if (
                    other != device
                    and reached[other] < length[other]
                    and tokens[other, reached[other]] == (after << KIND_BITS) + kind
                    and done[kind, after] == microbatch
                ):
                    waiting[top] = other
                    top += 1
    return NEVER if total < left else makespan


@compiled
def critical_path(
    stages: int,
    devices: int,
    span: bool,
    makespan: int,
    duration: Ints,
    place: Ints,
    entry: Ints,
    tokens: Ints,
    length: Ints,
    start: Ints,
    microbatch_at: Ints,
    position: Ints,
    path: Ints,
) -> int:
    """Fill `path` with a critical path as (device, place) columns, the last op first; return its length.

    Where ops are tied, one at random. For the span, the path ends with the last op of a random device.
    """
    device = np.random.randint(0, devices)
    for _ in range(devices):
        token = tokens[device, length[device] - 1]
        kind, stage = token & KIND_MASK, token >> KIND_BITS
        if span or start[kind, stage, microbatch_at[device, length[device] - 1]] + duration[kind, stage] == makespan:
            break
        device = (device + 1) % devices
    here = length[device] - 1
    count = 0
    while True:
        path[0, count], path[1, count] = device, here
        count += 1
        token = tokens[device, here]
        kind, stage = token & KIND_MASK, token >> KIND_BITS
        microbatch = microbatch_at[device, here]
        now = start[kind, stage, microbatch]
        # What it waited for: the op before it on its device, or one that it needs.
        behind = False
        if here > 0:
            token = tokens[device, here - 1]
            other_kind, other = token & KIND_MASK, token >> KIND_BITS
            ends = start[other_kind, other, microbatch_at[device, here - 1]] + duration[other_kind, other]
            behind = ends == now
        needed_kind, needed, transfer = -1, stage, 0
        if kind == FORWARD:
            if stage > 0:
                needed_kind, needed, transfer = FORWARD, stage - 1, entry[stage]
        elif kind == BACKWARD:
            if stage + 1 < stages:
                needed_kind, needed, transfer = BACKWARD, stage + 1, entry[stage + 1]
            else:
                needed_kind = FORWARD
        else:
            needed_kind = BACKWARD
        waited = (
            needed_kind >= 0
            and start[needed_kind, needed, microbatch] + duration[needed_kind, needed] + transfer == now
        )
        if behind and (not waited or np.random.random() < 0.5):
            here -= 1
        elif waited:
            device, here = place[needed], position[needed_kind, needed, microbatch]
        else:
            return count


@compiled
def _shift(tokens: Ints, device: int, here: int, there: int) -> None:
    """Move a device's token from one place to another."""
    token = tokens[device, here]
    step = 1 if here < there else -1
    while here != there:
        tokens[device, here] = tokens[device, here + step]
        here += step
    tokens[device, there] = token


@compiled
def _move_cut(stages: int, cuts: Ints) -> bool:
    """Move a cut by one unit, or a unit from one stage to another with the cuts between; False where neither fits."""
    if np.random.random() < 0.5:
        cut = np.random.randint(1, stages)
        target = cuts[cut] + (1 if np.random.random() < 0.5 else -1)
        if target <= cuts[cut - 1] or target >= cuts[cut + 1]:
            return False
        cuts[cut] = target
        return True
    one, other = np.random.randint(0, stages), np.random.randint(0, stages)
    if one == other or cuts[one + 1] - cuts[one] < 2:
        return False
    for cut in range(min(one, other) + 1, max(one, other) + 1):
        cuts[cut] += -1 if one < other else 1
    return True


@compiled
def anneal_orders(
    shape: Ints,
    edges: Ints,
    prefix: Ints,
    link_class: Ints,
    delays: Ints,
    capacity: Ints,
    groups: Ints,
    stages: int,
    cuts: Ints,
    place: Ints,
    tokens: Ints,
    length: Ints,
    best_cuts: Ints,
    best_tokens: Ints,
    best_start: Ints,
    moves: int,
    hot: float,
    cold: float,
    target: int,
    seed: int,
) -> int:
    """Anneal orders and cuts in place; return the best value seen in ticks, and fill in what has it.

    `NEVER` where the orders cannot be run from the start. Parameters are those of `run_orders` and
    `octocp.search.moves.anneal`; `best_start` is [kind, stage, microbatch], in ticks.
    """
    np.random.seed(seed)
    devices, kinds, microbatches = shape[S_DEVICES], shape[S_KINDS], shape[S_MICROBATCHES]
    limited, span = shape[S_LIMITED] == 1, shape[S_SPAN] == 1
    ops = kinds * stages * microbatches
    duration = np.zeros((3, stages), dtype=np.int64)
    entry = np.zeros(stages + 1, dtype=np.int64)
    sizes = np.zeros((2, stages), dtype=np.int64)
    room = np.zeros(devices, dtype=np.int64)
    scratch = np.zeros((SCRATCH_ROWS, max(stages, devices + 1) + 1), dtype=np.int64)
    start = np.zeros((3, stages, microbatches), dtype=np.int64)
    late = np.zeros((3, stages, microbatches), dtype=np.int64)
    position = np.zeros((3, stages, microbatches), dtype=np.int64)
    microbatch_at = np.zeros_like(tokens)
    sequence = np.zeros(ops, dtype=np.int64)
    done = np.zeros((3, stages), dtype=np.int64)
    waiting = np.zeros(devices + ops + 1, dtype=np.int64)
    path = np.zeros((2, ops + 1), dtype=np.int64)
    old_cuts = cuts.copy()
    value, best, count = NEVER, NEVER, 0
    for step in range(-1, moves):  # the first is no move: it evaluates what is there
        if best <= target:
            break
        device, here, there, cut = -1, 0, 0, False
        if step >= 0:
            draw = np.random.randint(0, 100)
            if draw >= 85 and shape[S_FREE_CUTS] and stages > 1:
                cut = True
                for index in range(stages + 1):
                    old_cuts[index] = cuts[index]
                if not _move_cut(stages, cuts):
                    continue
            else:
                if draw < 75:
                    column = np.random.randint(0, count)
                    device, here = path[0, column], path[1, column]
                else:
                    device = np.random.randint(0, devices)
                    here = np.random.randint(0, length[device])
                if draw < 45:
                    there = here - 1
                else:
                    far = 1 + int(FURTHEST * np.random.random() ** 2)
                    there = here + (far if np.random.random() < 0.5 else -far)
                if there < 0 or there >= length[device] or tokens[device, here] == tokens[device, there]:
                    continue
                _shift(tokens, device, here, there)
        limit = NEVER - 1
        if step >= 0:
            # Accept up to a threshold drawn beforehand, so that a worse schedule is given up early.
            temperature = hot * (cold / hot) ** (step / moves)
            limit = int(value - value * temperature * np.log(np.random.random() + 1e-12))
        reached, makespan = NEVER, 0
        if (step >= 0 and not cut) or measure(
            shape, edges, prefix, link_class, delays, capacity, groups, stages, cuts, place, duration, entry, sizes,
            room, scratch[4],
        ):  # fmt: skip
            makespan = run_orders(
                stages, microbatches, kinds, devices, duration, place, entry, sizes, room, limited, tokens, length,
                NEVER - 1 if span else limit, start, microbatch_at, position, sequence, done, waiting, scratch,
            )  # fmt: skip
            reached = makespan
            if span and makespan < NEVER:
                late[:] = start
                reached = latest_span(
                    stages, microbatches, kinds, devices, duration, place, entry, late, sequence, scratch
                )
        if reached <= limit:
            value = reached
            count = critical_path(
                stages, devices, span, makespan, duration, place, entry, tokens, length, start, microbatch_at, position,
                path,
            )  # fmt: skip
            if value < best:
                best = value
                best_cuts[:] = cuts
                best_tokens[:] = tokens
                best_start[:] = late if span else start
        elif step < 0:
            return NEVER
        elif cut:
            for index in range(stages + 1):
                cuts[index] = old_cuts[index]
            measure(
                shape, edges, prefix, link_class, delays, capacity, groups, stages, cuts, place, duration, entry, sizes,
                room, scratch[4],
            )  # fmt: skip
        else:
            _shift(tokens, device, there, here)
    return best
