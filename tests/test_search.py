"""The compiled evaluator against its readable twin; what the moves keep; determinism."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from octocp.bounds import all_bounds
from octocp.checker import check_plan
from octocp.costs import build_problem
from octocp.decode import to_plan
from octocp.errors import InfeasibleError
from octocp.problem import B, F, Problem, W
from octocp.progress import Progress
from octocp.schedule import Layout, Schedule
from octocp.search.anytime import Search
from octocp.search.evaluator import FITS, IN_FLIGHT, NEVER, NEXT_FITS, OLDEST_FITS, RULES
from octocp.search.local import LocalSearch, State
from octocp.search.moves import mutate
from octocp.search.twin import dispatch
from random_instances import random_instance
from tiny import problem

SEEDS = range(150)
MOST = 6


def made(seed: int) -> Problem | None:
    try:
        return build_problem(random_instance(seed, 60))
    except InfeasibleError:
        return None


def random_state(local: LocalSearch, state: State, draw: random.Random) -> State:
    """Return the state with random moves, priorities and rules; every second time, patience and ageing are off."""
    state = state.copy()
    for _ in range(draw.randrange(6)):
        trial = state.copy()
        stages = mutate(local.shape, trial.stages, trial.cuts, trial.place, trial.priority, trial.rules)
        if stages > 0:
            state = trial
            state.stages = stages
    if draw.random() < 0.7:
        for kind in range(3):
            for stage in range(state.stages):
                # Few values, so that ties occur.
                state.priority[kind, stage] = draw.choice([0.0, 1.0, 1.5, 2.0, 3.0])
    if draw.random() < 0.5:
        state.priority[IN_FLIGHT, : state.stages] = [draw.choice([0, 0, 1, 2, 3]) for _ in range(state.stages)]
    if draw.random() < 0.5:
        state.rules[:] = [
            draw.random() * 3,
            draw.random() * 3,
            draw.gauss(0, 0.4),
            draw.gauss(0, 0.4),
            draw.choice([0, 0.7, 2]),
            draw.choice([NEXT_FITS, OLDEST_FITS, FITS]),
        ]
    else:
        state.rules[:] = 0
    return state


def twin(local: LocalSearch, state: State) -> Schedule | None:
    stages = state.stages
    priority = [[float(value) for value in row[:stages]] for row in state.priority]
    return dispatch(local.problem, local.layout(state), priority, [float(rule) for rule in state.rules])


def same(one: Schedule | None, other: Schedule | None) -> None:
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.layout == other.layout
        assert np.array_equal(one.start, other.start)


def seeded(local: LocalSearch, seed: int) -> None:
    """Seed the compiled code's random numbers: `anneal` does."""
    state = next(local.starts())
    local.improve(state, state, 0, 0.01, 0.001, 0, seed)


@pytest.mark.parametrize("block", range(10))
def test_the_evaluator_equals_its_twin(block: int) -> None:
    """Op for op, on random instances (delays, memory limits, both objectives) and random states."""
    compared = Counter[str]()
    for seed in range(block * 40, block * 40 + 40):
        given = made(seed)
        if given is None:
            continue
        local = LocalSearch(given, MOST)
        draw = random.Random(seed)
        seeded(local, seed)
        for start in local.starts():
            for _ in range(4):
                state = random_state(local, start, draw)
                schedule = local.schedule(state)
                same(schedule, twin(local, state))
                if schedule is None:
                    compared["none"] += 1
                    continue
                compared["limited" if given.has_memory_limit else "unlimited"] += 1
                compared["delayed"] += given.has_delay
                compared[given.objective] += 1
    assert all(compared[what] for what in ("none", "limited", "unlimited", "delayed", "makespan", "span")), compared


