"""The timing pass: orders to earliest starts, span compression, and what a schedule says of itself."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from octocp.checker import check_plan
from octocp.costs import build_problem
from octocp.decode import to_plan
from octocp.errors import InfeasibleError
from octocp.problem import B, F, Problem, W
from octocp.schedule import Layout, Op, Schedule
from octocp.timing import DeadlockError, time_orders
from oracle import legal_layouts
from random_instances import random_instance
from tiny import instance, problem


def ops(text: str) -> list[Op]:
    """Read "F0,1 B0,1": kind, stage, microbatch."""
    return [Op("FBW".index(word[0]), *map(int, word[1:].split(","))) for word in text.split()]


def starts(schedule: Schedule) -> dict[str, int]:
    kinds, stages, microbatches = schedule.start.shape
    every = product(range(kinds), range(stages), range(microbatches))
    return {f"{'FBW'[k]}{s},{m}": int(schedule.start[k, s, m]) for k, s, m in every}


def random_orders(given: Problem, layout: Layout, draw: random.Random) -> list[list[Op]]:
    """Return per-device orders that cannot deadlock: a random topological order, dealt out."""
    waits: dict[Op, int] = {}
    following: dict[Op, list[Op]] = {}
    last = layout.stages - 1
    for m, s in product(range(given.n_microbatches), range(layout.stages)):
        edges = [(Op(F, s, m), Op(B, s, m))]
        if s < last:
            edges += [(Op(F, s, m), Op(F, s + 1, m)), (Op(B, s + 1, m), Op(B, s, m))]
        if given.split:
            edges.append((Op(B, s, m), Op(W, s, m)))
        for one, other in edges:
            following.setdefault(one, []).append(other)
            waits.setdefault(one, 0)
            waits[other] = waits.get(other, 0) + 1
    orders: list[list[Op]] = [[] for _ in range(given.n_devices)]
    free = sorted(op for op, count in waits.items() if not count)
    while free:
        op = free.pop(draw.randrange(len(free)))
        orders[layout.placement[op.stage]].append(op)
        for other in following.get(op, ()):
            waits[other] -= 1
            if not waits[other]:
                free.append(other)
    return orders


def random_problem(seed: int, max_ops: int = 36) -> tuple[Problem, Layout]:
    """Return a random problem with a random legal layout; hypothesis skips those without."""
    try:
        given = build_problem(random_instance(seed, max_ops))
    except InfeasibleError:
        assume(False)
    layouts = list(legal_layouts(given))
    assume(layouts)
    return given, random.Random(seed).choice(layouts)


# ---- earliest starts -----------------------------------------------------------------------------

TWO = Layout((0, 1, 2), (0, 1))
ORDERS_1F1B = [ops("F0,0 F0,1 B0,0 W0,0 B0,1 W0,1"), ops("F1,0 B1,0 W1,0 F1,1 B1,1 W1,1")]


def test_two_devices_by_hand():
    """F 2, B 3, W 1 on both stages, 1F1B.

    Device 1: F 2-4, B 4-7, W 7-8, F 8-10, B 10-13, W 13-14. Device 0: F 0-2, 2-4, B 7-10 (its gradient comes
    at 7), W 10-11, B 13-16, W 16-17.
    """
    schedule = time_orders(problem([(2, 3, 1)] * 2), TWO, ORDERS_1F1B)
    assert starts(schedule) == {
        "F0,0": 0, "F0,1": 2, "B0,0": 7, "W0,0": 10, "B0,1": 13, "W0,1": 16,
        "F1,0": 2, "B1,0": 4, "W1,0": 7, "F1,1": 8, "B1,1": 10, "W1,1": 13,
    }  # fmt: skip
    assert (schedule.makespan, schedule.span, schedule.value) == (17, 17, 17)


def test_a_fused_backward_hands_the_gradient_on_when_w_ends():
    """As above, but B of stage 0 waits for W of stage 1: at 8 instead of 7, and at 14 instead of 13."""
    schedule = time_orders(problem([(2, 3, 1)] * 2), TWO, ORDERS_1F1B, fused=True)
    found = starts(schedule)
    assert (found["B0,0"], found["B0,1"]) == (8, 14)
    assert schedule.makespan == 18


def test_fused_changes_nothing_without_split():
    given = problem([(2, 3, 1)] * 2, split_backward=False)
    orders = [[op for op in row if op.kind != W] for row in ORDERS_1F1B]
    fused, plain = (time_orders(given, TWO, orders, fused=flag) for flag in (True, False))
    assert np.array_equal(fused.start, plain.start)
    assert fused.makespan == 18  # B lasts 4: as fused above


def test_delays_both_ways():
    """A link of 5: F of stage 1 starts at 2 + 5 = 7, B of stage 0 at 12 + 5 = 17."""
    given = problem([(2, 3, 1)] * 2, microbatches=1, link={"latency_us": 5000})
    found = starts(time_orders(given, TWO, [ops("F0,0 B0,0 W0,0"), ops("F1,0 B1,0 W1,0")]))
    assert found == {"F0,0": 0, "F1,0": 7, "B1,0": 9, "W1,0": 12, "B0,0": 17, "W0,0": 20}


def test_two_stages_on_one_device_have_no_delay():
    given = problem([(1, 1, 1)] * 3, microbatches=1, link={"latency_us": 5000}, placement=[0, 0, 1])
    orders = [ops("F0,0 F1,0 B1,0 W1,0 B0,0 W0,0"), ops("F2,0 B2,0 W2,0")]
    found = starts(time_orders(given, Layout((0, 1, 2, 3), (0, 0, 1)), orders))
    assert (found["F1,0"], found["F2,0"], found["B1,0"], found["B0,0"]) == (1, 7, 14, 16)


def test_the_order_decides_not_the_arrival():
    """Device 1 runs W before F of microbatch 1 although F has long arrived."""
    orders = [ORDERS_1F1B[0], ops("F1,0 F1,1 B1,0 B1,1 W1,1 W1,0")]
    found = starts(time_orders(problem([(2, 3, 1)] * 2), TWO, orders))
    assert (found["F1,1"], found["B1,0"], found["B1,1"], found["W1,1"], found["W1,0"]) == (4, 6, 9, 12, 13)


# ---- what is refused -----------------------------------------------------------------------------


def test_a_deadlock_names_devices_and_ops():
    """Device 0 runs B of microbatch 1 before its F of microbatch 0; device 1 waits for that one first."""
    orders = [ops("F0,1 B0,1 W0,1 F0,0 B0,0 W0,0"), ops("F1,0 B1,0 W1,0 F1,1 B1,1 W1,1")]
    with pytest.raises(DeadlockError) as caught:
        time_orders(problem([(1, 1, 1)] * 2), TWO, orders)
    assert str(caught.value) == (
        "the orders wait for each other: device 0 at B of stage 0, microbatch 1, device 1 at F of stage 1, microbatch 0"
    )


def test_a_backward_before_its_forward_is_a_deadlock():
    orders = [ops("B0,0 F0,0"), ops("F1,0 B1,0")]
    with pytest.raises(DeadlockError, match="device 0 at B of stage 0, microbatch 0"):
        time_orders(problem([(1, 1)] * 2, microbatches=1, split_backward=False), TWO, orders)


def test_a_device_that_is_done_is_not_named():
    orders = [ops("F0,0 W0,0 B0,0"), ops("F1,0 B1,0 W1,0")]
    with pytest.raises(DeadlockError) as caught:
        time_orders(problem([(1, 1, 1)] * 2, microbatches=1), TWO, orders)
    assert "device 1" not in str(caught.value)


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ("F0,0 B0,0", "F1,0", "3 ops in the orders; 4 expected"),
        ("F0,0 B0,0 B0,0", "F1,0 B1,0", "given twice"),
        ("F0,0 B0,0 F1,0", "B1,0", "is on device 0, its stage on 1"),
        ("", "", "0 ops in the orders"),
    ],
)
def test_orders_are_validated(first, second, told):
    given = problem([(1, 1)] * 2, microbatches=1, split_backward=False)
    with pytest.raises(ValueError, match=told):
        time_orders(given, TWO, [ops(first), ops(second)])


# ---- properties ----------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6))
def test_starts_are_the_least_fixpoint(seed):
    """Every op starts at 0, when a predecessor's result arrives, or when its device is free: nothing later."""
    given, layout = random_problem(seed)
    given = given if given.objective == "makespan" else _with_objective(given, "makespan")
    orders = random_orders(given, layout, random.Random(seed))
    schedule = time_orders(given, layout, orders)
    start, end = schedule.start, schedule.end
    for row in orders:
        for before, op in zip([None, *row], row, strict=False):
            reasons = [0, 0 if before is None else int(end[before])]
            kind, stage, m = op
            if kind == F and stage:
                reasons.append(int(end[F, stage - 1, m]) + _delay(given, layout, stage, m))
            if kind == B:
                reasons.append(int(end[F, stage, m]))
                if stage < layout.stages - 1:
                    reasons.append(int(end[B, stage + 1, m]) + _delay(given, layout, stage + 1, m))
            if kind == W:
                reasons.append(int(end[B, stage, m]))
            assert int(start[op]) == max(reasons)


