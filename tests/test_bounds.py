"""Analytic bounds on cases worked out by hand; that none exceeds an optimum is in test_differential.py."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from octocp.bounds import BOUNDS, all_bounds, best_bound
from octocp.bounds.chain import chain
from octocp.bounds.energy import energy
from octocp.bounds.in_flight import in_flight
from octocp.bounds.load import averaged_heads, head_load_tail, work
from octocp.bounds.together import indivisible, shared_device
from octocp.costs import build_problem
from octocp.cpsat.assignment import assignment_bound
from octocp.cpsat.families import FAMILIES
from octocp.cpsat.joint import build_joint
from octocp.cpsat.run import run
from octocp.problem import Problem
from octocp.schema.files import load_instance
from tiny import problem


def shipped(name: str) -> Problem:
    return build_problem(load_instance(name))


# ---- published instances -------------------------------------------------------------------------


def test_nemotron_on_four_devices():
    """Total work over devices 85,194; with the four smallest waits, prefixes of F, averaged in: 85,612."""
    given = shipped("nemotron-nano-v2-9b-p4-m8")
    assert work(given).value == 85_194
    assert averaged_heads(given).value == 85_612
    assert best_bound(given).value >= 85_612


def test_nemotron_on_eight_devices():
    """The block with the LM head works alone with what precedes and follows it: 57,113."""
    given = shipped("nemotron-nano-v2-9b-p8-m8")
    found = indivisible(given)
    assert found.value == 57_113
    assert found.detail == "layers 56 to 57 on one device"
    assert best_bound(given).value == 57_113


# ---- work ----------------------------------------------------------------------------------------


def test_work_is_shared():
    """4 x (6 + 7) = 52 ticks on three devices: 17.33."""
    given = problem([(1, 2, 3), (2, 2, 3), (0, 0, 0)], devices=3, microbatches=4)
    assert work(given).value == 18


@pytest.mark.parametrize("objective", ["makespan", "span"])
def test_work_of_fixed_stages_is_the_largest_load(objective):
    """Loads 4 x 6 and 4 x 9 with everything fixed; shared, it would be 30."""
    rules = {"partition": [1, 1], "placement": "linear", "objective": objective}
    given = problem([(1, 2, 3), (2, 3, 4)], microbatches=4, **rules)
    assert (work(given).value, work(given).detail) == (36, "load of device 1")


def test_work_counts_the_overhead_of_the_least_number_of_stages():
    """Two stages, kinds F and B, M = 3: 3 x (10 + 2 x 2 x 1.5) = 48, over two devices."""
    given = problem([(2, 3), (2, 3)], microbatches=3, op_overhead_us=1500, split_backward=False)
    assert work(given).value == 24


def test_work_of_a_fixed_partition_rounds_stage_by_stage():
    """Each op is 2.5 or 3.5 + 1 of overhead... ceil(2 + 1.5) = 4 and ceil(3 + 1.5) = 5, twice, x 3, over two."""
    given = problem([(2, 3), (2, 3)], microbatches=3, op_overhead_us=1500, split_backward=False, partition=[1, 1])
    assert work(given).value == 27


# ---- averaged heads ------------------------------------------------------------------------------


def test_averaged_heads():
    """Work 2 x 18; the devices wait 0 and at least F of layer 0, 1: 37 / 2."""
    given = problem([(1, 2, 3), (1, 2, 3), (1, 2, 3)])
    assert averaged_heads(given).value == 19
    assert work(given).value == 18


def test_averaged_heads_with_transfers():
    """The second wait is F and the transfer after it: 1 + 9 after layer 0, 2 + 4 after layer 1."""
    kinds = {"a": {"ms": (1, 2, 3), "output_mb": 9}, "b": {"ms": (1, 2, 3), "output_mb": 4}}
    given = problem("aba", kinds, link={"bandwidth_gb_s": 1})
    assert averaged_heads(given).value == (36 + 6) / 2


def test_averaged_heads_take_the_boundaries_that_are_left():
    """Layers 0 and 1 kept together: the second wait is 2, as with the fixed cut at 2."""
    layers = [(1, 2, 3), (1, 2, 3), (2, 2, 2)]
    assert averaged_heads(problem(layers, keep_together=[[0, 1]])).value == 19
    assert averaged_heads(problem(layers, partition=[2, 1])).value == 19
    assert averaged_heads(problem(layers)).value == 19  # 37 / 2, rounded up


def test_averaged_heads_say_nothing_of_the_span():
    assert averaged_heads(problem([(1, 2, 3)] * 2, objective="span")).value == 0


# ---- head, load, tail ----------------------------------------------------------------------------

FIXED = {"partition": [1, 1], "placement": "linear", "microbatches": 3}
LAYERS = [(1, 1, 1), (3, 4, 2)]


def test_head_load_tail():
    """Device 1: 1 before, 3 x 7 of F and B, then B and W of stage 0: 24. With all its work instead of the tail: 28."""
    found = head_load_tail(problem(LAYERS, **FIXED))
    assert (found.value, found.detail) == (28, "device 1 from stage 1 on")
    assert head_load_tail(problem(LAYERS, objective="span", **FIXED)).value == 24


def test_head_load_tail_fused():
    """B carries W: 1 + 3 x 9 + 2."""
    assert head_load_tail(problem(LAYERS, split_backward=False, **FIXED)).value == 30


def test_head_load_tail_with_transfers():
    """A link of 5 before and after: 6 + 21 + 7."""
    assert head_load_tail(problem(LAYERS, link={"latency_us": 5000}, **FIXED)).value == 34


def test_head_load_tail_counts_from_the_lowest_stage():
    """Device 1 holds stages 1 and 2, 2 x (3 + 7): 1 + 20 + B of stage 0; device 0 works 2 x 2."""
    given = problem([(1, 1), (1, 2), (3, 4)], partition=[1, 1, 1], placement=[0, 1, 1], split_backward=False)
    assert head_load_tail(given).value == 1 + 20 + 1


def test_head_load_tail_needs_everything_fixed():
    assert head_load_tail(problem(LAYERS)).value == 0
    assert head_load_tail(problem(LAYERS, partition=[1, 1])).value == 0


# ---- indivisible and shared ----------------------------------------------------------------------

HEAVY = [(1, 2, 3), (5, 6, 4), (1, 1, 1)]


@pytest.mark.parametrize(
    ("more", "value"),
    [
        # F of layer 0, then 4 x (5 + 10), then B of layer 0 with its W inside, 5.
        ({"split_backward": False}, 66),
        # 1 + 4 x 11 + 2 + 3 = 50 with the tail; with all its work, 1 + 4 x 15.
        ({}, 61),
        # For the span 50, or its work alone.
        ({"objective": "span"}, 60),
        # Layers 1 and 2 as one: 1 + 4 x (6 + 12) + 5.
        ({"split_backward": False, "keep_together": [[1, 2]]}, 78),
        # A stage of a fixed partition is a run too: 4 x (6 + 15).
        ({"split_backward": False, "partition": [2, 1]}, 84),
    ],
)
def test_indivisible(more, value):
    assert indivisible(problem(HEAVY, microbatches=4, **more)).value == value


def test_indivisible_names_the_layer():
    assert indivisible(problem(HEAVY, microbatches=4)).detail == "layer 1 on one device"


def test_shared_device():
    """Layers 1 and 3: F of layer 0, 2 x (8 + 10), B of layer 0: 39. Alone, layer 3 gives 7 + 2 x 7 + 9 = 30."""
    layers = [(1, 2), (5, 6), (1, 1), (3, 4)]
    given = problem(layers, colocate=[[1, 3]], split_backward=False)
    assert shared_device(given).value == 39
    assert indivisible(given).value == 30
    assert shared_device(problem(layers, split_backward=False)).value == 0


def test_shared_device_counts_a_run_once():
    """Both layers lie in one run, which is counted once: 2 x (2 + 4)."""
    given = problem([(1, 2), (1, 2), (1, 1)], colocate=[[0, 1]], keep_together=[[0, 1]], split_backward=False)
    assert shared_device(given).value == 12


# ---- chain ---------------------------------------------------------------------------------------


def test_chain():
    """F 5, B 7, a link of 7 there and back, W of layer 0, 3: 29. For the span too."""
    for objective in ("makespan", "span"):
        given = problem([(1, 2, 3), (4, 5, 6)], link={"latency_us": 7000}, objective=objective)
        assert chain(given).value == 29


def test_chain_takes_the_cheapest_boundaries():
    """Three devices, so two crossings at least, at different boundaries: the two cheapest of 9, 1 and 4."""
    kinds = {name: {"ms": (1, 1), "output_mb": size} for name, size in zip("abcd", (9, 1, 4, 0), strict=True)}
    given = problem("abcd", kinds, devices=3, link={"bandwidth_gb_s": 1}, split_backward=False)
    assert chain(given).value == 8 + 2 * (1 + 4)


def test_chain_of_a_fixed_partition():
    """Overhead counts by stage: 2 x 2 x ceil(1 + 0.5); the boundary is the one of 9."""
    kinds = {"a": {"ms": (1, 1), "output_mb": 9}}
    given = problem("aa", kinds, partition=[1, 1], link={"bandwidth_gb_s": 1}, split_backward=False, op_overhead_us=500)
    assert chain(given).value == 8 + 18


def test_one_device_has_no_transfers():
    given = problem([(1, 2, 3), (4, 5, 6)], devices=1, link={"latency_us": 7000})
    assert chain(given).value == 5 + 7 + 3


# ---- in flight -----------------------------------------------------------------------------------


def test_in_flight_one_at_a_time():
    """Two layers, one per device, room for one microbatch each: each of the four goes up and down alone, 4 ticks."""
    kinds = {"a": {"ms": (1, 1), "activation_gb": 1}}
    given = problem("aa", kinds, memory=1, microbatches=4, max_per_device=1, split_backward=False)
    assert in_flight(given).value == 16


def test_in_flight_two_at_a_time():
    """Room for two: F(2) of stage 0 waits for B(0). Of five, the last pair's second F starts at 1 + 4, then 4 more:
    r = 0, q = 2, so 3 round trips of 4; the loads are 10 + 2. With two W of 1, one more W at the end."""
    kinds = {"a": {"ms": (1, 1), "activation_gb": 1}}
    given = problem("aa", kinds, memory=2, microbatches=5, max_per_device=1, split_backward=False)
    assert in_flight(given).value == 12
    split = {"a": {"ms": (1, 1, 1), "activation_gb": 1}}
    assert in_flight(problem("aa", split, memory=1, microbatches=4, max_per_device=1)).value == 17


def test_in_flight_chooses_the_partition():
    """Three layers, room for 4: with two layers first, two in flight there; with one layer first, four.

    Layers of F 1 and B 1, M = 4: first stage of two layers: r = 1, q = 1: 2 + 2 x 6 = 14. Of one layer: r = 3, q = 0:
    3 + 6 = 9, load 8; the second stage of two layers then bounds: 1 + 16 + 1 = 18, above 16 for two layers first.
    """
    kinds = {"a": {"ms": (1, 1), "activation_gb": 1}}
    given = problem("aaa", kinds, memory=4, microbatches=4, max_per_device=1, split_backward=False)
    assert in_flight(given).value == 16


def test_what_takes_no_time_holds_no_memory():
    """The last stage's F and B take no time, so its activation of 5 is never held, though only 1 would fit."""
    kinds = {"a": {"ms": (1, 1), "activation_gb": 1}, "b": {"ms": (0, 0), "activation_gb": 5}}
    given = problem("ab", kinds, memory=1, microbatches=3, max_per_device=1, split_backward=False)
    assert in_flight(given).value == 6
    assert run(build_joint(given), seconds=10, workers=1, seed=0).schedule.value == 6