def larger(seed: int, limited: bool) -> Problem:
    """Return a problem of a few hundred ops: 12 uneven layers on 3 devices, 6 microbatches."""
    draw = random.Random(seed)
    kinds = {
        name: {
            "ms": (draw.randint(1, 20), draw.randint(1, 20), draw.randint(0, 12)),
            "activation_gb": (activation := draw.randint(1, 4)),
            "weight_activation_gb": draw.randint(0, activation),
            "static_gb": draw.randint(0, 2),
            "output_mb": draw.randint(0, 9),
        }
        for name in "abcd"
    }
    layers = "".join(draw.choice("abcd") for _ in range(12))
    memory = draw.randint(20, 40) if limited else None
    link = {"bandwidth_gb_s": 1, "latency_us": 1000} if seed % 2 else None
    return problem(layers, kinds, devices=3, microbatches=6, memory=memory, link=link)


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_evaluator_equals_its_twin_on_larger_ones(seed: int, limited: bool) -> None:
    local = LocalSearch(larger(seed, limited), 12)
    draw = random.Random(seed)
    seeded(local, seed)
    plans = 0
    for start in local.starts():
        state = random_state(local, start, draw)
        schedule = local.schedule(state)
        same(schedule, twin(local, state))
        plans += schedule is not None
    assert plans


# ---- by hand ---------------------------------------------------------------------------------------


def one_device(rules: list[float], backward: int = 2, **more) -> list[str]:
    """Dispatch two stages on two devices with B before F before W; return device 0's ops with their starts."""
    given = problem([(4, backward, 4), (3, 3, 1)], microbatches=2, **more)
    priority = [[2.0, 2.0], [3.0, 3.0], [1.0, 1.0], [0.0, 0.0]]
    schedule = dispatch(given, Layout((0, 1, 2), (0, 1)), priority, rules)
    assert schedule is not None
    return [f"{'FBW'[op.kind]}{op.microbatch} at {schedule.start[op]}" for op in schedule.orders()[0]]


def test_the_twin_without_patience():
    """Stage 1: F 4-7, B 7-10, then F 10-13 (it came at 8; W waits), B 13-16. Stage 0: B0 10-12, W0 12-16, B1 16."""
    assert one_device([0, 0, 0, 0, 0, 0]) == ["F0 at 0", "F1 at 4", "B0 at 10", "W0 at 12", "B1 at 16", "W1 at 18"]


def test_the_twin_waits_within_its_patience():
    """With a link of 1, B0 ends at 15, and B1 of stage 1, at 14-17, brings the gradient at 18.

    W0 takes 4: a patience of 1 waits for what comes before 19, one of 0.75 for what comes before 18.
    """
    link = {"latency_us": 1000}
    impatient = one_device([0.75, 0, 0, 0, 0, 0], backward=3, link=link)
    assert impatient == ["F0 at 0", "F1 at 4", "B0 at 12", "W0 at 15", "B1 at 19", "W1 at 22"]
    patient = one_device([1, 0, 0, 0, 0, 0], backward=3, link=link)
    assert patient == ["F0 at 0", "F1 at 4", "B0 at 12", "B1 at 18", "W0 at 21", "W1 at 25"]


def test_the_twin_waits_only_for_what_is_known():
    """With B of 2, device 0 decides at 14, before B1 of stage 1 has started: no patience sees it."""
    found = one_device([9, 0, 0, 0, 0, 0], link={"latency_us": 1000})
    assert found == ["F0 at 0", "F1 at 4", "B0 at 12", "W0 at 14", "B1 at 18", "W1 at 20"]


def test_the_twin_holds_back_what_memory_cannot_take():
    """Two devices, one microbatch each at a time: F1 of stage 0 waits for B0."""
    kinds = {"a": {"ms": (1, 1, 1), "activation_gb": 2, "weight_activation_gb": 1}}
    given = problem("aa", kinds, microbatches=2, memory=3)
    schedule = dispatch(
        given, Layout((0, 1, 2), (0, 1)), [[2.0, 2.0], [3.0, 3.0], [1.0, 1.0], [0.0, 0.0]], [0.0] * RULES
    )
    assert schedule is not None
    assert int(schedule.start[F, 0, 1]) == 4  # B0 runs 3-4, and leaves 1 of its 2 until W0
    assert max(schedule.peak_memory()) == 3


