"""Rules that cut the layers into a given number of stages, before any order is known."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from math import inf

from octocp.problem import Problem

Bounds = tuple[int, ...]


def uniform(problem: Problem, stages: int) -> Bounds:
    """Cut by count of indivisible runs, the remainder first ([7, 7, 7, 7, 6, 6, 6, 6] for 52 on 8).

    A fixed partition is kept.
    """
    if problem.fixed_bounds is not None:
        return problem.fixed_bounds
    units = problem.units
    size, extra = divmod(len(units), stages)
    counts = [size + (stage < extra) for stage in range(stages)]
    ends = list(accumulate(counts))
    return (0, *(units[end - 1][1] for end in ends))


def balanced(problem: Problem, stages: int) -> Bounds:
    """Cut so that the costliest stage is cheapest (dynamic programme over F + B + W; PipeDream, SOSP 2019, 3.1).

    Among the partitions with the least maximum, the one with the least sum of squares, so that the
    other stages are even too. A fixed partition is kept.
    """
    if problem.fixed_bounds is not None:
        return problem.fixed_bounds
    edges = [begin for begin, _ in problem.units] + [problem.n_layers]
    totals = [sum(prefix[edge] for prefix in problem.prefix_ticks) for edge in edges]
    return tuple(edges[cut] for cut in _even_cuts(totals, stages, _least_maximum(totals, stages)))


def _least_maximum(totals: Sequence[int], stages: int) -> int:
    """Return the least cost of the costliest stage, by bisection; `totals` are prefix sums.

    A limit that admits fewer stages admits more too: cutting a stage in two raises none.
    """
    low, high = max(end - begin for begin, end in pairwise(totals)), totals[-1]
    while low < high:
        limit = (low + high) // 2
        reached = 0
        for _ in range(stages):
            reached = bisect_right(totals, totals[reached] + limit) - 1
        if reached == len(totals) - 1:
            high = limit
        else:
            low = limit + 1
    return low


def _even_cuts(totals: Sequence[int], stages: int, most: int) -> list[int]:
    """Return the cuts with the least sum of squares among those whose stages cost at most `most`."""
    count = len(totals) - 1
    best: list[float] = [0] + [inf] * count
    choices: list[list[int]] = []
    for stage in range(1, stages + 1):
        following: list[float] = [inf] * (count + 1)
        choice = [0] * (count + 1)
        for end in range(stage, count - (stages - stage) + 1):
            for begin in range(end - 1, stage - 2, -1):
                cost = totals[end] - totals[begin]
                if cost > most:
                    break
                squares = best[begin] + cost * cost
                if squares < following[end]:
                    following[end], choice[end] = squares, begin
        best = following
        choices.append(choice)
    cuts = [count]
    for choice in reversed(choices):
        cuts.append(choice[cuts[-1]])
    return cuts[::-1]


PARTITION_RULES: dict[str, Callable[[Problem, int], Bounds]] = {"uniform": uniform, "balanced": balanced}
