"""Rules that cut the layers into a given number of stages, before any order is known."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

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
    count = len(edges) - 1
    unreachable = (float("inf"), float("inf"))
    best: list[tuple[float, float]] = [(0, 0)] + [unreachable] * count
    choices: list[list[int]] = []
    for stage in range(1, stages + 1):
        following = [unreachable] * (count + 1)
        choice = [0] * (count + 1)
        for end in range(stage, count - (stages - stage) + 1):
            for begin in range(end - 1, stage - 2, -1):
                cost = totals[end] - totals[begin]
                if cost > following[end][0]:
                    break
                most, squares = best[begin]
                candidate = (max(most, cost), squares + cost * cost)
                if candidate < following[end]:
                    following[end], choice[end] = candidate, begin
        best = following
        choices.append(choice)
    cuts = [count]
    for choice in reversed(choices):
        cuts.append(choice[cuts[-1]])
    return tuple(edges[cut] for cut in reversed(cuts))


PARTITION_RULES: dict[str, Callable[[Problem, int], Bounds]] = {"uniform": uniform, "balanced": balanced}