def test_the_twin_admits_what_fits_and_may_come_to_rest():
    """Device 0 has stages 0 and 2 and room for two activations: F1 of stage 0 may take what F0 of stage 2 needs."""
    kinds = {"a": {"ms": (1, 1, 1), "activation_gb": 1}}
    given = problem("aaa", kinds, microbatches=2, memory=2)
    layout, priority = Layout((0, 1, 2, 3), (0, 1, 0)), [[2.0] * 3, [3.0] * 3, [1.0] * 3, [0.0] * 3]
    for admission, starts in ((NEXT_FITS, 4), (OLDEST_FITS, 4), (FITS, None)):
        schedule = dispatch(given, layout, priority, [0.0] * (RULES - 1) + [admission])
        assert (None if schedule is None else int(schedule.start[F, 0, 1])) == starts


def test_the_twin_holds_back_a_stage_with_enough_in_flight():
    """Without a limit, stage 0 runs its three F at once; with 2 in flight, F2 waits for the end of B0, at 4."""
    given = problem([(1, 1, 1)] * 2, microbatches=3)
    starts = []
    for most in (0.0, 2.0):
        priority = [[2.0, 2.0], [3.0, 3.0], [1.0, 1.0], [most, 0.0]]
        schedule = dispatch(given, Layout((0, 1, 2), (0, 1)), priority, [0.0] * RULES)
        assert schedule is not None
        starts.append([int(schedule.start[F, 0, m]) for m in range(3)])
    assert starts == [[0, 1, 2], [0, 1, 4]]


def test_the_twin_refuses_what_breaks_a_rule():
    given = problem([(1, 1, 1)] * 3, max_per_device=1)
    layout = Layout((0, 1, 2, 3), (0, 1, 1))
    assert dispatch(given, layout, [[0.0] * 3] * 4, [0.0] * RULES) is None


def test_the_twin_refuses_what_cannot_hold_one_microbatch():
    kinds = {"a": {"ms": (1, 1, 1), "activation_gb": 2, "static_gb": 2}}
    given = problem("aa", kinds, memory=3)
    assert dispatch(given, Layout((0, 1, 2), (0, 1)), [[0.0] * 2] * 4, [0.0] * RULES) is None


# ---- what the search keeps ---------------------------------------------------------------------------


@pytest.mark.parametrize("block", range(5))
def test_the_evaluator_keeps_memory_limits_and_every_rule_of_a_plan(block: int) -> None:
    """Where no stage's weight part exceeds its activation: what B hands over then never needs more room."""
    for seed in range(block * 60, block * 60 + 60):
        given = made(seed)
        if given is None:
            continue
        rows = zip(given.activation[0], given.weight_activation[0], strict=True)
        bounded = all(weight <= activation for activation, weight in rows)
        local = LocalSearch(given, MOST)
        draw = random.Random(seed)
        for start in local.starts():
            schedule = local.schedule(random_state(local, start, draw))
            if schedule is None or not bounded:
                continue
            plan = to_plan(schedule, random_instance(seed, 60), method="test", lower_bound=0)
            assert check_plan(plan) == []


@pytest.mark.parametrize("seed", range(0, 120, 3))
def test_annealing_is_deterministic_and_keeps_every_rule(seed: int) -> None:
    given = made(seed)
    if given is None:
        return
    local = LocalSearch(given, MOST)
    for start in local.starts():
        once, again = (local.improve(start, start, 300, 0.02, 1e-4, 0, seed)[1] for _ in range(2))
        assert (once.value, once.stages) == (again.value, again.stages)
        for one, other in zip(
            (once.cuts, once.place, once.priority, once.rules),
            (again.cuts, again.place, again.priority, again.rules),
            strict=True,
        ):
            assert np.array_equal(one[..., : once.stages], other[..., : once.stages])
        if once.value < NEVER:
            assert local.layout(once).violation(given) is None
            schedule = local.schedule(once)
            assert schedule is not None
            assert schedule.value == once.value


