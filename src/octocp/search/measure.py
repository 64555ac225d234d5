"""What a layout comes to in numbers: the durations, transfers and memory of its stages; compiled."""

from __future__ import annotations

from octocp.search.compiled import compiled
from octocp.search.evaluator import Ints

# Indices into `shape`: the constants of a problem.
(
    S_UNITS,
    S_DEVICES,
    S_MICROBATCHES,
    S_KINDS,
    S_LEAST,
    S_MOST,
    S_HELD,
    S_FREE_CUTS,
    S_FAMILY,
    S_LIMITED,
    S_SPAN,
) = range(11)
SHAPE = 11


@compiled
def measure(
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
    duration: Ints,
    entry: Ints,
    sizes: Ints,
    room: Ints,
    count: Ints,
) -> bool:
    """Fill in a layout's numbers; return whether it keeps the instance's rules and one microbatch fits.

    Parameters
    ----------
    shape : int array
        The constants of the problem, by the indices above.
    edges : int array
        Numerator and addend of a stage's ticks and their common denominator.
    prefix : int array [row, unit edge]
        Prefix sums of F, B, W ticks, static, activation, weight activation.
    cuts : int array
        Stage bounds in units.
    duration, entry, sizes, room : int arrays
        Filled, as `simulate` reads them; sizes are activations and weight activations by stage.
    count : int array [device]
        Working space.
    """
    devices, kinds = shape[S_DEVICES], shape[S_KINDS]
    for device in range(devices):
        room[device] = capacity[device]
        count[device] = 0
    for stage in range(stages):
        count[place[stage]] += 1
    for device in range(devices):
        if count[device] == 0 or count[device] > shape[S_HELD]:
            return False
    for row in range(groups.shape[0]):
        home = -1
        for column in range(groups.shape[1]):
            unit = groups[row, column]
            if unit < 0:
                break
            stage = 0
            while cuts[stage + 1] <= unit:
                stage += 1
            if home < 0:
                home = place[stage]
            elif home != place[stage]:
                return False
    for stage in range(stages):
        begin, end = cuts[stage], cuts[stage + 1]
        for kind in range(kinds):
            exact = (prefix[kind, end] - prefix[kind, begin]) * edges[0] + edges[1]
            duration[kind, stage] = -((-exact) // edges[2])
        if stage > 0:
            entry[stage] = delays[link_class[place[stage - 1], place[stage]], begin]
        else:
            entry[stage] = 0
        if shape[S_LIMITED]:
            sizes[0, stage] = prefix[4, end] - prefix[4, begin]
            sizes[1, stage] = prefix[5, end] - prefix[5, begin]
            room[place[stage]] -= prefix[3, end] - prefix[3, begin]
    if shape[S_LIMITED]:
        for device in range(devices):
            need = 0
            for stage in range(stages):
                if place[stage] == device:
                    need += sizes[0, stage]
            if need > room[device]:
                return False
    return True
