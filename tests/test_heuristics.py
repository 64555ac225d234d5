"""Heuristics against closed forms, published values and rules written apart from them."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octocp.costs import build_problem
from octocp.heuristics import HEURISTICS, SERIAL, Attempt, attempts, best_attempt
from octocp.heuristics.gpipe import GPIPE
from octocp.heuristics.interleaved import INTERLEAVED, interleaved
from octocp.heuristics.one_f_one_b import ONE_F_ONE_B
from octocp.heuristics.partition import balanced, uniform
from octocp.heuristics.zb_h1 import ZB_H1
from octocp.problem import B, F, Problem, W
from octocp.schedule import Layout, Op, Schedule
from octocp.schema.files import load_instance
from tiny import problem


def equal(devices: int, microbatches: int, times: tuple[int, int, int], **more) -> Problem:
    return problem([times] * devices, devices=devices, microbatches=microbatches, placement="linear", **more)


def run(heuristic, given: Problem) -> Schedule:
    [placement] = heuristic.placements(given)
    return heuristic.run(given, Layout(uniform(given, len(placement)), placement))


def idle(schedule: Schedule) -> int:
    """Return the idle time of a device where all are equally loaded."""
    layout, given = schedule.layout, schedule.problem
    load = int(layout.durations(given)[:, layout.stages_on(0)].sum())
    return schedule.makespan - load


# ---- closed forms --------------------------------------------------------------------------------

SIZES = [(P, M) for P in (2, 4, 8, 16) for M in (P, 2 * P, 3 * P + 1)]


@pytest.mark.parametrize(("P", "M"), SIZES)
@pytest.mark.parametrize("times", [(1, 1, 1), (5, 6, 4), (3, 7, 2), (4, 1, 9)])
@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("heuristic", [GPIPE, ONE_F_ONE_B])
def test_gpipe_and_1f1b_idle(heuristic, split, times, P, M):
    """(P - 1)(F + B + W), with W right after its B or inside it."""
    schedule = run(heuristic, equal(P, M, times, split_backward=split))
    assert idle(schedule) == (P - 1) * sum(times)


@pytest.mark.parametrize(("P", "M"), SIZES)
@pytest.mark.parametrize("times", [(1, 1, 1), (5, 6, 4), (6, 5, 5), (3, 7, 2), (3, 3, 0)])
def test_zb_h1_idle(times, P, M):
    """(P - 1)(F + B - W) for W <= F and W <= B."""
    forward, backward, weight = times
    assert idle(run(ZB_H1, equal(P, M, times))) == (P - 1) * (forward + backward - weight)


@pytest.mark.parametrize(("P", "M"), SIZES)
def test_zb_h1_keeps_the_memory_of_1f1b(P, M):
    """Activation 2, weight part 1: no stage passes 1F1B's first one, 2P."""
    kinds = {"a": {"ms": (5, 6, 4), "activation_gb": 2, "weight_activation_gb": 1}}
    given = problem("a" * P, kinds, devices=P, microbatches=M, placement="linear")
    peaks = run(ONE_F_ONE_B, given).peak_memory()
    assert peaks == [2 * min(M, P - stage) for stage in range(P)]
    assert max(run(ZB_H1, given).peak_memory()) == max(peaks) == 2 * P


def test_gpipe_holds_every_microbatch():
    kinds = {"a": {"ms": (5, 6, 4), "activation_gb": 2, "weight_activation_gb": 1}}
    given = problem("aa", kinds, microbatches=5, placement="linear")
    assert run(GPIPE, given).peak_memory() == [10, 10]


def test_serial_takes_one_microbatch_at_a_time():
    """Per microbatch a chain of 2 x (2 + 3), then W of stage 0, 1, before the next F."""
    kinds = {"a": {"ms": (2, 3, 1), "activation_gb": 2, "weight_activation_gb": 1}}
    given = problem("aa", kinds, microbatches=3, placement="linear")
    schedule = run(SERIAL, given)
    assert schedule.makespan == 3 * (10 + 1)
    assert schedule.peak_memory() == [2, 2]


