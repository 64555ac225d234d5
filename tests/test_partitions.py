"""Partition rules beyond uniform and balanced: Megatron's, and the one that memory can hold."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from octocp.heuristics import NotApplicableError
from octocp.heuristics.one_f_one_b import ONE_F_ONE_B
from octocp.heuristics.partition import megatron, uniform, within_memory
from octocp.problem import Problem
from octocp.schedule import Layout
from tiny import problem


def cut(rule: Any, given: Problem, stages: int, **more: bool) -> tuple[int, ...]:
    return Layout(rule(given, stages, **more), tuple(range(stages))).partition


def test_megatron_accounts_for_embedding_and_loss() -> None:
    """E and L beside 12 or 14 blocks: on top of equal counts, or each one of them."""
    kinds = {"E": (1, 1, 0), "t": (4, 4, 4), "L": (6, 6, 1)}
    given = problem("E" + "t" * 12 + "L", kinds, devices=4)
    assert cut(megatron, given, 4) == (4, 3, 3, 4)
    given = problem("E" + "t" * 11 + "L", kinds, devices=4)
    assert cut(megatron, given, 4, embedding=True) == (3, 3, 3, 4)
    assert cut(megatron, given, 4, loss=True) == (4, 3, 3, 3)
    given = problem("E" + "t" * 14 + "L", kinds, devices=4)
    assert cut(megatron, given, 4, embedding=True, loss=True) == cut(uniform, given, 4) == (4, 4, 4, 4)
    with pytest.raises(NotApplicableError, match="divisible by stages; 14 on 4"):
        megatron(given, 4)


def test_megatron_takes_only_a_layer_unlike_all_others_for_embedding_or_loss() -> None:
    assert cut(megatron, problem("t" * 8, {"t": (4, 4, 4)}, devices=4), 4) == (2, 2, 2, 2)
    kept = problem("Et" + "t" * 7, {"E": (1, 1, 0), "t": (4, 4, 4)}, devices=4, keep_together=[[0, 1]])
    assert cut(megatron, kept, 4) == (3, 2, 2, 2)


@pytest.mark.parametrize("seed", range(60))
def test_the_cut_within_memory_is_the_best_that_1f1b_can_hold(seed: int) -> None:
    drawn = [(seed * 7 + n * n * 5) % 9 + 1 for n in range(7)]
    kinds = {
        chr(97 + n): {"ms": (drawn[n], drawn[-n], 1), "activation_gb": drawn[n - 3], "static_gb": drawn[n - 5]}
        for n in range(7)
    }
    stages = 2 + seed % 3
    given = problem("abcdefg", kinds, devices=stages, microbatches=1 + seed % 4, memory=20 + seed)

    def cost(bounds: tuple[int, ...]) -> int:
        return max(
            sum(given.duration(kind, b, e) for kind in range(3)) for b, e in zip(bounds, bounds[1:], strict=False)
        )

    def fits(bounds: tuple[int, ...]) -> bool:
        return ONE_F_ONE_B.run(given, Layout(bounds, tuple(range(stages)))).memory_excess() is None

    fitting = [b for inner in combinations(range(1, 7), stages - 1) if fits(b := (0, *inner, 7))]
    if not fitting:
        with pytest.raises(NotApplicableError):
            within_memory(given, stages)
        return
    found = within_memory(given, stages)
    assert fits(found)
    assert cost(found) == min(map(cost, fitting))
