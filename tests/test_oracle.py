"""The oracle against answers found by hand and against two naive searches; the random instances."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from naive_search import arcs_of, by_permutations, by_start_times, memory_fits, ops_of, permutations_to_try
from octocp.costs import build_problem
from octocp.problem import Problem
from octocp.schedule import Schedule
from octocp.schema import Instance
from oracle import Answer, OutOfScopeError, legal_layouts, optimum
from random_instances import FEATURES, features, random_instance, seeds_by_feature

SEEDS = range(300)


def problem(layers: str, kinds: dict[str, Any], devices: Any = 2, microbatches: int = 2, **more: Any) -> Problem:
    """Build a problem with a tick of 1 ms: a kind is (F, B, W), or a mapping with those as `ms`.

    Further keywords: `memory`, `link`, `split`, `objective`, and anything of `stages`.
    """
    made = {}
    for name, costs in kinds.items():
        given = costs if isinstance(costs, dict) else {"ms": costs}
        times = dict(zip(("forward_ms", "backward_input_ms", "backward_weight_ms"), given["ms"], strict=False))
        made[name] = times | {key: value for key, value in given.items() if key != "ms"}
    data = {
        "format": "octocp.instance/1",
        "name": "by hand",
        "model": {"name": "by hand", "layers": layers, "kinds": made},
        "cluster": {"devices": devices, "memory_gb": more.pop("memory", None), "link": more.pop("link", {})},
        "microbatches": microbatches,
        "training": {"split_backward": more.pop("split", True)},
        "objective": more.pop("objective", "makespan"),
        "tick_us": 1000,
        "stages": more,
    }
    return build_problem(Instance.model_validate(data))


def value(answer: Answer | None) -> int | None:
    """Return the value of an answer, None for none."""
    return None if answer is None else answer.value


def assert_legal(given: Problem, answer: Answer) -> None:
    """Check an answer against the semantics: precedence, one op at a time, memory, value."""
    length = ops_of(given, answer.layout)
    start = {op: int(answer.start[op]) for op in length}
    assert min(start.values()) >= 0
    for one, other, delay in arcs_of(given, answer.layout):
        assert start[one] + length[one] + delay <= start[other]
    for device in range(given.n_devices):
        mine = [op for op in length if answer.layout.placement[op[1]] == device]
        assert mine
        for one in mine:
            for other in mine:
                apart = start[one] + length[one] <= start[other] or start[other] + length[other] <= start[one]
                assert one == other or apart
    assert memory_fits(given, answer.layout, start, length)
    schedule = Schedule(given, answer.layout, answer.start)
    assert schedule.value == answer.value
    assert schedule.memory_excess() is None


class TestByHand:
    def test_one_device_works_without_pause(self):
        assert value(optimum(problem("AB", {"A": (1, 2, 3), "B": (4, 5, 6)}, 1, 3))) == 63

    def test_one_microbatch_is_a_chain_with_delays_both_ways(self):
        kinds = {"A": (1, 4, 2), "B": (2, 3, 9)}
        given = {"devices": 2, "microbatches": 1, "link": {"latency_us": 5000}, "placement": "linear"}
        # F 1, link 5, F 2, B 3, link 5, B 4, W 2 = 22; the other W ends at 1 + 5 + 2 + 3 + 9 = 20.
        assert value(optimum(problem("AB", kinds, **given))) == 22
        assert value(optimum(problem("AB", kinds, objective="span", **given))) == 22

    @pytest.mark.parametrize(("devices", "microbatches"), [(2, 1), (2, 2), (2, 3), (3, 2), (3, 3)])
    def test_fused_equal_stages_take_the_known_makespan(self, devices, microbatches):
        given = problem("A" * devices, {"A": (1, 2)}, devices, microbatches, split=False)
        assert value(optimum(given)) == (microbatches + devices - 1) * 3

    def test_split_backward_fills_the_bubble(self):
        # The second device starts at 1 and works 6 without a pause.
        assert value(optimum(problem("AA", {"A": (1, 1, 1)}))) == 7

    def test_span_leaves_out_the_warm_up(self):
        kinds = {"A": (1, 1, 1)}
        assert value(optimum(problem("AA", kinds, 2, 3))) == 10
        assert value(optimum(problem("AA", kinds, 2, 3, objective="span"))) == 9

    def test_span_couples_two_devices(self):
        # One microbatch, three stages, the first and last on device 0. The second device works 2 + 2 with a
        # hole for the last stage (1 + 1); the first one spans the whole chain of 1+2+1+1+2+1.
        given = {"devices": 2, "microbatches": 1, "placement": [0, 1, 0], "split": False, "objective": "span"}
        assert value(optimum(problem("ABA", {"A": (1, 1), "B": (2, 2)}, **given))) == 8

    def test_memory_for_one_in_flight_makes_round_trips(self):
        kinds = {"A": {"ms": (1, 2), "activation_gb": 1}}
        given = {"split": False, "placement": "linear"}
        assert value(optimum(problem("AA", kinds, memory=2, **given))) == 9
        # Round trips of 1 + 1 + 2 + 2, the second after the first.
        assert value(optimum(problem("AA", kinds, memory=1, **given))) == 12
        assert optimum(problem("AA", kinds, memory=0.5, **given)) is None

    def test_weight_activation_is_held_until_w_ends(self):
        kinds = {"A": {"ms": (1, 1, 1), "activation_gb": 1, "weight_activation_gb": 1}}
        # Device 1: F B W F B W. Device 0, one in flight too: F at 0, B at 3, W at 4, then again from 5.
        assert value(optimum(problem("AA", kinds, memory=1, placement="linear"))) == 10
        assert value(optimum(problem("AA", kinds, memory=2, placement="linear"))) == 7

    def test_what_is_handed_over_may_be_larger(self):
        kinds = {"A": {"ms": (1, 1, 1), "activation_gb": 1, "weight_activation_gb": 2}}
        assert optimum(problem("A", kinds, 1, 1, memory=1)) is None
        assert value(optimum(problem("A", kinds, 1, 1, memory=2))) == 3
        # A second F may not start while 2 GB are held, nor may a B end next to an activation.
        assert value(optimum(problem("A", kinds, 1, 2, memory=2))) == 6

    def test_static_memory_decides_the_cut(self):
        kinds = {"A": {"ms": (1, 1), "static_gb": 1}, "B": {"ms": (1, 1), "static_gb": 2}}
        given = {"split": False, "memory": 3, "microbatches": 1}
        answer = optimum(problem("AAB", kinds, **given, count=2))
        assert answer is not None
        assert answer.layout.partition in {(1, 2), (2, 1)}
        assert optimum(problem("ABB", kinds, **given, count=2)) is not None
        assert optimum(problem("BBB", kinds, **given)) is None

    def test_a_holding_of_length_zero_takes_nothing(self):
        kinds = {"A": {"ms": (0, 0, 1), "activation_gb": 5, "weight_activation_gb": 1}}
        assert value(optimum(problem("A", kinds, 1, 3, memory=1))) == 3
        assert optimum(problem("A", kinds, 1, 1, memory=0.5)) is None

    def test_a_w_of_length_zero_holds_nothing(self):
        kinds = {"A": {"ms": (1, 1, 0), "activation_gb": 1, "weight_activation_gb": 1}}
        assert value(optimum(problem("A", kinds, 1, 2, memory=1))) == 4

    def test_partition_balances(self):
        answer = optimum(problem("AAA", {"A": (1, 1)}, 2, 3, split=False, placement="linear"))
        assert answer is not None
        # Two layers first: its device works 12 ticks without a pause. Two layers last: 1 + 12 + 1.
        assert (answer.value, answer.layout.bounds) == (12, (0, 2, 3))

    def test_free_placement_beats_linear(self):
        # Two stages: some load is 12, and the first device can work 12 without a pause. Both As on one
        # device: loads of 8, and M (1 before, 1 after) runs F F B B from 1 to 9.
        kinds = {"A": (1, 1), "M": (2, 2)}
        free = optimum(problem("AMA", kinds, 2, 2, split=False))
        assert free is not None
        assert value(optimum(problem("AMA", kinds, 2, 2, split=False, placement="linear"))) == 12
        assert free.layout.placement[0] == free.layout.placement[2] != free.layout.placement[1]
        assert free.value == 10

    def test_fifo_is_refused_for_unequal_microbatches(self):
        with pytest.raises(ValueError, match="equal microbatches"):
            optimum(_unequal(problem("A", {"A": (1, 1, 1)}, 1, 2)))

    def test_waiting_for_ops_of_length_zero_is_refused(self):
        kinds = {
            "A": {"ms": (1, 1, 1), "activation_gb": 1, "weight_activation_gb": 2},
            "B": {"ms": (1, 0, 1), "activation_gb": 1},
        }
        with pytest.raises(OutOfScopeError):
            optimum(problem("ABA", kinds, 1, 2, memory=3))
        trip = {"A": {"ms": (0, 0, 1), "activation_gb": 1}}
        with pytest.raises(OutOfScopeError):
            optimum(problem("AA", trip, 2, 2, memory=1))


def _unequal(given: Problem) -> Problem:
    return replace(given, activation=((1,), (2,)))


class TestLayouts:
    def count(self, **rules: Any) -> int:
        return len(list(legal_layouts(problem("AAAA", {"A": (1, 1, 1)}, **rules))))

    def test_every_free_layout(self):
        # S stages: C(3, S-1) cuts, 2^S - 2 placements that use both devices.
        assert self.count() == 3 * 2 + 3 * 6 + 1 * 14
        assert self.count(max_per_device=1) == 3 * 2
        assert self.count(max_per_device=2) == 3 * 2 + 3 * 6 + 1 * 6
        assert self.count(count=3) == 3 * 6
        assert self.count(partition=[1, 3]) == 2

    def test_families(self):
        assert self.count(placement="linear") == 3
        assert self.count(placement="interleaved") == 3 + 3 + 1
        assert self.count(placement="wave") == 3 + 3 + 1
        assert self.count(placement=[1, 0, 1]) == 3
        wave = list(legal_layouts(problem("AAAA", {"A": (1, 1, 1)}, placement="wave", count=4)))
        assert wave[0].placement == (0, 1, 1, 0)

    def test_layers_that_belong_together(self):
        assert self.count(keep_together=[[1, 2]]) == 2 * 2 + 1 * 6
        # Layers 0 and 3 on one device: never for 2 stages; for 3 or 4 the ends agree.
        assert self.count(colocate=[[0, 3]]) == 3 * 2 + 6


class TestRandom:
    @pytest.mark.parametrize("seed", range(0, 300, 5))
    def test_answers_are_legal_and_devices_interchange(self, seed):
        given = build_problem(random_instance(seed))
        answer = optimum(given)
        if answer is not None:
            assert_legal(given, answer)
        assert value(optimum(given, symmetry=True)) == value(answer)

    @pytest.mark.parametrize("seed", range(60))
    def test_fifo_is_free(self, seed):
        given = build_problem(random_instance(seed, max_ops=12))
        answer = optimum(given, fifo=False)
        if answer is not None:
            assert_legal(given, answer)
        assert value(optimum(given)) == value(answer)

    def test_against_all_permutations(self):
        tried = infeasible = 0
        for seed in range(300):
            given = build_problem(random_instance(seed, max_ops=9))
            if permutations_to_try(given) <= 2000:
                expected = by_permutations(given)
                assert value(optimum(given)) == expected, seed
                tried += 1
                infeasible += expected is None
        assert tried > 150
        assert infeasible > 10

    def test_against_all_start_times(self):
        tried = 0
        for seed in range(800):
            given = build_problem(random_instance(seed, max_ops=6))
            horizon = _serial(given)
            if horizon <= 24:
                assert value(optimum(given)) == by_start_times(given, horizon), seed
                tried += 1
        assert tried > 40


def _serial(given: Problem) -> int:
    """Return the ticks of everything one after the other, at most over the layouts."""
    totals = [
        sum(ops_of(given, layout).values()) + sum(delay for _, _, delay in arcs_of(given, layout))
        for layout in legal_layouts(given)
    ]
    return max(totals, default=0)


class TestGenerator:
    def test_the_same_seed_gives_the_same_instance(self):
        assert random_instance(7) == random_instance(7)
        assert random_instance(7) != random_instance(8)

    def test_every_feature_occurs(self):
        found = seeds_by_feature(SEEDS)
        assert {name: len(seeds) for name, seeds in found.items() if len(seeds) < 8} == {}
        assert set(found) == set(FEATURES)
        assert features(random_instance(0)) <= set(FEATURES)

    @pytest.mark.parametrize("max_ops", [6, 9, 12, 36])
    def test_the_size_is_kept(self, max_ops):
        for seed in range(100):
            given = build_problem(random_instance(seed, max_ops))
            stages = max((layout.stages for layout in legal_layouts(given)), default=0)
            assert stages <= 4
            assert stages * given.n_microbatches * len(given.kinds) <= max_ops

    def test_memory_decides_often(self):
        seen: Counter[str] = Counter()
        for seed in range(100):
            instance = random_instance(seed)
            given = build_problem(instance)
            if not given.has_memory_limit:
                continue
            answer, free = optimum(given), optimum(build_problem(_unlimited(instance)))
            if free is not None:
                seen["infeasible" if answer is None else "bites" if answer.value > free.value else "slack"] += 1
        assert min(seen["infeasible"], seen["bites"], seen["slack"]) >= 5


def _unlimited(instance: Instance) -> Instance:
    devices = instance.cluster.devices
    if not isinstance(devices, int):
        devices = [device.model_copy(update={"memory_gb": None}) for device in devices]
    cluster = instance.cluster.model_copy(update={"memory_gb": None, "devices": devices})
    return instance.model_copy(update={"cluster": cluster})