def test_fewer_microbatches_than_stages():
    """One microbatch is a chain: 4 x (1 + 2 + 3) fused."""
    assert run(ONE_F_ONE_B, equal(4, 1, (1, 2, 3))).makespan == 24
    assert run(ZB_H1, equal(4, 1, (1, 2, 3))).makespan == 4 * (1 + 2) + 3


# ---- orders --------------------------------------------------------------------------------------


def text(order: list[Op]) -> str:
    return " ".join(f"{'FBW'[op.kind]}{op.stage},{op.microbatch}" for op in order)


def orders(heuristic, given: Problem) -> list[str]:
    [placement] = heuristic.placements(given)
    return [text(row) for row in heuristic.orders(given, Layout(uniform(given, len(placement)), placement))]


def test_1f1b_by_hand():
    assert orders(ONE_F_ONE_B, equal(3, 4, (1, 1, 1), split_backward=False)) == [
        "F0,0 F0,1 F0,2 B0,0 F0,3 B0,1 B0,2 B0,3",
        "F1,0 F1,1 B1,0 F1,2 B1,1 F1,3 B1,2 B1,3",
        "F2,0 B2,0 F2,1 B2,1 F2,2 B2,2 F2,3 B2,3",
    ]


def test_zb_h1_by_hand():
    assert orders(ZB_H1, equal(2, 3, (1, 1, 1))) == [
        "F0,0 F0,1 B0,0 W0,0 F0,2 B0,1 W0,1 B0,2 W0,2",
        "F1,0 B1,0 F1,1 B1,1 W1,0 F1,2 B1,2 W1,1 W1,2",
    ]


def test_gpipe_by_hand_on_a_fixed_placement():
    given = problem([(1, 1, 1)] * 3, placement=[0, 1, 0])
    assert orders(GPIPE, given) == [
        "F0,0 F0,1 F2,0 F2,1 B2,0 W2,0 B2,1 W2,1 B0,0 W0,0 B0,1 W0,1",
        "F1,0 F1,1 B1,0 W1,0 B1,1 W1,1",
    ]


def test_interleaved_by_hand():
    """Two devices, two chunks, four microbatches: warm-up 2 (2 - 1 - r) + 2 forwards."""
    given = problem([(1, 1)] * 4, microbatches=4, placement="interleaved", count=4, split_backward=False)
    assert orders(INTERLEAVED, given) == [
        "F0,0 F0,1 F2,0 F2,1 F0,2 B2,0 F0,3 B2,1 F2,2 B0,0 F2,3 B0,1 B2,2 B2,3 B0,2 B0,3",
        "F1,0 F1,1 F3,0 B3,0 F3,1 B3,1 F1,2 B1,0 F1,3 B1,1 F3,2 B3,2 F3,3 B3,3 B1,2 B1,3",
    ]


def megatron(rank: int, devices: int, chunks: int, microbatches: int) -> list[tuple[str, int, int]]:
    """The published rule, by virtual microbatch number: k-th forward is of chunk (k mod PV) div P.

    Backward chunks count down; the microbatch is (k div PV) P + k mod P.
    """

    def forward(k: int) -> tuple[str, int, int]:
        return "F", k % (devices * chunks) // devices, k // (devices * chunks) * devices + k % devices

    def backward(k: int) -> tuple[str, int, int]:
        _, chunk, microbatch = forward(k)
        return "B", chunks - 1 - chunk, microbatch

    total = microbatches * chunks
    warm_up = min(total, (devices - rank - 1) * 2 + (chunks - 1) * devices)
    row = [forward(k) for k in range(warm_up)]
    for k in range(total - warm_up):
        row += [forward(k + warm_up), backward(k)]
    return row + [backward(k) for k in range(total - warm_up, total)]


