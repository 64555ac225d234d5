"""Local search over cuts, placement, priorities and waiting rules, compiled around the evaluator.

A state is: stages, cuts in units, device of each stage, priority of each (kind, stage), waiting rules. `anneal` runs a
number of moves from a state at falling temperature and leaves the best state seen in place. Moves keep every
rule of the instance: indivisible runs, number of stages, stages per device, placement families, colocation, and
static memory; activation memory is kept by the evaluator's admission.
"""

from __future__ import annotations

import numpy as np

from octocp.search.compiled import compiled
from octocp.search.evaluator import (
    ADMISSION,
    ALTERNATE,
    IN_FLIGHT,
    NEVER,
    PRIORITY_ROWS,
    SCRATCH_ROWS,
    Floats,
    Ints,
    latest_span,
    simulate,
)
from octocp.search.measure import (
    S_DEVICES,
    S_FAMILY,
    S_FREE_CUTS,
    S_KINDS,
    S_LEAST,
    S_LIMITED,
    S_MICROBATCHES,
    S_MOST,
    S_SPAN,
    measure,
)

FREE, CYCLIC, WAVE, FIXED = 0, 1, 2, 3
# What `score` returns for a state that need not be simulated: like NEVER, and cheaper to learn.
IMPOSSIBLE = NEVER + 1
# What such a state costs in an annealing run, as a share of one that is simulated.
CHEAP = 0.1


@compiled
def family_device(family: int, stage: int, devices: int) -> int:
    """Return the device of a stage in the cyclic or the wave family."""
    block, rest = stage // devices, stage % devices
    return devices - 1 - rest if family == WAVE and block % 2 == 1 else rest


@compiled
def score(
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
    priority: Floats,
    rules: Floats,
    give_up: int,
    duration: Ints,
    entry: Ints,
    sizes: Ints,
    room: Ints,
    start: Ints,
    sequence: Ints,
    scratch: Ints,
) -> int:
    """Return the objective of a state in ticks, or `IMPOSSIBLE` where it breaks a rule.

    `prefix` rows: F, B, W ticks (scaled stage sums come from `edges`), static, activation, weight activation.
    """
    devices, kinds = shape[S_DEVICES], shape[S_KINDS]
    if not measure(
        shape, edges, prefix, link_class, delays, capacity, groups, stages, cuts, place, duration, entry, sizes, room,
        scratch[4],
    ):  # fmt: skip
        return IMPOSSIBLE
    if _too_long(shape, stages, place, duration, entry, give_up, scratch[4]):
        return IMPOSSIBLE
    value = simulate(
        stages,
        shape[S_MICROBATCHES],
        kinds,
        devices,
        duration,
        place,
        entry,
        sizes[0],
        sizes[1],
        room,
        shape[S_LIMITED] == 1,
        priority,
        rules,
        NEVER if shape[S_SPAN] else give_up,
        start,
        scratch,
        sequence,
    )
    if value < NEVER and shape[S_SPAN]:
        value = latest_span(
            stages, shape[S_MICROBATCHES], kinds, devices, duration, place, entry, start, sequence, scratch
        )
    return value


@compiled
def _too_long(shape: Ints, stages: int, place: Ints, duration: Ints, entry: Ints, give_up: int, load: Ints) -> bool:
    """Whether the layout alone shows that no order stays within `give_up`.

    A device waits for the forwards before its first stage and then has its load to do; and one stage's F and B all
    lie between the first microbatch's way up to it and the last one's way down from it (semantics, facts 2 and 3).
    For the span, only the load counts.
    """
    devices, kinds, microbatches = shape[S_DEVICES], shape[S_KINDS], shape[S_MICROBATCHES]
    for device in range(devices):
        load[device] = -1
    head, tail = 0, 0
    if kinds == 3:
        tail = duration[2, 0]
    for stage in range(stages):
        head += entry[stage]
        tail += entry[stage]
        device = place[stage]
        both = microbatches * (duration[0, stage] + duration[1, stage])
        if load[device] < 0:
            load[device] = 0 if shape[S_SPAN] else head
        load[device] += both
        if kinds == 3:
            load[device] += microbatches * duration[2, stage]
        if load[device] > give_up or (not shape[S_SPAN] and head + both + tail > give_up):
            return True
        head += duration[0, stage]
        tail += duration[1, stage]
    return False


