"""The layouts that OctoPipe's tuner looks at: the most even partitions of each stage count, and placements for each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from octocp.problem import B, F, Problem, W, family_device
from octocp.schedule import Layout

# Entries of one step of the dynamic programme, at most; beyond that fewer partitions are kept.
MOST_ENTRIES = 200_000

Placement = tuple[int, ...]


class Loads:
    """What stages cost, to rank layouts without simulating them.

    Costs are floats: the mean over microbatches, without rounding. They decide nothing but what is tried first.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        microbatches = problem.n_microbatches
        self.scale = [float(sum(row)) / microbatches for row in problem.scale]
        self.overhead = float(problem.overhead)
        forward, backward, weight = problem.prefix_ticks
        self.forward, self.backward = forward, backward
        self.total = [f + b + w for f, b, w in zip(forward, backward, weight, strict=True)]

    def stage_costs(self, bounds: tuple[int, ...]) -> list[float]:
        """Return the ticks of one microbatch's ops by stage, on a device of scale 1."""
        overhead = self.overhead * len(self.problem.kinds)
        return [self.total[end] - self.total[begin] + overhead for begin, end in pairwise(bounds)]

    def by_device(self, costs: list[float], placement: Placement) -> list[float]:
        """Return the ticks of one microbatch's ops by device."""
        made = [0.0] * self.problem.n_devices
        for cost, device in zip(costs, placement, strict=True):
            made[device] += cost * self.scale[device]
        return made

    def proxy(self, layout: Layout) -> tuple[float, float]:
        """Return (load proxy, sum of squared loads), in ticks, smaller is better.

        The proxy is the largest, over devices, of the time before its first F can start, its whole load, and the
        least that must follow its last op (the B's below its lowest stage where W is not apart). A floor for
        the makespan but for rounding; link delays are left out.
        """
        problem, bounds = self.problem, layout.bounds
        loads = self.by_device(self.stage_costs(bounds), layout.placement)
        lowest: dict[int, int] = {}
        for stage, device in enumerate(layout.placement):
            lowest.setdefault(device, stage)
        fastest = min(self.scale)
        worst = 0.0
        for device, load in enumerate(loads):
            before = bounds[lowest[device]]
            head = self.forward[before] * fastest
            tail = 0.0 if problem.split else self.backward[before] * fastest
            worst = max(worst, head + load * problem.n_microbatches + tail)
        return worst, sum(load * load for load in loads)


def stage_counts(problem: Problem, most_stages: int) -> list[int]:
    """Return the multiples of the number of devices that are allowed, or the smallest allowed number if there is none.

    Parameters
    ----------
    most_stages : int
        No number above it, unless the instance allows no smaller one.
    """
    devices = problem.n_devices
    least, most = problem.min_stages, min(problem.max_stages, most_stages, problem.max_per_device * devices)
    return [count for count in range(devices, most + 1, devices) if count >= least] or [least]


