"""The fast evaluator: one greedy list schedule, compiled, for the local search to score.

Each device, whenever it is free, runs the ready op of the highest priority; microbatches run in order within
each (stage, kind). Two `patience` settings let it wait for a better op that is known to arrive soon, and a stage may
hold back its F while it has so many microbatches in flight.
Memory is respected by admission: an F starts only if its activation fits, if what remains free still admits the
device's oldest unfinished microbatch, and if the next one will find room once that is through. So the oldest
microbatch of all can always go on, and no deadlock arises (docs/formulation.md). That is more than a plan needs: a rule
leaves out the last condition, or the last two, and a schedule that then comes to rest is none. B and W need nothing
more while no weight part exceeds its activation; where one does, the caller checks the finished schedule.

Everything here is plain loops over integer arrays, for numba; `octocp.search.twin` is the readable twin.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from octocp.search.compiled import compiled

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NEVER = 1 << 60
FORWARD, BACKWARD, WEIGHT = 0, 1, 2

# Indices into a rule vector: how long a W, and an F, waits for an op that outranks it, as a share of its own length;
# what each microbatch costs an F, and a B, in rank; what alternation of F and B earns; how an F is admitted to memory:
# so that the next microbatch finds room too, so that the oldest does, or if it fits itself.
WAIT_FOR_ANY, WAIT_FOR_BACKWARD, AGE_FORWARD, AGE_BACKWARD, ALTERNATE, ADMISSION = 0, 1, 2, 3, 4, 5
RULES = 6
NEXT_FITS, OLDEST_FITS, FITS = 0.0, 1.0, 2.0
# The row of `priority` that says how many microbatches a stage may have in flight; 0 is as many as come.
IN_FLIGHT = 3
PRIORITY_ROWS = 4
SCRATCH_ROWS = 17


@compiled
def simulate(
    stages: int,
    microbatches: int,
    kinds: int,
    devices: int,
    duration: Ints,
    place: Ints,
    entry: Ints,
    activation: Ints,
    weight_activation: Ints,
    room: Ints,
    limited: bool,
    priority: Floats,
    rules: Floats,
    give_up: int,
    start: Ints,
    scratch: Ints,
    sequence: Ints,
) -> int:
    """Run the greedy list schedule and return its makespan in ticks, or `NEVER`.

    Parameters
    ----------
    duration : int array [kind, stage]
        Ticks.
    entry : int array [stage]
        Ticks that a transfer into a stage (or its gradient out of it) takes.
    room : int array [device]
        Memory units left for activations.
    priority : float array [kind, stage]
        Larger runs first; the row `IN_FLIGHT` limits the microbatches in flight.
    give_up : int
        Return `NEVER` as soon as it is clear that some op ends after it.
    start : int array [kind, stage, microbatch]
        Filled with the starts.
    sequence : int array [ops]
        Filled with the ops, numbered kind-major, in the order of their starts.
    """
    # scratch rows: 0 free, 1 next time, 2 held memory, 3 lowest stage, (by device); chains by device from row 4 on.
    free, upcoming, held, lowest = scratch[0], scratch[1], scratch[2], scratch[3]
    count = scratch[4]
    ready = scratch[5:8]
    done = scratch[8:11]
    member = scratch[11]
    first_member = scratch[12]
    last = scratch[13]
    # What a device still has to run; what must follow an F, and a B, of each stage.
    remaining, after_forward, after_backward = scratch[14], scratch[15], scratch[16]
    for device in range(devices):
        remaining[device] = 0
        free[device] = 0
        held[device] = 0
        last[device] = WEIGHT
        lowest[device] = -1
        count[device] = 0
    chain = 0
    if kinds == 3:
        chain = duration[2, 0]
    for stage in range(stages):
        chain += entry[stage]
        after_backward[stage] = chain
        chain += duration[1, stage]
        for kind in range(kinds):
            remaining[place[stage]] += microbatches * duration[kind, stage]
    for stage in range(stages - 1, -1, -1):
        after_forward[stage] = chain
        chain += duration[0, stage] + entry[stage]
    for stage in range(stages):
        count[place[stage]] += 1
        if lowest[place[stage]] < 0:
            lowest[place[stage]] = stage
        for kind in range(3):
            ready[kind, stage] = NEVER
            done[kind, stage] = 0
    first_member[0] = 0
    for device in range(devices):
        first_member[device + 1] = first_member[device] + count[device]
        count[device] = 0
    for stage in range(stages):
        device = place[stage]
        member[first_member[device] + count[device]] = stage
        count[device] += 1
    ready[0, 0] = 0
    for device in range(devices):
        upcoming[device] = NEVER
    upcoming[place[0]] = 0
    left = kinds * stages * microbatches
    total = 0
    makespan = 0
    while left > 0:
        device = 0
        now = upcoming[0]
        for other in range(1, devices):
            if upcoming[other] < now:
                now = upcoming[other]
                device = other
        if now >= NEVER:
            return NEVER
        # The ready op of the highest priority, and the best one that is only on its way.
        best_kind, best_stage, best_key, earliest = -1, -1, -1e300, NEVER
        for position in range(first_member[device], first_member[device + 1]):
            stage = member[position]
            for kind in range(kinds):
                when = ready[kind, stage]
                if when > now:
                    earliest = min(earliest, when)
                elif kind == FORWARD and 0.0 < priority[IN_FLIGHT, stage] <= done[0, stage] - done[1, stage]:
                    continue
                else:
                    key = priority[kind, stage]
                    if kind == FORWARD:
                        key -= rules[AGE_FORWARD] * done[kind, stage]
                    elif kind == BACKWARD:
                        key -= rules[AGE_BACKWARD] * done[kind, stage]
                    if kind + last[device] == 1:
                        key += rules[ALTERNATE]
                    if key > best_key:
                        if (
                            kind == FORWARD
                            and limited
                            and not _admits(
                                stage,
                                done[0, stage],
                                device,
                                lowest,
                                member,
                                first_member,
                                done,
                                activation,
                                held,
                                room,
                                rules[ADMISSION],
                            )
                        ):
                            continue
                        best_kind, best_stage, best_key = kind, stage, key
        if best_kind < 0:
            upcoming[device] = earliest
            continue
        kind, stage = best_kind, best_stage
        ticks = duration[kind, stage]
        if kind != BACKWARD:
            # Wait for an op that outranks this one and arrives within the patience.
            limit = now + int(ticks * rules[WAIT_FOR_BACKWARD if kind == FORWARD else WAIT_FOR_ANY])
            arrival = NEVER
            if limit > now:
                for position in range(first_member[device], first_member[device + 1]):
                    other_stage = member[position]
                    for other_kind in range(2):
                        when = ready[other_kind, other_stage]
                        if (
                            now < when < limit
                            and when < arrival
                            and priority[other_kind, other_stage] > priority[kind, stage]
                        ):
                            if other_kind == FORWARD and (
                                kind == FORWARD
                                or 0.0 < priority[IN_FLIGHT, other_stage] <= done[0, other_stage] - done[1, other_stage]
                            ):
                                continue
                            if (
                                other_kind == FORWARD
                                and limited
                                and not _admits(
                                    other_stage,
                                    done[0, other_stage],
                                    device,
                                    lowest,
                                    member,
                                    first_member,
                                    done,
                                    activation,
                                    held,
                                    room,
                                    rules[ADMISSION],
                                )
                            ):
                                continue
                            arrival = when
            if arrival < NEVER:
                free[device] = arrival
                upcoming[device] = arrival
                continue
        microbatch = done[kind, stage]
        end = now + ticks
        if now + remaining[device] > give_up:
            return NEVER
        if kind == FORWARD:
            if end + after_forward[stage] > give_up:
                return NEVER
        elif kind == BACKWARD and end + after_backward[stage] > give_up:
            return NEVER
        remaining[device] -= ticks
        start[kind, stage, microbatch] = now
        sequence[total] = (kind * stages + stage) * microbatches + microbatch
        total += 1
        left -= 1
        makespan = max(makespan, end)
        free[device] = end
        upcoming[device] = end
        if kind != WEIGHT:
            last[device] = kind
        done[kind, stage] = microbatch + 1
        following = microbatch + 1
        other, when = -1, NEVER
        if kind == FORWARD:
            held[device] += activation[stage]
            ready[0, stage] = NEVER
            if following < microbatches:
                if stage == 0:
                    ready[0, stage] = 0
                elif done[0, stage - 1] > following:
                    ready[0, stage] = start[0, stage - 1, following] + duration[0, stage - 1] + entry[stage]
            if stage + 1 < stages:
                if done[0, stage + 1] == microbatch:
                    when = end + entry[stage + 1]
                    ready[0, stage + 1] = when
                    other = place[stage + 1]
            elif done[1, stage] == microbatch:
                ready[1, stage] = end
        elif kind == BACKWARD:
            held[device] -= activation[stage]
            if kinds == 3:
                held[device] += weight_activation[stage]
                if done[2, stage] == microbatch:
                    ready[2, stage] = end
            ready[1, stage] = NEVER
            if following < microbatches:
                if stage == stages - 1:
                    if done[0, stage] > following:
                        ready[1, stage] = start[0, stage, following] + duration[0, stage]
                elif done[1, stage + 1] > following:
                    ready[1, stage] = start[1, stage + 1, following] + duration[1, stage + 1] + entry[stage + 1]
            if stage > 0 and done[1, stage - 1] == microbatch:
                when = end + entry[stage]
                ready[1, stage - 1] = when
                other = place[stage - 1]
        else:
            held[device] -= weight_activation[stage]
            ready[2, stage] = NEVER
            if following < microbatches and done[1, stage] > following:
                ready[2, stage] = start[1, stage, following] + duration[1, stage]
        if other >= 0:
            upcoming[other] = min(upcoming[other], max(free[other], when))
    return makespan


@compiled
def _admits(
    stage: int,
    microbatch: int,
    device: int,
    lowest: Ints,
    member: Ints,
    first_member: Ints,
    done: Ints,
    activation: Ints,
    held: Ints,
    room: Ints,
    admission: float,
) -> bool:
    """Whether an F fits beside what is held and, as the rule has it, what older microbatches still need."""
    need = held[device] + activation[stage]
    if admission == FITS:
        return bool(need <= room[device])
    oldest = done[1, lowest[device]]
    for position in range(first_member[device], first_member[device + 1]):
        other = member[position]
        if done[0, other] <= oldest and not (other == stage and microbatch == oldest):
            need += activation[other]
    if need > room[device]:
        return False
    if microbatch <= oldest + 1 or admission == OLDEST_FITS:
        return True
    # Once the oldest is through, the next one must find room too, beside the younger ones begun by then.
    later = 0
    for position in range(first_member[device], first_member[device + 1]):
        other = member[position]
        begun = done[0, other] + (1 if other == stage else 0)
        later += activation[other] * (1 + max(0, begun - max(oldest + 2, done[1, other])))
    return bool(later <= room[device])


@compiled
def latest_span(
    stages: int,
    microbatches: int,
    kinds: int,
    devices: int,
    duration: Ints,
    place: Ints,
    entry: Ints,
    start: Ints,
    sequence: Ints,
    scratch: Ints,
) -> int:
    """Return the span when every op runs as late as its device's last end allows, for a schedule by `simulate`.

    One pass backwards over the sequence; `start` is overwritten with the late starts.
    """
    last_end, following = scratch[0], scratch[1]
    for device in range(devices):
        last_end[device] = -1
        following[device] = -1
    span = 0
    for position in range(kinds * stages * microbatches - 1, -1, -1):
        number = sequence[position]
        microbatch = number % microbatches
        stage = number // microbatches % stages
        kind = number // microbatches // stages
        device = place[stage]
        ticks = duration[kind, stage]
        end = NEVER
        if last_end[device] < 0:
            last_end[device] = start[kind, stage, microbatch] + ticks
            end = last_end[device]
        else:
            end = following[device]
        if kind == FORWARD:
            if stage + 1 < stages:
                end = min(end, start[0, stage + 1, microbatch] - entry[stage + 1])
            end = min(end, start[1, stage, microbatch])
        elif kind == BACKWARD:
            if stage > 0:
                end = min(end, start[1, stage - 1, microbatch] - entry[stage])
            if kinds == 3:
                end = min(end, start[2, stage, microbatch])
        start[kind, stage, microbatch] = end - ticks
        following[device] = end - ticks
        span = max(span, last_end[device] - following[device])
    return span


def new_scratch(stages: int, devices: int) -> Ints:
    """Return working space for `simulate`."""
    return np.zeros((SCRATCH_ROWS, max(stages, devices + 1) + 1), dtype=np.int64)


__all__: list[Any] = ["NEVER", "RULES", "latest_span", "new_scratch", "simulate"]