@compiled
def mutate(shape: Ints, stages: int, cuts: Ints, place: Ints, priority: Floats, rules: Floats) -> int:
    """Change a state at random, in place; return the new number of stages, or -1 where the move does not apply."""
    devices, kinds = shape[S_DEVICES], shape[S_KINDS]
    move = np.random.randint(0, 100)
    if move < 30 and shape[S_FREE_CUTS] and stages > 1:  # move one cut
        cut = np.random.randint(1, stages)
        step = np.random.randint(1, 3) if np.random.random() < 0.3 else 1
        if np.random.random() < 0.5:
            step = -step
        target = cuts[cut] + step
        if target <= cuts[cut - 1] or target >= cuts[cut + 1]:
            return -1
        cuts[cut] = target
    elif move < 50 and shape[S_FREE_CUTS] and stages > 2:  # one unit from one stage to another, cuts between follow
        one, other = np.random.randint(0, stages), np.random.randint(0, stages)
        if one == other:
            return -1
        if cuts[one + 1] - cuts[one] < 2:
            return -1
        if one < other:
            for cut in range(one + 1, other + 1):
                cuts[cut] -= 1
        else:
            for cut in range(other + 1, one + 1):
                cuts[cut] += 1
    elif move < 62 and shape[S_FAMILY] == FREE and stages > 1:  # swap the devices of two stages
        one, other = np.random.randint(0, stages), np.random.randint(0, stages)
        if place[one] == place[other]:
            return -1
        place[one], place[other] = place[other], place[one]
    elif move < 68 and shape[S_FAMILY] == FREE and devices > 1:  # move a stage to another device
        stage, device = np.random.randint(0, stages), np.random.randint(0, devices)
        if place[stage] == device:
            return -1
        place[stage] = device
    elif move < 72 and shape[S_LEAST] < shape[S_MOST] and shape[S_FREE_CUTS]:  # split a stage or merge two
        if np.random.random() < 0.5:
            if stages >= shape[S_MOST]:
                return -1
            stage = np.random.randint(0, stages)
            if cuts[stage + 1] - cuts[stage] < 2:
                return -1
            middle = np.random.randint(cuts[stage] + 1, cuts[stage + 1])
            for cut in range(stages, stage, -1):
                cuts[cut + 1] = cuts[cut]
            cuts[stage + 1] = middle
            for later in range(stages - 1, stage, -1):
                place[later + 1] = place[later]
                for kind in range(PRIORITY_ROWS):
                    priority[kind, later + 1] = priority[kind, later]
            for kind in range(PRIORITY_ROWS):
                priority[kind, stage + 1] = priority[kind, stage]
            place[stage + 1] = np.random.randint(0, devices)
            stages += 1
        else:
            if stages <= shape[S_LEAST] or stages < 2:
                return -1
            stage = np.random.randint(0, stages - 1)
            if np.random.random() < 0.5:
                place[stage] = place[stage + 1]
            for cut in range(stage + 1, stages):
                cuts[cut] = cuts[cut + 1]
            for later in range(stage + 1, stages - 1):
                place[later] = place[later + 1]
                for kind in range(PRIORITY_ROWS):
                    priority[kind, later] = priority[kind, later + 1]
            stages -= 1
        if shape[S_FAMILY] == CYCLIC or shape[S_FAMILY] == WAVE:
            for stage in range(stages):
                place[stage] = family_device(shape[S_FAMILY], stage, devices)
    elif move < 79 and shape[S_LIMITED]:  # change how many microbatches a stage may have in flight
        stage = np.random.randint(0, stages)
        most = priority[IN_FLIGHT, stage]
        if most > 0.0 and np.random.random() < 0.3:
            most = 0.0
        elif most == 0.0 or np.random.random() < 0.3:
            most = 1.0 + np.random.randint(0, shape[S_MICROBATCHES])
        else:
            most = max(1.0, most + (1.0 if np.random.random() < 0.5 else -1.0))
        priority[IN_FLIGHT, stage] = most
    elif move < 92:  # change priorities
        kind, stage = np.random.randint(0, kinds), np.random.randint(0, stages)
        if np.random.random() < 0.4:
            other_kind, other = np.random.randint(0, kinds), np.random.randint(0, stages)
            held = priority[kind, stage]
            priority[kind, stage] = priority[other_kind, other]
            priority[other_kind, other] = held
        else:
            priority[kind, stage] += np.random.normal(0.0, 0.4)
    else:  # change a rule
        rule = np.random.randint(0, rules.shape[0])
        if rule < 2:
            rules[rule] = 0.0 if np.random.random() < 0.4 else np.random.random()
        elif rule == ADMISSION:
            if not shape[S_LIMITED]:
                return -1
            rules[rule] = float(np.random.randint(0, 3))
        elif rule == ALTERNATE:
            rules[rule] = 0.0 if np.random.random() < 0.4 else 3.0 * np.random.random()
        else:
            rules[rule] = 0.0 if np.random.random() < 0.4 else np.random.normal(0.0, 0.3)
    return stages