def _delay(given: Problem, layout: Layout, stage: int, m: int) -> int:
    return given.delay(layout.bounds[stage], layout.placement[stage - 1], layout.placement[stage], m)


def _with_objective(given: Problem, objective: str) -> Problem:
    return replace(given, objective=objective)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_span_compression_is_optimal_for_the_orders(seed):
    """Against trying every target: first starts may only rise, so the least starts for a target settle it."""
    given, layout = random_problem(seed, 18)
    given = _with_objective(given, "span")
    orders = random_orders(given, layout, random.Random(seed))
    schedule = time_orders(given, layout, orders)
    assert schedule.span == _least_span(given, layout, orders)
    early = time_orders(_with_objective(given, "makespan"), layout, orders)
    assert schedule.span <= early.span
    _assert_precedence(given, layout, orders, schedule)


def _constraints(given: Problem, layout: Layout, orders: list[list[Op]]) -> list[tuple[Op, Op, int]]:
    """Return (op, other, least start difference) by the semantics and the orders."""
    length = layout.durations(given)
    found = []
    for m, s in product(range(given.n_microbatches), range(layout.stages)):
        found.append((Op(F, s, m), Op(B, s, m), int(length[F, s, m])))
        if given.split:
            found.append((Op(B, s, m), Op(W, s, m), int(length[B, s, m])))
        if s:
            wire = _delay(given, layout, s, m)
            found.append((Op(F, s - 1, m), Op(F, s, m), int(length[F, s - 1, m]) + wire))
            found.append((Op(B, s, m), Op(B, s - 1, m), int(length[B, s, m]) + wire))
    for row in orders:
        found += [(one, other, int(length[one])) for one, other in zip(row, row[1:], strict=False)]
    return found