@pytest.mark.parametrize(("P", "V", "M"), [(2, 2, 2), (2, 3, 4), (4, 2, 8), (4, 3, 4), (4, 4, 12), (8, 2, 16)])
def test_interleaved_equals_the_published_rule(P, V, M):
    given = problem(
        "a" * (P * V), {"a": (1, 1)}, devices=P, microbatches=M, placement="interleaved", split_backward=False
    )
    layout = Layout(tuple(range(P * V + 1)), given.placement_for(P * V))
    for rank, row in enumerate(interleaved(given, layout)):
        found = [("FBW"[op.kind], op.stage // P, op.microbatch) for op in row]
        assert found == megatron(rank, P, V, M)
        assert {op.stage % P for op in row} == {rank}


@pytest.mark.parametrize(("P", "V", "M"), [(2, 2, 4), (4, 2, 8), (4, 4, 8)])
def test_interleaved_divides_the_bubble_by_the_chunks(P, V, M):
    """Chunks of a V-th: idle (P - 1)(F + B) / V."""
    layers = problem(
        "a" * (P * V), {"a": (4, 8)}, devices=P, microbatches=M, placement="interleaved", count=P * V,
        split_backward=False,
    )  # fmt: skip
    assert idle(run(INTERLEAVED, layers)) == (P - 1) * 12


# ---- partition rules -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"),
    [
        (52, 8, (7, 7, 7, 7, 6, 6, 6, 6)),
        (8, 4, (2, 2, 2, 2)),
        (5, 4, (2, 1, 1, 1)),
        (3, 3, (1, 1, 1)),
        (7, 1, (7,)),
    ],
)
def test_uniform_puts_the_remainder_first(layers, stages, sizes):
    given = problem("a" * layers, {"a": (1, 1, 1)}, devices=1, max_per_device=None)
    assert Layout(uniform(given, stages), (0,) * stages).partition == sizes


def test_uniform_counts_what_is_kept_together_as_one():
    """58 layers, the first two and the last two as one: 56 units on 4, so 15, 14, 14, 15 layers."""
    given = problem("a" * 58, {"a": (1, 1, 1)}, devices=4, keep_together=[[0, 1], [56, 57]])
    assert Layout(uniform(given, 4), (0, 1, 2, 3)).partition == (15, 14, 14, 15)


def test_a_fixed_partition_is_kept():
    given = problem("a" * 6, {"a": (1, 1, 1)}, partition=[1, 4, 1])
    assert uniform(given, 3) == balanced(given, 3) == (0, 1, 5, 6)


costs = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=9)


@settings(max_examples=300, deadline=None)
@given(costs, st.integers(1, 9), st.data())
def test_balanced_is_optimal(layers, stages, data):
    """Least maximum over all partitions, and among those the least sum of squares."""
    first = data.draw(st.integers(0, len(layers) - 2))
    last = data.draw(st.integers(first, len(layers) - 1))
    given = problem(layers, devices=1, keep_together=[[first, last]], max_per_device=None)
    edges = [begin for begin, _ in given.units[1:]]
    stages = min(stages, len(given.units))

    def rank(bounds: tuple[int, ...]) -> tuple[int, int]:
        loads = [sum(map(sum, layers[b:e])) for b, e in zip(bounds, bounds[1:], strict=False)]
        return max(loads), sum(load * load for load in loads)

    found = balanced(given, stages)
    assert len(found) == stages + 1
    assert set(found[1:-1]) <= set(edges)
    assert rank(found) == min(rank((0, *cut, len(layers))) for cut in combinations(edges, stages - 1))


def test_balanced_evens_out_what_the_maximum_leaves_open():
    """The last layer of 29 is the maximum anyway, so 27 18 6 26 beats 4 23 24 26, whose own maximum is smaller."""
    layers = [(n, 0, 0) for n in (4, 23, 18, 6, 26, 29)]
    assert balanced(problem(layers, devices=1, max_per_device=None), 5) == (0, 2, 3, 4, 5, 6)


# ---- published values ----------------------------------------------------------------------------


def shipped(name: str, **training) -> Problem:
    loaded = load_instance(name)
    return build_problem(loaded.model_copy(update={"training": loaded.training.model_copy(update=training)}))


def value(heuristic, given: Problem, rule: str = "uniform") -> int:
    [found] = [a for a in attempts(heuristic, given) if a.rule == rule]
    assert found.schedule is not None
    return found.schedule.makespan


