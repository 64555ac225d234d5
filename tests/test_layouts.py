"""Layout by layout: nothing that can be better is missing from the list, and what is proven from it holds."""

from __future__ import annotations

import dataclasses

import pytest

from octocp.cpsat import contents
from octocp.cpsat.contents import layouts_below, listable
from octocp.cpsat.families import FAMILIES
from octocp.cpsat.joint import build_joint
from octocp.cpsat.run import Outcome, run
from octocp.heuristics import SERIAL
from octocp.problem import Problem
from octocp.progress import Progress
from octocp.schedule import Layout, Schedule
from octocp.strategy.layouts import LayoutByLayout
from octocp.strategy.solve import solve_problem
from oracle import legal_layouts
from test_bounds import random_case
from tiny import problem

BARE = [family.name for family in FAMILIES if family.role == "redundant"]


def with_layout(given: Problem, layout: Layout) -> Problem:
    return dataclasses.replace(
        given,
        partition=layout.partition,
        family="fixed",
        placement=layout.placement,
        min_stages=layout.stages,
        max_stages=layout.stages,
    )


def bare_optimum(given: Problem) -> int | None:
    """Without any bound in the model."""
    outcome = run(build_joint(given, without=BARE, lower=0), seconds=60, workers=1, seed=0)
    assert outcome.status in ("optimal", "infeasible")
    return outcome.bound if outcome.status == "optimal" else None


@pytest.mark.parametrize("seed", range(8))
def test_every_layout_that_can_be_better_is_listed(seed):
    given = random_case(seed)
    assert listable(given)
    least = {}
    for layout in legal_layouts(given):
        if layout == layout.canonical(given):
            value = bare_optimum(with_layout(given, layout))
            if value is not None:
                least[layout] = value
    for value in sorted({*least.values()} | {1 + max(least.values(), default=0)}):
        found = layouts_below(given, value)
        assert found is not None
        bounds = {layout: bound for bound, layout in found}
        assert len(bounds) == len(found)
        assert all(bound < value for bound in bounds.values())
        for layout, reached in least.items():
            if reached < value:
                assert bounds[layout] <= reached


def by_layout(given: Problem) -> Progress:
    """Start from the serial schedule of some layout and go through all others."""
    progress = Progress(60)
    for layout in legal_layouts(given):
        found = SERIAL.run(given, layout)
        if found.memory_excess() is None:
            progress.offer(found, "serial")
            break

    def solve(build, seconds: float) -> Outcome:
        outcome = run(build, seconds=seconds, workers=1, seed=0)
        if outcome.schedule is not None:
            progress.offer(Schedule(given, outcome.schedule.layout, outcome.schedule.start), "order")
        return outcome

    proof = LayoutByLayout(given)
    if proof.applies(progress):
        proof.run(progress, 60, solve)
    return progress


@pytest.mark.parametrize("seed", range(12, 30))
def test_it_ends_with_the_optimum(seed):
    given = random_case(seed)
    progress = by_layout(given)
    if progress.value is not None:
        assert progress.value == progress.bound.value == bare_optimum(given)


def test_a_hand_solved_case():
    # Three equal layers with F = B = 1 and no W on two devices, two microbatches. Who has two of them works for 8. With
    # the lower two it need not wait, and the other one waits for 2, works for 4 and waits for 2. With the upper two it
    # waits for 1 before and for 1 after.
    given = problem([(1, 1, 0)] * 3, devices=2, microbatches=2, split_backward=False, max_per_device=1)
    unit = given.layer_ticks[0][0]
    found = layouts_below(given, 100 * unit)
    assert found is not None
    assert [(bound / unit, layout.bounds) for bound, layout in found] == [(8, (0, 2, 3)), (10, (0, 1, 3))]
    assert layouts_below(given, 8 * unit) == []


def test_too_many_layouts_are_given_up(monkeypatch):
    given = problem([(1, 1, 1)] * 6, devices=2, microbatches=2, max_per_device=3)
    many = layouts_below(given, 10**9)
    assert many is not None
    assert len(many) > 10
    for name, least in (("MOST_CONTENTS", 10), ("MOST_STEPS", 10), ("MOST_LAYOUTS", 10)):
        with monkeypatch.context() as patch:
            patch.setattr(contents, name, least)
            assert layouts_below(given, 10**9) is None


def test_an_unfinished_list_proves_the_lowest_bound_that_is_open():
    given = problem(
        [(1, 1, 1), (2, 1, 1), (1, 3, 1), (1, 1, 2), (3, 1, 1)], devices=2, microbatches=3, max_per_device=2
    )
    progress = by_layout(given)
    best = progress.value
    assert best is not None
    worse = Progress(60)
    worse.offer(SERIAL.run(given, next(iter(legal_layouts(given)))), "serial")
    proof = LayoutByLayout(given)

    def never(build, seconds: float) -> Outcome:
        return Outcome("unknown", None, build.lower, 0.0)

    proof.run(worse, 0.05, never)
    found = layouts_below(given, worse.value or 0)
    assert found
    assert worse.bound.value == found[0][0] <= best


def test_the_strategy_closes_what_the_search_leaves():
    """Without the joint model over layouts, which then agrees."""
    times = [
        (3, 5, 1),
        (2, 3, 1),
        (4, 3, 3),
        (2, 2, 2),
        (3, 5, 1),
        (2, 3, 1),
        (4, 3, 3),
        (2, 2, 2),
        (3, 5, 1),
        (9, 2, 1),
    ]
    given = problem(times, devices=3, microbatches=6, max_per_device=2)
    progress = Progress(60)
    answer = solve_problem(given, progress, workers=1, seed=0, phases=("heuristics", "search", "layouts"))
    assert answer.optimal
    assert answer.bound.name == "layout by layout"
    assert answer.schedule.problem is given
    again = run(build_joint(given, upper=answer.schedule.value - 1), seconds=60, workers=2, seed=1)
    assert again.status == "infeasible"