def _assert_precedence(given: Problem, layout: Layout, orders: list[list[Op]], schedule: Schedule) -> None:
    for one, other, least in _constraints(given, layout, orders):
        assert schedule.start[other] - schedule.start[one] >= least


def _least_span(given: Problem, layout: Layout, orders: list[list[Op]]) -> int:
    """Try targets one by one, each by Bellman-Ford over difference constraints."""
    rules = _constraints(given, layout, orders)
    length = layout.durations(given)
    load = max(sum(int(length[op]) for op in row) for row in orders)
    for target in range(load, given.serial_ticks + 1):
        back = [(row[-1], row[0], int(length[row[-1]]) - target) for row in orders]
        start = {op: 0 for row in orders for op in row}
        for _ in range(len(start) + 1):
            changed = False
            for one, other, least in (*rules, *back):
                if start[one] + least > start[other]:
                    start[other], changed = start[one] + least, True
            if not changed:
                return target
    raise AssertionError("no span is possible")


def test_span_compression_by_hand():
    """One microbatch, two equal stages F 1, B 1: device 0 waits for device 1 whatever its first start: span 4."""
    given = problem([(1, 1)] * 2, microbatches=1, split_backward=False, objective="span")
    schedule = time_orders(given, TWO, [ops("F0,0 B0,0"), ops("F1,0 B1,0")])
    assert schedule.span == 4