# All 36 rows are in test_catalogue.py, on orders written there; these go through the heuristic and its partition rule.
@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("llama3-8b-p8-m16", 73257),
        ("nemotron-h-4b-p4-m8", 47144),
        ("nemotron-nano-v2-9b-p4-m8", 133121),
        ("nemotron-nano-v2-9b-p8-m16", 159612),
        ("jamba-20b-p8-m8", 59304),
        ("llama3-32b-p4-m8", 197233),
        ("llama3-32b-p8-m16", 225985),
        ("jamba-100b-p4-m16", 649721),
    ],
)
def test_1f1b_uniform_column(name, published):
    assert value(ONE_F_ONE_B, shipped(name, split_backward=False)) == published


def test_nemotron_1f1b_is_the_same_split_or_fused():
    """W right after B, and the gradient handed on when W ends: as a backward that carries W."""
    assert value(ONE_F_ONE_B, shipped("nemotron-nano-v2-9b-p4-m8")) == 133121


# ---- attempts ------------------------------------------------------------------------------------


def only(heuristic, given: Problem) -> Attempt:
    [found] = attempts(heuristic, given)
    return found


@pytest.mark.parametrize(
    ("heuristic", "change", "reason"),
    [
        (ZB_H1, {"split_backward": False}, "needs split_backward: true"),
        (ZB_H1, {"count": 3}, "needs one stage per device; the instance asks for at least 3 stages"),
        (ONE_F_ONE_B, {"count": 4}, "needs one stage per device"),
        (GPIPE, {"count": 3}, "3 stages and leaves their devices open"),
        (INTERLEAVED, {"microbatches": 3}, "3 is not a multiple of 2"),
        (INTERLEAVED, {"devices": 1}, "more than one device"),
        (INTERLEAVED, {"max_per_device": 1}, "allows 2 stages on 2 devices"),
        (INTERLEAVED, {"placement": "wave"}, "with wave placement"),
        (INTERLEAVED, {"count": 3}, "same number of stages"),
    ],
)
def test_refusals_say_why(heuristic, change, reason):
    found = only(heuristic, problem([(1, 1, 1)] * 6, **change))
    assert found.status == "not-applicable"
    assert found.schedule is None
    assert reason in found.reason


def test_what_breaks_a_stage_rule_is_not_applicable():
    found = list(attempts(ONE_F_ONE_B, problem([(1, 1, 1)] * 4, colocate=[[0, 3]])))
    assert {attempt.status for attempt in found} == {"not-applicable"}
    assert found[0].reason == "layers [0, 3] must share a device"


def test_what_breaks_a_memory_limit_says_by_how_much():
    """Device 0 of 1F1B holds two microbatches of 2 GB beside 1 GB."""
    kinds = {"a": {"ms": (1, 1, 1), "static_gb": 1, "activation_gb": 2}}
    found = only(ONE_F_ONE_B, problem("aa", kinds, memory=4.5))
    assert found.status == "infeasible"
    assert found.schedule is not None
    assert found.reason == "device 0 needs 5 GB; its limit is 4.5 GB: 0.5 GB too much"


def test_both_partition_rules_are_tried_once_each():
    uneven = problem([(1, 1, 1), (1, 1, 1), (1, 1, 1), (9, 9, 9)])
    assert [attempt.rule for attempt in attempts(ONE_F_ONE_B, uneven)] == ["uniform", "balanced"]
    even = problem([(1, 1, 1)] * 4)
    assert [attempt.rule for attempt in attempts(ONE_F_ONE_B, even)] == ["uniform"]


def test_the_best_attempt():
    uneven = problem([(1, 1, 1), (1, 1, 1), (1, 1, 1), (9, 9, 9)])
    found = list(attempts(ONE_F_ONE_B, uneven))
    assert best_attempt(found).rule == "balanced"
    over = Attempt("x", "uniform", "infeasible")
    refused = Attempt("x", "", "not-applicable")
    assert best_attempt([refused, over]) is over
    assert best_attempt([refused]) is refused


def test_every_heuristic_covers_every_op_once():
    for heuristic in (*HEURISTICS, SERIAL):
        for attempt in attempts(heuristic, problem([(2, 3, 1)] * 8, devices=2, microbatches=4)):
            assert attempt.schedule is not None
            kinds = [op.kind for row in attempt.schedule.orders() for op in row]
            size = attempt.schedule.layout.stages * 4
            assert [kinds.count(kind) for kind in (F, B, W)] == [size] * 3
