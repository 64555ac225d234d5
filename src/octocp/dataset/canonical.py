"""One form for all instances that are the same problem: what duplicates are told by.

Two instances are the same where a plan of the one, its devices renumbered, is a plan of the other that takes as long
(or a fixed multiple): names, descriptions and units do not count, nor do layers that cannot be cut apart, limits that
limit nothing, sizes without any limit, and which of several interchangeable devices is which.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import MISSING, fields
from hashlib import sha256
from itertools import pairwise, permutations
from math import gcd
from typing import Any

from octocp.problem import Problem

# Up to here all numberings of unequal devices are tried; beyond, devices are sorted by what they and their links are
# like, which may tell two apart that are the same.
MOST_PERMUTED = 6

_KNOWN = {
    *("name", "objective", "split", "layer_ticks", "scale", "overhead", "delay_ticks", "link_class", "static"),
    *("activation", "weight_activation", "capacity", "memory_unit_gb", "limit_gb", "min_stages", "max_stages"),
    *("max_per_device", "partition", "family", "placement", "cuttable", "colocate", "device_class", "device_names"),
}


def canonical_hash(problem: Problem) -> str:
    """Return 32 hexadecimal digits that are equal for equal problems."""
    text = json.dumps(canonical(problem), sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()[:32]


def canonical(problem: Problem) -> dict[str, Any]:
    """Return the problem's canonical form as plain data."""
    units = problem.units if problem.fixed_bounds is None else tuple(pairwise(problem.fixed_bounds))
    ticks, overhead, delays = _times(problem, units)
    sizes, capacity = _memory(problem, units)
    scales = problem.scale if any(scale != 1 for row in problem.scale for scale in row) else None
    devices = [
        [cap, [] if scales is None else [str(scale) for scale in scales[device]]] for device, cap in enumerate(capacity)
    ]
    between = [
        [delays[kind] if one != other else [] for other, kind in enumerate(row)]
        for one, row in enumerate(problem.link_class)
    ]
    order = _numbering(problem, devices, between)
    family, placement = _placement(problem, order, devices, between)
    return {
        "objective": problem.objective,
        "split": problem.split,
        "microbatches": problem.n_microbatches,
        "stages": [problem.min_stages, problem.max_stages, problem.max_per_device],
        "cuts": "free" if problem.partition is None else "given",
        "ticks": ticks,
        "overhead": overhead,
        "sizes": sizes,
        "devices": [devices[device] for device in order],
        "between": [[between[one][other] for other in order] for one in order],
        "family": family,
        "placement": placement,
        "colocate": _groups(problem, units),
        **_unknown(problem),
    }


def _times(problem: Problem, units: Sequence[tuple[int, int]]) -> tuple[list[Any], str, list[Any]]:
    """Return ticks by unit and kind, the overhead, and per link class the delays where units meet, without a factor."""
    ticks = [[prefix[end] - prefix[begin] for prefix in problem.prefix_ticks] for begin, end in units]
    alike = problem.uniform_microbatches
    meetings = [begin for begin, _ in units[1:]]
    delays = [
        [[row[place] for place in meetings] for row in (rows[:1] if alike else rows)] for rows in problem.delay_ticks
    ]
    factor = 1
    if problem.overhead.denominator == 1 and all(scale == 1 for row in problem.scale for scale in row):
        factor = (
            gcd(int(problem.overhead), *(t for row in ticks for t in row), *(t for c in delays for r in c for t in r))
            or 1
        )
    return (
        [[t // factor for t in row] for row in ticks],
        str(problem.overhead / factor),
        [[[t // factor for t in row] for row in rows] for rows in delays],
    )


def _memory(problem: Problem, units: Sequence[tuple[int, int]]) -> tuple[list[Any], list[int | None]]:
    """Return sizes by unit, and capacities, both without a common factor; none where no limit limits anything."""
    microbatches = range(1 if problem.uniform_microbatches else problem.n_microbatches)
    sizes = [
        [list(problem.stage_memory(begin, end, microbatch)) for microbatch in microbatches] for begin, end in units
    ]
    times = problem.n_microbatches if problem.uniform_microbatches else 1
    everything = sum(rows[0][0] + times * sum(max(row[1:]) for row in rows) for rows in sizes)
    capacity = [None if cap is None or cap >= everything else cap for cap in problem.capacity]
    if all(cap is None for cap in capacity):
        return [], capacity
    factor = gcd(*(size for rows in sizes for row in rows for size in row)) or 1
    shrunk = [[[size // factor for size in row] for row in rows] for rows in sizes]
    return shrunk, [None if cap is None else cap // factor for cap in capacity]


def _groups(problem: Problem, units: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return the units that share a device, groups that meet joined."""
    if problem.n_devices == 1:
        return []
    unit_of = {layer: number for number, (begin, end) in enumerate(units) for layer in range(begin, end)}
    groups: list[set[int]] = []
    for layers in problem.colocate:
        group = {unit_of[layer] for layer in layers}
        for other in [other for other in groups if other & group]:
            groups.remove(other)
            group |= other
        groups.append(group)
    return sorted(sorted(group) for group in groups if len(group) > 1)


def _numbering(problem: Problem, devices: Sequence[Any], between: Sequence[Sequence[Any]]) -> Sequence[int]:
    """Return the devices in canonical order: as the stages use them, or so that what they are like reads smallest."""
    if problem.family == "fixed":
        return list(dict.fromkeys(problem.placement or ()))
    numbers = range(problem.n_devices)
    if problem.family != "free" or len(set(problem.device_class)) == 1:
        return numbers

    def like(order: Sequence[int]) -> str:
        return json.dumps([[devices[one], [between[one][other] for other in order]] for one in order])

    if len(numbers) <= MOST_PERMUTED:
        return min(permutations(numbers), key=like)
    return sorted(numbers, key=lambda one: json.dumps([devices[one], sorted(map(json.dumps, between[one]))]))


def _placement(
    problem: Problem, order: Sequence[int], devices: Sequence[Any], between: Sequence[Sequence[Any]]
) -> tuple[str, list[int]]:
    """Return the placement family and a fixed placement; with one stage per device, all that say so are one."""
    placement = [list(order).index(device) for device in problem.placement or ()]
    single = problem.max_stages == problem.n_devices
    alike = all(device == devices[0] for device in devices)
    links = [between[one][other] for one in order for other in order if one != other]
    alike = alike and all(link == links[0] for link in links)
    if single and (problem.family in ("linear", "interleaved", "wave") or alike):
        return "linear", []
    if single and placement == list(range(problem.n_devices)):
        return "linear", []
    return problem.family, placement


def _unknown(problem: Problem) -> dict[str, str]:
    """Return what this module does not know of, where it is not what it is by default: then it tells problems apart."""
    found = {}
    for field in fields(problem):
        value = getattr(problem, field.name)
        if field.name not in _KNOWN and (field.default is MISSING or value != field.default):
            found[field.name] = repr(value)
    return found