def test_span_delays_the_first_ops():
    """Device 1 idles between its two F when it starts early; delaying its first F takes that out.

    F of stage 0 lasts 10, everything else 1. Device 1: F 10-11 and F 20-21, so F, F, B, B from 19 to 23.
    """
    given = problem([(10, 1), (1, 1)], split_backward=False, objective="span")
    orders = [ops("F0,0 F0,1 B0,0 B0,1"), ops("F1,0 F1,1 B1,0 B1,1")]
    schedule = time_orders(given, TWO, orders)
    found = starts(schedule)
    used = max(found["B1,1"] + 1 - found["F1,0"], found["B0,1"] + 1 - found["F0,0"])
    assert schedule.span == used == 24  # device 0: F, F until 20, F1,1 B1,0 until 22, B 22-23, B1,1 to 23, B 23-24
    tight = time_orders(problem([(10, 1), (1, 1)], split_backward=False), TWO, orders)
    assert tight.makespan == 24


# ---- schedules -----------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6))
def test_microbatches_can_be_sorted_for_free(seed):
    """Shuffle the microbatches of a valid schedule, then sort: still valid, same value, no more memory."""
    given, layout = random_problem(seed)
    draw = random.Random(seed)
    schedule = time_orders(given, layout, random_orders(given, layout, draw))
    shuffle = draw.sample(range(given.n_microbatches), given.n_microbatches)
    mixed = Schedule(given, layout, schedule.start[:, :, shuffle])
    fifo = mixed.relabelled_fifo()
    assert (np.diff(fifo.start, axis=2) >= 0).all()
    assert (fifo.makespan, fifo.span) == (mixed.makespan, mixed.span)
    assert all(one <= other for one, other in zip(fifo.peak_memory(), mixed.peak_memory(), strict=True))
    assume(mixed.memory_excess() is None)
    for one in (mixed, fifo):
        plan = to_plan(one, random_instance(seed), method="test", lower_bound=0)
        assert check_plan(plan) == []


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6))
def test_peak_memory_equals_the_checkers(seed):
    """The checker recomputes peaks from the plan alone and refuses any difference; limits aside."""
    given, layout = random_problem(seed)
    schedule = time_orders(given, layout, random_orders(given, layout, random.Random(seed)))
    unlimited = random_instance(seed)
    devices = unlimited.cluster.devices
    if not isinstance(devices, int):
        devices = [device.model_copy(update={"memory_gb": None}) for device in devices]
    cluster = unlimited.cluster.model_copy(update={"memory_gb": None, "devices": devices})
    unlimited = unlimited.model_copy(update={"cluster": cluster})
    plan = to_plan(schedule, unlimited, method="test", lower_bound=0)
    assert check_plan(plan) == []
    wrong = plan.model_copy(update={"peak_memory_gb": [peak + 0.01 for peak in plan.peak_memory_gb]})
    assert check_plan(wrong) != []
    over = schedule.memory_excess()
    limited = check_plan(to_plan(schedule, random_instance(seed), method="test", lower_bound=0))
    assert bool(over) == bool(limited)


def test_what_is_freed_can_be_taken_at_once():
    """One device, F 1 B 1, activation 1: F B F B holds 1, F F B B holds 2."""
    kinds = {"a": {"ms": (1, 1), "activation_gb": 1, "static_gb": 3}}
    given = problem("a", kinds, devices=1, split_backward=False, memory=4)
    layout = Layout((0, 1), (0,))
    alternating = time_orders(given, layout, [ops("F0,0 B0,0 F0,1 B0,1")])
    assert (alternating.peak_memory(), alternating.memory_excess()) == ([4], None)
    piled = time_orders(given, layout, [ops("F0,0 F0,1 B0,0 B0,1")])
    assert (piled.peak_memory(), piled.memory_excess()) == ([5], (0, 5, 4))


def test_the_weight_part_is_held_until_w():
    """Activation 3, weight part 1: after F B, F B, B's input is gone, two weight parts and one F remain: 1 + 1 + 3."""
    kinds = {"a": {"ms": (1, 1, 1), "activation_gb": 3, "weight_activation_gb": 1}}
    given = problem("a", kinds, devices=1, microbatches=3)
    schedule = time_orders(given, Layout((0, 1), (0,)), [ops("F0,0 B0,0 F0,1 B0,1 F0,2 B0,2 W0,0 W0,1 W0,2")])
    assert schedule.peak_memory() == [5]


