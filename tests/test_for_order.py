"""The best partition for a given order, against trying every partition."""

from __future__ import annotations

from itertools import combinations

import pytest

from octocp.costs import build_problem
from octocp.cpsat.for_order import best_partition
from octocp.errors import InfeasibleError
from octocp.heuristics import ALL_HEURISTICS, attempts
from octocp.problem import Problem
from octocp.schedule import Layout, Schedule
from octocp.timing import time_orders
from random_instances import random_instance
from tiny import problem


def by_trying(given: Problem, schedule: Schedule, fused: bool) -> int | None:
    """Return the least objective of the schedule's orders and placement over all partitions that are allowed."""
    stages = schedule.layout.stages
    begins = [begin for begin, _ in given.units[1:]]
    best: int | None = None
    for cuts in combinations(begins, stages - 1):
        layout = Layout((0, *cuts, given.n_layers), schedule.layout.placement)
        if layout.violation(given) is not None:
            continue
        timed = time_orders(given, layout, schedule.orders(), fused=fused)
        if timed.memory_excess() is None and (best is None or timed.value < best):
            best = timed.value
    return best


@pytest.mark.parametrize("block", range(8))
def test_no_partition_is_better(block: int) -> None:
    compared = 0
    for seed in range(block * 12, block * 12 + 12):
        try:
            given = build_problem(random_instance(seed, 60))
        except InfeasibleError:
            continue
        if given.partition is not None or not given.uniform_microbatches:
            continue
        for heuristic in ALL_HEURISTICS:
            for attempt in attempts(heuristic, given):
                if attempt.schedule is None:
                    continue
                fused = heuristic.fused and given.split
                found = best_partition(given, attempt.schedule, seconds=30, fused=fused)
                expected = by_trying(given, attempt.schedule, fused)
                if expected is None:
                    assert found is attempt.schedule
                else:
                    assert found.memory_excess() is None
                    assert found.value == expected
                compared += 1
                break
    assert compared > 10


def test_a_heavy_last_layer_gets_a_stage_of_its_own():
    """Layers of 1, 1, 1, 3 (F and B, M = 2) on two devices: 1F1B on 2 + 2 takes 8 + 2 + ...; 3 + 1 is even."""
    given = problem([(1, 1)] * 3 + [(3, 3)], split_backward=False)
    naive = time_orders(given, Layout((0, 2, 4), (0, 1)), _one_f_one_b(given))
    found = best_partition(given, naive, seconds=10)
    assert found.layout.partition == (3, 1)
    assert found.value == 3 + 12 + 3 < naive.value


def test_a_fixed_partition_is_kept():
    given = problem([(1, 1)] * 3 + [(3, 3)], split_backward=False, partition=[2, 2])
    naive = time_orders(given, Layout((0, 2, 4), (0, 1)), _one_f_one_b(given))
    assert best_partition(given, naive, seconds=10) is naive


def test_cuts_that_keep_the_memory_limit_are_found():
    """Both microbatches in flight on device 0: two layers need 4, one needs 2."""
    kinds = {"a": {"ms": (1, 1), "activation_gb": 1}}
    given = problem("aaa", kinds, memory=3, split_backward=False)
    naive = time_orders(given, Layout((0, 2, 3), (0, 1)), _one_f_one_b(given))
    assert naive.memory_excess() is not None
    found = best_partition(given, naive, seconds=10)
    assert found.layout.partition == (1, 2)
    assert found.memory_excess() is None


def _one_f_one_b(given: Problem):
    from octocp.heuristics import HEURISTICS

    rule = next(heuristic for heuristic in HEURISTICS if heuristic.name == "1f1b")
    return rule.orders(given, Layout((0, 1, given.n_layers), (0, 1)))


def test_ops_of_length_zero_do_not_block_each_other():
    """Forward costs only: every B and W of a microbatch is over in one moment, and starts do not tell their order."""
    kinds = {"E": {"ms": (0.3,)}, "A": {"ms": (1,)}, "H": {"ms": (3,)}}
    given = problem("EAAAAH", kinds, microbatches=4)
    for heuristic in ALL_HEURISTICS:
        for attempt in attempts(heuristic, given):
            if attempt.schedule is not None:
                found = best_partition(given, attempt.schedule, seconds=10, fused=heuristic.fused and given.split)
                assert found.value <= attempt.schedule.value