@compiled
def copy_state(
    stages: int,
    cuts: Ints,
    place: Ints,
    priority: Floats,
    rules: Floats,
    to_cuts: Ints,
    to_place: Ints,
    to_priority: Floats,
    to_rules: Floats,
) -> None:
    """Copy a state; plain loops, because array assignment costs seconds to compile."""
    for stage in range(stages):
        to_cuts[stage] = cuts[stage]
        to_place[stage] = place[stage]
        for kind in range(PRIORITY_ROWS):
            to_priority[kind, stage] = priority[kind, stage]
    to_cuts[stages] = cuts[stages]
    for rule in range(rules.shape[0]):
        to_rules[rule] = rules[rule]


@compiled
def anneal(
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
    priority: Floats,
    rules: Floats,
    best: int,
    best_stages: int,
    best_cuts: Ints,
    best_place: Ints,
    best_priority: Floats,
    best_rules: Floats,
    moves: int,
    hot: float,
    cold: float,
    target: int,
    seed: int,
) -> tuple[int, int, int, int]:
    """Anneal a state in place and keep the best one seen; return both, each as (value, stages).

    Parameters
    ----------
    best, best_stages, best_cuts, ... :
        The best state so far, its value `NEVER` where there is none; overwritten when a better one comes by.
    moves : int
        Moves to simulate; one that need not be simulated counts `CHEAP` of one.
    hot, cold : float
        Temperatures at the start and the end, as shares of the value.
    target : int
        Stop at this value.
    """
    np.random.seed(seed)
    most, devices, microbatches = shape[S_MOST], shape[S_DEVICES], shape[S_MICROBATCHES]
    duration = np.zeros((3, most), dtype=np.int64)
    entry = np.zeros(most + 1, dtype=np.int64)
    sizes = np.zeros((2, most), dtype=np.int64)
    room = np.zeros(devices, dtype=np.int64)
    start = np.zeros((3, most, microbatches), dtype=np.int64)
    sequence = np.zeros(3 * most * microbatches, dtype=np.int64)
    scratch = np.zeros((SCRATCH_ROWS, max(most, devices + 1) + 1), dtype=np.int64)
    new_cuts, new_place = np.zeros_like(cuts), np.zeros_like(place)
    new_priority, new_rules = np.zeros_like(priority), np.zeros_like(rules)
    value = score(
        shape, edges, prefix, link_class, delays, capacity, groups, stages, cuts, place, priority, rules, NEVER,
        duration, entry, sizes, room, start, sequence, scratch,
    )  # fmt: skip
    if value < best:
        best, best_stages = value, stages
        copy_state(
            stages, cuts, place, priority, rules, best_cuts, best_place, best_priority, best_rules
        )  # fmt: skip
    spent = 0.0
    while spent < moves and best > target:
        temperature = hot * (cold / hot) ** (spent / moves)
        spent += CHEAP
        copy_state(stages, cuts, place, priority, rules, new_cuts, new_place, new_priority, new_rules)
        trial = stages
        for _ in range(1 if np.random.random() < 0.7 else 2):
            changed = mutate(shape, trial, new_cuts, new_place, new_priority, new_rules)
            if changed < 0:
                trial = -1
                break
            trial = changed
        if trial < 0:
            continue
        # Accept up to a threshold drawn beforehand, so that a worse schedule is given up early.
        limit = NEVER - 1 if value >= NEVER else int(value - value * temperature * np.log(np.random.random() + 1e-12))
        reached = score(
            shape, edges, prefix, link_class, delays, capacity, groups, trial, new_cuts, new_place, new_priority,
            new_rules, limit, duration, entry, sizes, room, start, sequence, scratch,
        )  # fmt: skip
        if reached != IMPOSSIBLE:
            spent += 1.0 - CHEAP
        if reached <= limit:
            value, stages = reached, trial
            copy_state(trial, new_cuts, new_place, new_priority, new_rules, cuts, place, priority, rules)
            if reached < best:
                best, best_stages = reached, trial
                copy_state(
                    trial, cuts, place, priority, rules, best_cuts, best_place, best_priority, best_rules
                )  # fmt: skip
    return value, stages, best, best_stages