def test_the_device_most_over_its_limit_is_reported():
    kinds = {"a": {"ms": (1, 1), "static_gb": 2}, "b": {"ms": (1, 1), "static_gb": 7}}
    given = problem("ab", kinds, devices=2, microbatches=1, split_backward=False, memory=1)
    schedule = time_orders(given, TWO, [ops("F0,0 B0,0"), ops("F1,0 B1,0")])
    assert schedule.memory_excess() == (1, 7, 1)


def test_orders_come_back_from_a_schedule():
    schedule = time_orders(problem([(2, 3, 1)] * 2), TWO, ORDERS_1F1B)
    assert schedule.orders() == ORDERS_1F1B


def test_ops_of_length_zero_keep_their_place_in_the_order():
    """W of length 0 ends where it starts, at the end of its B: the order puts it after B and before what follows."""
    given = problem([(1, 1, 0)], devices=1)
    row = ops("F0,0 B0,0 W0,0 F0,1 B0,1 W0,1")
    assert time_orders(given, Layout((0, 1), (0,)), [row]).orders() == [row]


# ---- layouts -------------------------------------------------------------------------------------


def test_layout_queries():
    layout = Layout((0, 2, 3, 6), (1, 0, 1))
    assert layout.stages == 3
    assert layout.partition == (2, 1, 3)
    assert layout.stages_on(1) == [0, 2]
    assert [layout.device_of_layer(layer) for layer in range(6)] == [1, 1, 0, 1, 1, 1]


def test_canonical_numbers_alike_devices_by_first_use():
    devices = [{"memory_gb": 1}, {"memory_gb": 2}, {"memory_gb": 1}]
    given = problem([(1, 1, 1)] * 4, devices=devices)
    assert Layout((0, 1, 2, 3, 4), (2, 1, 0, 2)).canonical(given).placement == (0, 1, 2, 0)
    fixed = problem([(1, 1, 1)] * 2, placement=[1, 0])
    assert Layout((0, 1, 2), (1, 0)).canonical(fixed).placement == (1, 0)


@pytest.mark.parametrize(
    ("rules", "bounds", "placement", "told"),
    [
        ({}, (0, 2, 4), (0, 1), None),
        ({"count": 3}, (0, 2, 4), (0, 1), "2 stages; 3 to 3 are allowed"),
        ({"partition": [1, 3]}, (0, 2, 4), (0, 1), "another partition"),
        ({"keep_together": [[1, 2]]}, (0, 2, 4), (0, 1), "kept together"),
        ({"placement": "linear"}, (0, 2, 4), (1, 0), r"another placement \(linear\)"),
        ({"placement": "wave"}, (0, 1, 2, 4), (0, 1, 0), r"another placement \(wave\)"),
        ({}, (0, 2, 4), (1, 1), "device 0 holds no stage"),
        ({"max_per_device": 2}, (0, 1, 2, 3, 4), (0, 0, 0, 1), "device 0 holds 3 stages; at most 2"),
        ({"colocate": [[0, 3]]}, (0, 2, 4), (0, 1), r"layers \[0, 3\] must share a device"),
    ],
)
def test_layout_violations(rules, bounds, placement, told):
    given = problem([(1, 1, 1)] * 4, **rules)
    found = Layout(bounds, placement).violation(given)
    if told is None:
        assert found is None
    else:
        assert found is not None
        with pytest.raises(AssertionError, match=told):
            _fail(found)


def _fail(text: str) -> None:
    raise AssertionError(text)


def test_the_decoder_writes_what_the_schedule_says():
    made = instance([(2, 3, 1)] * 2, memory=1)
    schedule = time_orders(build_problem(made), TWO, ORDERS_1F1B)
    plan = to_plan(schedule, made, method="test", lower_bound=17)
    assert plan.status == "optimal"
    assert (plan.partition, plan.placement, plan.makespan, plan.span) == ([1, 1], [0, 1], 17, 17)
    assert plan.peak_memory_gb == [0, 0]
    assert [(op.kind, op.stage, op.microbatch, op.device, op.start, op.end) for op in plan.ops[:2]] == [
        ("F", 0, 0, 0, 0, 2),
        ("F", 0, 1, 0, 2, 4),
    ]
    assert to_plan(schedule, made, method="test", lower_bound=16).status == "feasible"
    assert check_plan(plan) == []