def most_even(problem: Problem, counts: list[int], kept: int) -> dict[int, list[tuple[int, ...]]]:
    """Return, per stage count, the partitions whose stage times have least variance, best first.

    A dynamic programme over the cuts that keeps the best partial partitions of each prefix, by sum of squares: with
    the number of stages and the total given, that is the order by variance. A fixed partition is the only one.

    Parameters
    ----------
    kept : int
        How many per stage count (fewer on models of very many layers).
    """
    if problem.fixed_bounds is not None:
        return {len(problem.fixed_bounds) - 1: [problem.fixed_bounds]}
    edges = [begin for begin, _ in problem.units] + [problem.n_layers]
    size = len(edges)
    kept = max(1, min(kept, MOST_ENTRIES // (size * size)))
    total = np.array([sum(problem.prefix_ticks[kind][edge] for kind in (F, B, W)) for edge in edges], dtype=float)
    # squares[end, begin] of a stage; no stage is empty.
    cost = total[:, None] - total[None, :]
    squares = np.where(np.arange(size)[:, None] > np.arange(size)[None, :], cost * cost, np.inf)
    best = np.full((size, kept), np.inf)
    best[0, 0] = 0.0
    choices: list[NDArray[np.int64]] = []
    found: dict[int, list[tuple[int, ...]]] = {}
    for stages in range(1, max(counts) + 1):
        # candidates[end, begin * kept + rank]
        candidates = (squares[:, :, None] + best[None, :, :]).reshape(size, size * kept)
        # Stable, so that equals come in the same order on every machine.
        if kept == 1:
            picked = np.argmin(candidates, axis=1)[:, None]
        else:
            picked = np.argsort(candidates, axis=1, kind="stable")[:, :kept]
        choices.append(picked)
        best = np.take_along_axis(candidates, picked, axis=1)
        if stages in counts:
            found[stages] = [
                tuple(edges[cut] for cut in _trace(choices, size - 1, rank, kept))
                for rank in range(kept)
                if np.isfinite(best[-1, rank])
            ]
    return found


def _trace(choices: list[NDArray[np.int64]], end: int, rank: int, kept: int) -> list[int]:
    """Return the cuts of the partial partition of a rank."""
    cuts = [end]
    for choice in reversed(choices):
        end, rank = divmod(int(choice[end, rank]), kept)
        cuts.append(end)
    return cuts[::-1]


def placements(problem: Problem, loads: Loads, bounds: tuple[int, ...], kept: int) -> list[Placement]:
    """Return placements for a partition, those with the best load proxy first, the cyclic one before all.

    Cyclic; evened out by single moves; each stage on the least loaded device that does not hold the one before it;
    and the neighbours of the first two by one move or one swap that evens out the loads. An instance's own placement
    is the only one.
    """
    stages = len(bounds) - 1
    dictated = problem.placement_for(stages)
    if dictated is not None:
        return [dictated] if Layout(bounds, dictated).violation(problem) is None else []
    costs = loads.stage_costs(bounds)
    cyclic = tuple(family_device("interleaved", stage, problem.n_devices) for stage in range(stages))
    if problem.n_devices == 1:
        return [cyclic] if Layout(bounds, cyclic).violation(problem) is None else []
    evened = _evened(problem, loads, costs, cyclic)
    found = dict.fromkeys((cyclic, evened, _dispersed(problem, loads, costs)))
    for base in (cyclic, evened):
        found |= dict.fromkeys(neighbours(loads, costs, base))
    if problem.colocate:
        found = dict.fromkeys(together(problem, bounds, placement) for placement in found)
    legal = [placement for placement in found if Layout(bounds, placement).violation(problem) is None]
    ranked = sorted(legal, key=lambda placement: (placement != cyclic, *loads.proxy(Layout(bounds, placement))))
    return ranked[:kept]


def together(problem: Problem, bounds: tuple[int, ...], placement: Placement) -> Placement:
    """Return a placement with the stages of each `colocate` group on the device of the group's first layer."""
    moved = list(placement)
    # Groups that share a stage are one: repeat until nothing moves, at most once per group.
    for _ in problem.colocate:
        for group in problem.colocate:
            stages = [next(s for s, end in enumerate(bounds[1:]) if layer < end) for layer in group]
            for stage in stages[1:]:
                moved[stage] = moved[stages[0]]
    return tuple(moved)


def neighbours(loads: Loads, costs: list[float], placement: Placement) -> Iterator[Placement]:
    """Yield what one move from the most loaded device, or one swap with it, makes, if it lowers the larger load."""
    by_device = loads.by_device(costs, placement)
    heavy = max(range(len(by_device)), key=by_device.__getitem__)
    scale = loads.scale
    for stage, device in enumerate(placement):
        if device != heavy:
            continue
        for target, load in enumerate(by_device):
            if target != heavy and load + costs[stage] * scale[target] < by_device[heavy]:
                yield _with(placement, (stage, target))
        for other, target in enumerate(placement):
            gain = costs[stage] - costs[other]
            if target != heavy and gain > 0 and by_device[target] + gain * scale[target] < by_device[heavy]:
                yield _with(placement, (stage, target), (other, heavy))


def _with(placement: Placement, *changes: tuple[int, int]) -> Placement:
    changed = list(placement)
    for stage, device in changes:
        changed[stage] = device
    return tuple(changed)


def _evened(problem: Problem, loads: Loads, costs: list[float], placement: Placement) -> Placement:
    """Take the neighbour with the least sum of squared loads for as long as it lowers that."""

    def unevenness(one: Placement) -> float:
        return sum(load * load for load in loads.by_device(costs, one))

    current, value = placement, unevenness(placement)
    for _ in costs:
        options = [one for one in neighbours(loads, costs, current) if _held(problem, one)]
        if not options:
            break
        best = min(options, key=unevenness)
        if unevenness(best) >= value:
            break
        current, value = best, unevenness(best)
    return current


def _held(problem: Problem, placement: Placement) -> bool:
    held = [placement.count(device) for device in range(problem.n_devices)]
    return min(held) > 0 and max(held) <= problem.max_per_device


def _dispersed(problem: Problem, loads: Loads, costs: list[float]) -> Placement:
    """Put each stage on the least loaded device with room that does not hold the stage before it."""
    devices = problem.n_devices
    made: list[int] = []
    total, held = [0.0] * devices, [0] * devices
    for stage, cost in enumerate(costs):
        empty = held.count(0)
        options = [
            device
            for device in range(devices)
            if held[device] < problem.max_per_device
            and (not made or device != made[-1])
            # The last stages go where there is none yet.
            and (len(costs) - stage > empty or held[device] == 0)
        ] or list(range(devices))
        chosen = min(options, key=lambda device: (total[device] + cost * loads.scale[device], device))
        made.append(chosen)
        total[chosen] += cost * loads.scale[chosen]
        held[chosen] += 1
    return tuple(made)
