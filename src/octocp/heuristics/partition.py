"""Rules that cut the layers into a given number of stages, before any order is known."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from math import inf

from octocp.heuristics.refusal import NotApplicableError
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
    """Cut so that the costliest stage is cheapest (over F + B + W; PipeDream, SOSP 2019, 3.1).

    Alpa (OSDI 2022, 5.2) and Mist (EuroSys 2025) minimise the sum of all stages plus M - 1 times the maximum: with
    one device per stage and transfers hidden behind ops the sum is the same for every cut, so it is this rule.
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


def within_memory(problem: Problem, stages: int) -> Bounds:
    """Cut so that the costliest stage is cheapest among the cuts that 1F1B can hold (PipeDream, Alpa, Mist).

    Stage s holds its static size and min(M, S - s) microbatches, at most the smallest device's limit; where a device
    holds several stages, each may take its share. A dynamic programme over cuts.

    Raises
    ------
    NotApplicableError
        There is no limit, the partition is fixed, or no cut fits.
    """
    limits = [capacity for capacity in problem.capacity if capacity is not None]
    if not limits or problem.fixed_bounds is not None:
        raise NotApplicableError("needs a memory limit and a free partition")
    limit = min(limits) // -(-stages // problem.n_devices)
    edges = [begin for begin, _ in problem.units] + [problem.n_layers]
    totals = [sum(prefix[edge] for prefix in problem.prefix_ticks) for edge in edges]
    static = [problem.prefix_static[edge] for edge in edges]
    activation = [problem.prefix_activation[0][edge] for edge in edges]
    count = len(edges) - 1
    best: list[float] = [0] + [inf] * count
    choices: list[list[int]] = []
    for stage in range(stages):
        held = min(problem.n_microbatches, stages - stage)
        following: list[float] = [inf] * (count + 1)
        choice = [0] * (count + 1)
        for end in range(stage + 1, count - (stages - stage - 1) + 1):
            for begin in range(end - 1, stage - 1, -1):
                cost = totals[end] - totals[begin]
                if cost >= following[end]:
                    break
                if static[end] - static[begin] + held * (activation[end] - activation[begin]) > limit:
                    break
                if max(best[begin], cost) < following[end]:
                    following[end], choice[end] = max(best[begin], cost), begin
        best = following
        choices.append(choice)
    if best[count] == inf:
        raise NotApplicableError("no cut fits in memory under 1F1B")
    cuts = [count]
    for choice in reversed(choices):
        cuts.append(choice[cuts[-1]])
    return tuple(edges[cut] for cut in cuts[::-1])


def megatron(problem: Problem, stages: int, *, embedding: bool = False, loss: bool = False) -> Bounds:
    """Cut by count as Megatron-Core does: equal numbers of blocks, embedding and loss beside them or among them.

    The first and the last layer are taken to be embedding and loss where no other layer costs and holds the same.
    With both accounted it is `uniform`, where that has no remainder.

    Parameters
    ----------
    embedding, loss : bool
        Whether they count as one layer of their stage (account_for_embedding_in_pipeline_split and
        account_for_loss_in_pipeline_split); otherwise they come on top.

    Raises
    ------
    NotApplicableError
        The partition is fixed, or the layers counted are no multiple of the stages.
    """
    if problem.fixed_bounds is not None:
        raise NotApplicableError("the instance fixes another partition")
    weights = [1] * len(problem.units)
    if not embedding and _stands_alone(problem, 0):
        weights[0] = 0
    if not loss and _stands_alone(problem, len(weights) - 1):
        weights[-1] = 0
    size, extra = divmod(sum(weights), stages)
    if extra or not size:
        raise NotApplicableError(f"needs a number of layers divisible by stages; {sum(weights)} on {stages}")
    ends = [
        end
        for (_, end), counted, weight in zip(problem.units, accumulate(weights), weights, strict=True)
        if weight and counted % size == 0
    ]
    return (0, *ends[:-1], problem.n_layers)


def _stands_alone(problem: Problem, unit: int) -> bool:
    """Whether a unit is one layer that no other layer is like."""
    begin, end = problem.units[unit]

    def like(layer: int) -> tuple[int, ...]:
        ticks = (row[layer] for row in problem.layer_ticks)
        return (*ticks, problem.static[layer], problem.activation[0][layer], problem.weight_activation[0][layer])

    return end - begin == 1 and all(like(layer) != like(begin) for layer in range(problem.n_layers) if layer != begin)


PartitionRule = Callable[[Problem, int], Bounds]
PARTITION_RULES: dict[str, PartitionRule] = {"uniform": uniform, "balanced": balanced}
"""What every heuristic is run with."""

FURTHER_RULES: dict[str, PartitionRule] = {
    "memory": within_memory,
    "megatron": megatron,
    "megatron-embedding": partial(megatron, embedding=True),
    "megatron-loss": partial(megatron, loss=True),
}
"""What `octocp compare` shows where it is better than those."""

ALL_PARTITION_RULES: dict[str, PartitionRule] = {**PARTITION_RULES, **FURTHER_RULES}
