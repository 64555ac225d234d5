"""CP-SAT's optimum against an exhaustive search, on random tiny instances with every feature."""

from __future__ import annotations

import pytest

from octocp.bounds import all_bounds
from octocp.checker import check_plan
from octocp.costs import build_problem
from octocp.cpsat.assignment import assignment_bound
from octocp.cpsat.families import FAMILIES
from octocp.cpsat.joint import build_joint
from octocp.cpsat.packing import pack
from octocp.cpsat.run import Outcome, run
from octocp.decode import to_plan
from octocp.errors import InfeasibleError
from octocp.heuristics import HEURISTICS, attempts
from octocp.problem import Problem
from octocp.schedule import Schedule
from octocp.search.local import LocalSearch
from oracle import Answer, optimum
from random_instances import FEATURES, random_instance, seeds_by_feature

SEEDS = range(300)
UNORDERED_SEEDS = range(1000, 1060)
SYMMETRY = [family.name for family in FAMILIES if family.role == "symmetry"]
REDUNDANT = [family.name for family in FAMILIES if family.role == "redundant"]


def _problem(seed: int, max_ops: int = 36) -> Problem | None:
    try:
        return build_problem(random_instance(seed, max_ops))
    except InfeasibleError:
        return None


def _solve(problem: Problem, without: tuple[str, ...] = (), incumbent: Schedule | None = None) -> Outcome:
    return run(build_joint(problem, incumbent=incumbent, without=without), seconds=60, workers=1, seed=0)


def _same(outcome: Outcome, expected: Answer | None) -> None:
    if expected is None:
        assert outcome.status == "infeasible"
        return
    assert outcome.status == "optimal"
    assert outcome.schedule is not None
    assert outcome.schedule.value == expected.value
    assert outcome.bound == expected.value


def test_the_seeds_cover_every_feature() -> None:
    assert all(seeds_by_feature(SEEDS)[feature] for feature in FEATURES)


@pytest.mark.parametrize("seed", SEEDS)
def test_cp_sat_equals_exhaustive_search(seed: int) -> None:
    problem = _problem(seed)
    if problem is None:
        return
    expected = optimum(problem)
    outcome = _solve(problem)
    _same(outcome, expected)
    if outcome.schedule is not None:
        plan = to_plan(outcome.schedule, random_instance(seed), method="cp-sat", lower_bound=outcome.bound)
        assert check_plan(plan) == []
        assert plan.status == "optimal"


@pytest.mark.parametrize("seed", SEEDS)
def test_no_bound_exceeds_the_optimum(seed: int) -> None:
    problem = _problem(seed)
    expected = problem and optimum(problem)
    if problem is None or expected is None:
        return
    found = all_bounds(problem)
    for upper in (None, expected.value):
        found.append(assignment_bound(problem, known=found[0].value, upper=upper, seconds=10))
    for bound in found:
        assert bound.value <= expected.value, bound


@pytest.mark.parametrize("seed", range(0, 300, 3))
def test_no_bound_exceeds_the_optimum_of_scaled_microbatches(seed: int) -> None:
    """Equal lengths other than 1 make durations fractions that round up, and the bounds' arithmetic with them."""
    given = random_instance(seed, 24)
    length = (2.0, 0.5, 0.3, 1.7, 3.0)[seed % 5]
    try:
        problem = build_problem(given.model_copy(update={"microbatches": [length] * len(given.lengths())}))
    except InfeasibleError:
        return
    expected = optimum(problem)
    if expected is not None:
        found = all_bounds(problem)
        found.append(assignment_bound(problem, known=found[0].value, upper=expected.value, seconds=10))
        assert all(bound.value <= expected.value for bound in found), found


@pytest.mark.parametrize("seed", SEEDS)
def test_heuristics_and_search_are_valid_and_no_better_than_the_optimum(seed: int) -> None:
    problem = _problem(seed)
    expected = problem and optimum(problem)
    if problem is None or expected is None:
        return
    found = [a.schedule for h in HEURISTICS for a in attempts(h, problem) if a.status == "feasible" and a.schedule]
    local = LocalSearch(problem, 8)
    for state in local.starts():
        schedule = local.schedule(local.improve(state, state, 200, 0.01, 1e-4, 0, seed)[1])
        if schedule is not None and schedule.memory_excess() is None:
            found.append(schedule)
    for schedule in found:
        assert schedule.value >= expected.value
        plan = to_plan(schedule, random_instance(seed), method="test", lower_bound=0)
        assert check_plan(plan) == []


@pytest.mark.parametrize("family", SYMMETRY)
@pytest.mark.parametrize("seed", range(0, 300, 5))
def test_switching_a_symmetry_family_off_keeps_the_optimum(seed: int, family: str) -> None:
    problem = _problem(seed, 18)
    if problem is not None:
        _same(_solve(problem, (family,)), optimum(problem))


@pytest.mark.parametrize("family", REDUNDANT)
@pytest.mark.parametrize("seed", range(1, 300, 10))
def test_switching_a_redundant_family_off_keeps_the_optimum(seed: int, family: str) -> None:
    problem = _problem(seed, 24)
    if problem is not None:
        _same(_solve(problem, (family,)), optimum(problem))


@pytest.mark.parametrize("seed", UNORDERED_SEEDS)
def test_fifo_is_free(seed: int) -> None:
    """Without FIFO, on up to 12 ops, exhaustive search finds nothing better, and CP-SAT agrees."""
    problem = _problem(seed, 12)
    if problem is None:
        return
    expected = optimum(problem, fifo=False)
    _same(_solve(problem), expected)
    _same(_solve(problem, tuple(SYMMETRY)), expected)


@pytest.mark.parametrize("seed", range(0, 300, 4))
def test_hints_are_complete_and_feasible(seed: int) -> None:
    """A known optimum, hinted, is accepted as it stands: every variable fixed to its hint stays feasible."""
    problem = _problem(seed)
    expected = problem and optimum(problem)
    if problem is None or expected is None:
        return
    schedule = Schedule(problem, expected.layout, expected.start)
    build = build_joint(problem, incumbent=schedule)
    hint = build.model.proto.solution_hint
    free = [i for i, v in enumerate(build.model.proto.variables) if next(iter(v.domain)) != list(v.domain)[-1]]
    assert set(free) <= set(hint.vars)
    for index, value in zip(hint.vars, hint.values, strict=True):
        build.model.add(build.model.get_int_var_from_proto_index(index) == value)
    outcome = run(build, seconds=30, workers=1, seed=0)
    assert outcome.schedule is not None
    assert outcome.schedule.value == expected.value


@pytest.mark.parametrize("seed", SEEDS)
def test_packing_never_refuses_what_has_a_plan(seed: int) -> None:
    problem = _problem(seed)
    if problem is None:
        return
    packing = pack(problem, seconds=10)
    if packing.layout is not None and packing.status == "fits":
        assert packing.layout.violation(problem) is None
    if optimum(problem) is not None:
        assert packing.status == "fits"