@pytest.mark.parametrize("seed", range(0, 200, 5))
def test_moves_keep_every_rule_that_they_can_see(seed: int) -> None:
    """After any moves the cuts are legal; a state that breaks another rule has no schedule."""
    given = made(seed)
    if given is None:
        return
    local = LocalSearch(given, MOST)
    seeded(local, seed)
    for start in local.starts():
        state = start
        for _ in range(60):
            trial = state.copy()
            stages = mutate(local.shape, trial.stages, trial.cuts, trial.place, trial.priority, trial.rules)
            if stages < 0:
                continue
            trial.stages = stages
            layout = local.layout(trial)
            assert given.min_stages <= layout.stages <= given.max_stages
            assert all(size > 0 for size in layout.partition)
            assert layout.bounds[0] == 0
            assert layout.bounds[-1] == given.n_layers
            assert all(given.cuttable[bound] for bound in layout.bounds)
            if local.schedule(trial) is not None:
                assert layout.violation(given) is None
            state = trial


def test_starts_are_legal_and_cover_every_stage_count():
    given = problem([(1, 2, 1)] * 8, devices=2)
    local = LocalSearch(given, 8)
    layouts = [local.layout(state) for state in local.starts()]
    assert {layout.stages for layout in layouts} == {2, 4, 6, 8}
    assert all(layout.violation(given) is None for layout in layouts)


def test_the_search_offers_what_it_finds_and_stops_at_the_bound():
    """Two equal layers on two devices, M = 3: 1F1B with W last needs 3 x 3 + 1; the bound is reached at once."""
    given = problem([(1, 1, 1)] * 2, microbatches=3)
    progress = Progress(30.0)
    for bound in all_bounds(given):
        progress.prove(bound)
    Search(given, seed=0, workers=1, most_stages=8).run(progress, 30.0)
    assert progress.value == progress.bound.value == 10
    assert progress.done


def test_overhead_and_scale_are_rounded_like_the_problem():
    """Relative length 1.5 and overhead 1.2 ticks: durations are the problem's."""
    given = problem([(1, 2, 3)] * 3, devices=2, microbatches=[1.5, 1.5], tick_us=1000, op_overhead_us=1200)
    local = LocalSearch(given, 3)
    for state in local.starts():
        schedule = local.schedule(state)
        same(schedule, twin(local, state))
    assert given.duration(F, 0, 1) == 3
    assert given.duration(B, 0, 2) == 8
    assert given.duration(W, 0, 3) == 15


def test_a_limit_on_one_device_only():
    kinds = {"a": {"ms": (1, 1, 1), "activation_gb": 1}}
    given = problem("aaaa", kinds, devices=[{"memory_gb": 2}, {}], microbatches=4)
    local = LocalSearch(given, 4)
    for state in local.starts():
        same(local.schedule(state), twin(local, state))


def test_microbatches_run_in_order():
    given = replace(larger(1, limited=False), objective="span")
    local = LocalSearch(given, 6)
    for state in local.starts():
        schedule = local.schedule(state)
        assert schedule is not None
        assert (np.diff(schedule.start, axis=2) >= 0).all()
        same(schedule, twin(local, state))


def test_no_state_is_refused_whose_schedule_is_in_time():
    """What the layout alone shows to be too long is too long: at its own value as limit, every state is accepted."""
    compared = 0
    for seed in range(200):
        given = made(seed)
        if given is None:
            continue
        local = LocalSearch(given, MOST)
        seeded(local, seed)
        draw = random.Random(seed)
        for start in local.starts():
            state = random_state(local, start, draw)
            _, best = local.improve(state, state, 0, 0.01, 0.001, 0, seed)
            if best.value < NEVER:
                assert local.value(state, best.value) == best.value
                assert local.value(state, best.value - 1) >= NEVER or given.objective == "span"
                compared += 1
    assert compared > 300


def test_the_search_goes_on_where_it_stopped():
    """Slices far shorter than a round of the screening still come to its end, and to the anneals after it."""
    search = Search(larger(3, limited=False), seed=0, workers=1, most_stages=8)
    progress = Progress(60.0)
    while not search._count and not progress.done:
        search.run(progress, 0.01)
    assert search._count
    assert progress.schedule is not None