def test_in_flight_needs_one_stage_per_device():
    kinds = {"a": {"ms": (1, 1), "activation_gb": 1}}
    given = problem("aaa", kinds, memory=1, microbatches=4, split_backward=False)
    assert in_flight(given).value == 0


def test_memory_over_time_bounds_where_devices_hold_many_stages():
    """Eight layers on 4 devices, room for 2 layers each: one microbatch at a time, so 16 ticks each."""
    kinds = {"a": {"ms": (1, 1), "activation_gb": 1}}
    given = problem("aaaaaaaa", kinds, devices=4, memory=2, microbatches=8, split_backward=False)
    tight = assignment_bound(given, known=0, upper=None, seconds=10).value
    loose = assignment_bound(replace(given, capacity=(None,) * 4), known=0, upper=None, seconds=10).value
    assert loose < 40
    assert 64 < tight <= 128


def test_warm_up_bounds_by_what_fits_before_the_first_backward():
    """Four layers of F, B, W 1 on 2 devices, room for 2 activations: 2 ticks of F before the first B.

    It comes at 5 at the earliest where the last layer is not: 3 ticks of waiting and 4 x 6 of work. With room for 6
    the device has F enough, and there is only the tick before its first F.
    """
    kinds = {"a": {"ms": (1, 1, 1), "activation_gb": 1}}
    given = problem("aaaa", kinds, devices=2, memory=2, microbatches=4)
    assert assignment_bound(given, known=0, upper=None, seconds=10).value == 27
    roomy = replace(given, capacity=(6 * given.capacity[0] // 2,) * 2)
    assert assignment_bound(roomy, known=0, upper=None, seconds=10).value == 25


def test_waits_of_arrivals_and_departures():
    """F and B of 1, 6, 6, 1 on 2 devices, M = 4. Split evenly, each device has 56 of work.

    With layers 0 and 2, a device has F for 4 ticks until layer 2 can be reached at 7, and the same at the end: 56 + 6.
    With layers 2 and 3 it waits 7 at either end; any other split has 96 of work on one device.
    """
    given = problem([(1, 1), (6, 6), (6, 6), (1, 1)], split_backward=False, microbatches=4)
    assert assignment_bound(given, known=0, upper=None, seconds=10, thorough=True).value == 62
    assert run(build_joint(given), seconds=20, workers=1, seed=0).bound == 62


# ---- energy --------------------------------------------------------------------------------------


def test_energy_by_hand():
    """Two layers of F 1, B 1 on two devices, M = 2. In the first tick only F of layer 0 runs: 1 of 2 ticks idle.

    In the last three, at most the B of layer 0, twice, and F and B of layer 1 before the last of them: 2 of 6 idle.
    So (8 + 1 + 2) / 2 = 5.5; the optimum is 6. (8 of work, one wait averaged in: 5.)
    """
    given = problem([(1, 1)] * 2, split_backward=False)
    assert energy(given).value == 6
    assert averaged_heads(given).value == 5


def test_energy_says_nothing_of_the_span_with_w():
    assert energy(problem([(1, 1, 1)] * 2, objective="span"), 100).value == 0


def random_case(seed: int) -> Problem:
    """Return a few layers on two or three devices, without memory limits."""
    draw = random.Random(seed)
    layers = draw.randint(2, 5)
    rules: dict[str, Any] = {
        "devices": draw.randint(2, min(3, layers)),
        "microbatches": draw.randint(2, 5),
        "split_backward": draw.random() < 0.6,
        "op_overhead_us": draw.choice([0, 0, 500]),
        "link": {"latency_us": draw.choice([0, 0, 1000])},
        "objective": draw.choice(["makespan", "makespan", "span"]),
        "max_per_device": draw.choice([1, 4, 4]),
    }
    if layers > rules["devices"] and draw.random() < 0.3:
        rules["keep_together"] = [[1, 2]] if layers > 2 else []
    if draw.random() < 0.2:
        rules["microbatches"] = [1.5] * rules["microbatches"]
    times = [(draw.randint(0, 6), draw.randint(0, 6), draw.randint(0, 5)) for _ in range(layers)]
    if draw.random() < 0.4:
        return problem(times, **rules)
    # Memory for one to three microbatches of an even share; weight parts and weights now and then.
    names = [chr(ord("a") + index) for index in range(layers)]
    kinds = {}
    for name, ms in zip(names, times, strict=True):
        kinds[name] = {"ms": ms, "activation_gb": draw.randint(1, 3)}
        if draw.random() < 0.3 and rules.get("split_backward", True):
            kinds[name]["weight_activation_gb"] = 1
        if draw.random() < 0.3:
            kinds[name]["static_gb"] = 1
    share = -(-sum(kind["activation_gb"] + kind.get("static_gb", 0) for kind in kinds.values()) // rules["devices"])
    return problem("".join(names), kinds, memory=share * draw.randint(1, 3) + draw.randint(1, 3), **rules)


@pytest.mark.parametrize("seed", range(40))
def test_no_bound_exceeds_the_optimum_of_the_bare_model(seed):
    """The model without any bound in it; with more microbatches than exhaustive search can take."""
    given = random_case(seed)
    bare = [family.name for family in FAMILIES if family.role == "redundant"]
    outcome = run(build_joint(given, without=bare), seconds=60, workers=1, seed=0)
    if outcome.status == "infeasible":
        assert given.has_memory_limit
        return
    assert outcome.status == "optimal"
    assert best_bound(given).value <= outcome.bound
    assert energy(given, outcome.bound).value <= outcome.bound
    for known in (0, best_bound(given).value, outcome.bound):
        for upper in (None, outcome.bound):
            found = assignment_bound(given, known=known, upper=upper, seconds=10, thorough=True)
            assert found.value <= outcome.bound


# ---- all together --------------------------------------------------------------------------------


def test_all_bounds_come_best_first():
    found = all_bounds(shipped("nemotron-nano-v2-9b-p4-m8"))
    assert len(found) >= len(BOUNDS)
    assert [bound.value for bound in found] == sorted((bound.value for bound in found), reverse=True)
    assert best_bound(shipped("nemotron-nano-v2-9b-p4-m8")) == found[0]
    assert all(bound.detail for bound in found)
