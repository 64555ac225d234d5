"""The cost model: milliseconds, gigabytes and links to integers, by hand."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octocp.costs import FINE_UNIT_GB, LEAST_UNITS, _least_from, build_problem
from octocp.errors import InfeasibleError, InputError, UnsupportedError
from octocp.problem import B, F, Problem, W
from octocp.schema import Instance
from tiny import instance, problem

# ---- durations -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ms", "tick_us", "ticks"),
    [
        (0.125, 10, 13),  # 12.5 rounds up, not to even
        (0.135, 10, 14),  # 13.5; the float below it would give 13
        (2.675, 10, 268),  # 267.5; as a float, 2.675 * 100 is 267.49999999999994
        (1.005, 10, 101),  # 100.5; as a float 100.49999999999999
        (0.124, 10, 12),
        (0.1249999, 10, 12),
        (0.005, 10, 1),
        (0.0049, 10, 0),
        (0.1, 1, 100),
        (0.0005, 1, 1),
        (16.95597, 1, 16956),
        (1.0, 3, 333),
        (1.0, 0.7, 1429),  # 1428.57
        (1e-5, 10, 0),
        (3600000.0, 10, 360000000),
    ],
)
def test_layers_round_halves_up_in_decimal(ms, tick_us, ticks):
    assert problem([(ms,)], devices=1, tick_us=tick_us).layer_ticks[F] == (ticks,)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**7), st.sampled_from([1, 10, 25, 100, 1000]))
def test_rounding_agrees_with_decimal_arithmetic(millionths, tick_us):
    """The written decimal decides, whatever float it is stored as."""
    written = Decimal(millionths) / 10**6
    expected = int((written * 1000 / tick_us).to_integral_value(ROUND_HALF_UP))
    assert problem([(float(written),)], devices=1, tick_us=tick_us).layer_ticks[F] == (expected,)


def test_each_layer_rounds_before_the_sum():
    """Three layers of 1.4 ticks are 3 ticks, not round(4.2) = 4; three of 1.5 are 6, not round(4.5) = 5."""
    low = problem([(0.014,)] * 3, devices=1, tick_us=10)
    high = problem([(0.015,)] * 3, devices=1, tick_us=10)
    assert low.duration(F, 0, 3) == 3
    assert high.duration(F, 0, 3) == 6


def test_fused_backward_is_rounded_b_plus_rounded_w():
    """1.4 + 1.4 ticks: 1 + 1, not round(2.8) = 3; and no W is left."""
    layers = [(0.02, 0.014, 0.014)]
    split = problem(layers, devices=1, tick_us=10)
    fused = problem(layers, devices=1, tick_us=10, split_backward=False)
    assert [row[0] for row in split.layer_ticks] == [2, 1, 1]
    assert [row[0] for row in fused.layer_ticks] == [2, 2, 0]
    assert split.kinds == (F, B, W)
    assert fused.kinds == (F, B)


def test_overhead_rounds_up_once_per_op():
    """12 us on a tick of 10 us are 1.2 ticks: 3 layers of 5 ticks take ceil(15 + 1.2) = 17, not 3 x ceil(6.2)."""
    given = problem([(0.05, 0.05, 0.05)] * 3, devices=1, tick_us=10, op_overhead_us=12)
    assert given.overhead == Fraction(6, 5)
    assert given.duration(F, 0, 3) == 17
    assert given.duration(W, 0, 1) == 7
    assert problem([(0.05,)] * 3, devices=1, tick_us=10, op_overhead_us=20).duration(F, 0, 3) == 17


def test_overhead_is_added_to_ops_of_length_zero_too():
    given = problem([(1, 1, 0)], devices=1, op_overhead_us=1)
    assert given.duration(W, 0, 1) == 1  # 0.001 ticks, rounded up


def test_equal_lengths_scale_the_sum_and_round_up():
    """Relative length 1.5: 3 ticks become 4.5, rounded up once, after the sum."""
    given = problem([(1, 1, 1), (2, 2, 2)], devices=1, microbatches=[1.5, 1.5])
    assert given.duration(F, 0, 2) == 5
    assert given.duration(F, 0, 1) == 2
    assert given.least_ticks(F, 0, 2) == 4


def test_equal_speeds_divide():
    given = problem([(3, 3, 3), (1, 1, 1)], devices=[{"speed": 2.0}, {"speed": 2.0}])
    assert given.duration(F, 0, 1) == 2
    assert given.duration(F, 0, 2) == 2


def test_decimal_speed_is_exact():
    """0.1 is a tenth, not the nearest float: 3 / 0.1 is 30, which a float above would round up to 31."""
    assert problem([(3, 3, 3)], devices=[{"speed": 0.1}]).duration(F, 0, 1) == 30


def test_the_chosen_profile_supplies_the_durations():
    base = instance("ab", {"a": (1, 2, 3), "b": (4, 5, 6)})
    model = base.model.model_dump(exclude_none=True, exclude_unset=True)
    model["profiles"] = {
        "slow": {"kinds": {"a": {"forward_ms": 10.0}}},
        "fast": {"kinds": {"b": {"forward_ms": 1.0}}},
    }
    data = base.model_dump(exclude_unset=True) | {"model": model}

    def forward(profile: str | None) -> tuple[int, ...]:
        return build_problem(Instance.model_validate(data | {"profile": profile})).layer_ticks[F]

    assert forward("fast") == (1, 1)
    assert forward("slow") == (10, 4)
    assert forward(None) == (10, 4)  # the first one


# ---- links ---------------------------------------------------------------------------------------


def delays(output_mb: float, link: dict, tick_us: float = 10, **more) -> int:
    kinds = {"a": {"ms": (1, 1, 1), "output_mb": output_mb}, "b": (1, 1, 1)}
    return problem("ab", kinds, tick_us=tick_us, link=link, **more).delay(1, 0, 1)


@pytest.mark.parametrize(
    ("output_mb", "link", "ticks"),
    [
        (0, {}, 0),
        (32, {}, 0),  # infinite bandwidth, no latency
        (0, {"latency_us": 10}, 1),
        (0, {"latency_us": 10.1}, 2),  # rounded up
        (32, {"bandwidth_gb_s": 50}, 64),  # 32 MB at 50 GB/s: 0.64 ms
        (32, {"bandwidth_gb_s": 50, "latency_us": 4}, 65),  # 64.4, rounded once: not 64 + 1 by luck but ceil
        (0.05, {"bandwidth_gb_s": 1, "latency_us": 5}, 6),  # 5.0 + 0.5: the sum rounds, 5.5 to 6
        (0.06, {"bandwidth_gb_s": 0.1}, 60),  # exact in decimal: no tick more
    ],
)
def test_link_delay_is_latency_plus_size_over_bandwidth_rounded_up(output_mb, link, ticks):
    assert delays(output_mb, link) == ticks


def test_boundary_sizes_scale_with_the_microbatch():
    assert delays(32, {"bandwidth_gb_s": 50, "latency_us": 10}, microbatches=[2.0, 2.0]) == 129


def test_delay_goes_both_ways_and_by_boundary():
    kinds = {"a": {"ms": (1, 1, 1), "output_mb": 10}, "b": {"ms": (1, 1, 1), "output_mb": 30}, "c": (1, 1, 1)}
    given = problem("abc", kinds, link={"bandwidth_gb_s": 1})
    assert [given.delay(boundary, 0, 1) for boundary in (1, 2)] == [10, 30]
    assert [given.delay(boundary, 1, 0) for boundary in (1, 2)] == [10, 30]
    assert given.delay(1, 1, 1) == 0
    assert given.has_delay


def test_links_by_node():
    kinds = {"a": {"ms": (1, 1, 1), "output_mb": 10}}
    nodes = [{"node": 0}, {"node": 0}, {"node": 1}]
    link = {"intra_node": {"bandwidth_gb_s": 10}, "inter_node": {"bandwidth_gb_s": 1, "latency_us": 1000}}
    given = problem("aaa", kinds, devices=nodes, link=link)
    assert given.delay(1, 0, 0) == 0
    assert given.delay(1, 0, 1) == 1
    assert given.delay(1, 0, 2) == given.delay(1, 2, 1) == 11


def test_the_horizon_covers_every_transfer_at_its_slowest():
    """Serial: (1 + 2 + 3) x 3 layers, one extra tick per op for rounding, two transfers of 7; twice."""
    given = problem([(1, 2, 3)] * 3, devices=2, link={"latency_us": 7000})
    ops = 3 * given.max_stages
    assert given.serial_ticks == 2 * (18 + ops + 2 * 2 * 7)


# ---- memory --------------------------------------------------------------------------------------


def sized(*sizes: tuple[float, float, float], **more) -> Problem:
    """Return a problem with these (static, activation, weight activation) per layer."""
    kinds = {
        chr(ord("a") + index): {
            "ms": (1, 1, 1),
            "static_gb": static,
            "activation_gb": activation,
            "weight_activation_gb": weight,
        }
        for index, (static, activation, weight) in enumerate(sizes)
    }
    return problem("".join(kinds), kinds, devices=1, **more)


def test_memory_unit_is_the_greatest_common_divisor():
    given = sized((0.6, 0.9, 0.3), (1.2, 0, 0), memory=10)
    assert given.memory_unit_gb == Fraction(3, 10)
    assert given.static == (2, 4)
    assert given.activation[0] == (3, 0)
    assert given.weight_activation[0] == (1, 0)
    assert given.capacity == (33,)  # 33.33 units: rounded down
    assert given.prefix_static == (0, 2, 6)
    assert given.stage_memory(0, 2) == (6, 3, 1)


def test_memory_is_exact_in_decimal():
    """0.1 + 0.2 fits in 0.3, which it does not in floats."""
    given = sized((0.1, 0, 0), (0.2, 0, 0), memory=0.3)
    assert sum(given.static) == given.capacity[0]


def test_only_used_kinds_decide_the_unit():
    kinds = {"a": {"ms": (1, 1, 1), "static_gb": 2}, "unused": {"ms": (1, 1, 1), "static_gb": 0.7}}
    assert problem("a", kinds, devices=1).memory_unit_gb == 2


def test_no_sizes_at_all():
    given = sized((0, 0, 0), memory=1)
    assert given.static == (0,)
    assert given.capacity[0] >= 0


def test_microbatch_length_scales_activations():
    given = sized((1, 2, 0.5), microbatches=[1.5, 1.5])
    unit = given.memory_unit_gb
    assert given.static[0] * unit == 1
    assert given.activation[0][0] * unit == 3
    assert given.weight_activation[0][0] * unit == Fraction(3, 4)


def test_sizes_of_many_digits_stay_exact():
    given = sized((0.1234567890123, 0.1, 0), memory=1.00000000000099)
    assert given.memory_unit_gb == Fraction(1, 10**13)
    assert given.static == (1234567890123,)
    assert given.capacity == (10000000000009,)


def test_thirds_fit_where_their_sum_does():
    """Three activations of 0.3333333333333333 GB are 0.9999999999999999 GB: within 1 GB."""
    given = sized((0, 1 / 3, 0), (0, 1 / 3, 0), (0, 1 / 3, 0), memory=1.0)
    assert given.activation[0] == (1, 1, 1)
    assert given.capacity == (3,)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=3),
    st.floats(0, 1000),
)
def test_units_never_understate(sizes, memory):
    given = sized(*sizes, memory=memory)
    unit = given.memory_unit_gb
    exact = [[Fraction(repr(value)) for value in row] for row in sizes]
    units = zip(given.static, given.activation[0], given.weight_activation[0], strict=True)
    for one, other in zip(exact, units, strict=True):
        for real, whole in zip(one, other, strict=True):
            assert real <= whole * unit <= real + max(real / LEAST_UNITS, FINE_UNIT_GB)
    everything = sum(given.static) + sum(map(sum, (*given.activation, *given.weight_activation)))
    limit = Fraction(repr(memory)) / unit
    assert given.capacity[0] <= limit
    assert given.capacity[0] == int(limit) or given.capacity[0] >= everything


def test_fused_backward_holds_no_weight_part():
    assert sized((1, 2, 1), split_backward=False).weight_activation[0] == (0,)


def test_limits_by_device():
    devices = [{"memory_gb": 4}, {}, {"memory_gb": 8}]
    kinds = {"a": {"ms": (1, 1, 1), "static_gb": 2}}
    assert problem("aaa", kinds, devices=devices).capacity == (2, None, 4)
    assert problem("aaa", kinds, devices=devices, memory=6).capacity == (2, 3, 4)


# ---- device classes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "link", "classes"),
    [
        (3, None, (0, 0, 0)),
        ([{"memory_gb": 4}, {"memory_gb": 8}, {"memory_gb": 4}], None, (0, 1, 0)),
        ([{"memory_gb": 4}, {}, {}], None, (0, 1, 1)),
        # On equal links, nodes do not matter; by node, devices swap within a node.
        ([{"node": 0}, {"node": 1}, {"node": 0}], None, (0, 0, 0)),
        ([{"node": 0}, {"node": 1}, {"node": 0}], "by node", (0, 1, 0)),
        # One device per node: all pairs are alike.
        ([{"node": 0}, {"node": 1}, {"node": 2}], "by node", (0, 0, 0)),
        ([{"node": 0}, {"node": 0}, {"node": 1}, {"node": 1}], "by node", (0, 0, 1, 1)),
        ([{"name": "x"}, {"name": "y"}], None, (0, 0)),
    ],
)
def test_device_classes(devices, link, classes):
    by_node = {"intra_node": {}, "inter_node": {"latency_us": 1000}}
    given = problem([(1, 1, 1)] * 4, devices=devices, link=by_node if link else None)
    assert given.device_class == classes


# ---- stages --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "devices", "rules", "limits"),
    [
        (10, 2, {}, (2, 8, 4)),  # the default: 4 per device
        (5, 2, {}, (2, 5, 4)),  # no more stages than layers, and the other device needs one
        (10, 2, {"max_per_device": None}, (2, 10, 9)),
        (10, 2, {"max_per_device": 1}, (2, 2, 1)),
        (10, 2, {"count": 6}, (6, 6, 4)),
        (10, 2, {"count": 3}, (3, 3, 2)),
        (10, 2, {"partition": [3, 3, 4]}, (3, 3, 2)),
        (10, 2, {"placement": [0, 1, 1, 0]}, (4, 4, 3)),
        (10, 2, {"placement": "linear"}, (2, 2, 1)),
        (10, 2, {"placement": "interleaved"}, (2, 8, 4)),
        (10, 2, {"keep_together": [[0, 6]]}, (2, 4, 3)),  # 4 units
        (1, 1, {}, (1, 1, 1)),
    ],
)
def test_stage_limits(layers, devices, rules, limits):
    given = problem([(1, 1, 1)] * layers, devices=devices, **rules)
    assert (given.min_stages, given.max_stages, given.max_per_device) == limits


def test_keep_together_makes_units():
    given = problem([(1, 1, 1)] * 6, keep_together=[[0, 1], [3, 5]])
    assert given.units == ((0, 2), (2, 3), (3, 6))
    assert given.cuttable == (True, False, True, True, False, False, True)


def test_overlapping_and_single_ranges():
    given = problem([(1, 1, 1)] * 6, keep_together=[[0, 2], [2, 3], [5, 5]])
    assert given.units == ((0, 4), (4, 5), (5, 6))


def test_colocate_groups_are_sorted_sets():
    given = problem([(1, 1, 1)] * 4, colocate=[[3, 0, 3], [1, 1]])
    assert given.colocate == ((0, 3),)


@pytest.mark.parametrize(
    ("family", "placement"),
    [
        ("linear", (0, 1)),
        ("interleaved", (0, 1, 0, 1, 0, 1)),
        ("wave", (0, 1, 1, 0, 0, 1)),
        ("free", None),
        ([1, 0, 0, 1], (1, 0, 0, 1)),
    ],
)
def test_placement_families(family, placement):
    given = problem([(1, 1, 1)] * 6, placement=family)
    assert given.placement_for(2 if family == "linear" else 6) == placement


def test_wave_of_three_devices():
    given = problem([(1, 1, 1)] * 9, devices=3, placement="wave")
    assert given.placement_for(9) == (0, 1, 2, 2, 1, 0, 0, 1, 2)


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"recompute": "auto"}, "training.recompute"),
        ({"recompute": "full"}, "training.recompute"),
        ({"microbatches": [1.0, 2.0]}, "microbatches"),
        ({"devices": [{"speed": 1.0}, {"speed": 2.0}]}, "cluster.devices"),
    ],
)
def test_unsupported_says_where(change, place):
    with pytest.raises(UnsupportedError, match="not supported yet") as caught:
        problem([(1, 1, 1)] * 2, **change)
    assert caught.value.place == place
    assert caught.value.right
    assert caught.value.exit_code == 2


def test_fewer_layers_than_devices():
    with pytest.raises(InfeasibleError, match=r"3 layers cannot give each of 5 devices a stage; 2 too few"):
        problem([(1, 1, 1)] * 3, devices=5)


def test_fewer_units_than_devices():
    with pytest.raises(InfeasibleError, match=r"1 layers \(layers kept together count as one\)"):
        problem([(1, 1, 1)] * 3, keep_together=[[0, 2]])


def test_fewer_units_than_stages():
    with pytest.raises(InfeasibleError, match=r"cannot fill 4 stages"):
        problem([(1, 1, 1)] * 5, keep_together=[[0, 2]], count=4)


def test_too_many_ops():
    with pytest.raises(InputError, match=r"ops to schedule") as caught:
        problem("a" * 200, {"a": (1, 1, 1)}, devices=200, microbatches=4000)
    assert caught.value.place == "microbatches"


def test_too_many_ticks():
    with pytest.raises(InputError, match=r"coarser grid") as caught:
        problem("a" * 1000, {"a": (3.6e6, 3.6e6, 3.6e6)}, devices=2, microbatches=1000, tick_us=0.001)
    assert caught.value.place == "tick_us"


def test_too_many_digits_of_both_length_and_overhead():
    """Scaled by the denominators, the step's ticks would leave 64 bits."""
    with pytest.raises(InputError, match="too many digits") as caught:
        problem([(3.6e6, 1, 1)] * 2, microbatches=[0.3333333333333333] * 2, op_overhead_us=0.00123456789)
    assert caught.value.place == "microbatches"
    assert "length over speed is 3333333333333333/10000000000000000 and" in str(caught.value)


def test_digits_that_change_no_op_are_left_out():
    third = problem([(30, 60, 70), (40, 50, 80)], microbatches=[0.3333333333333333] * 2)
    assert third.scale[0][0] == Fraction(1, 3)
    assert third.duration(F, 0, 1) == 10
    # As it is written, two thirds are a little more, and 20 ticks with it.
    more = problem([(30, 60, 70), (40, 50, 80)], microbatches=[0.6666666666666667] * 2)
    assert more.duration(F, 0, 1) == 21
    overhead = problem([(3.6e6, 1, 1)] * 2, op_overhead_us=0.00123456789)
    assert overhead.overhead == 1
    # Numbers of few digits stay as they are.
    assert problem([(3, 6, 7)] * 2, microbatches=[0.125] * 2).scale[0][0] == Fraction(1, 8)


@given(
    st.one_of(st.floats(1e-3, 1e3), st.sampled_from([1 / 3, 2 / 3, 1 / 7, 0.1 + 0.2, 5 / 6, 1e-3, 1 / 1.1])),
    st.lists(st.tuples(*[st.integers(0, 10**5)] * 3), min_size=2, max_size=5),
    st.sampled_from([0, 1000, 2500, 333.3333333333333, 0.001]),
)
@settings(max_examples=200, deadline=None)
def test_lengths_of_any_digits_are_exact(length: float, layers: list[tuple[int, int, int]], overhead_us: float):
    try:
        given_ = problem(layers, microbatches=[length] * 2, op_overhead_us=overhead_us)
    except InputError:
        assert overhead_us not in (0, 1000)  # whole ticks are never too much
        return
    scale, overhead = Fraction(repr(length)), Fraction(repr(overhead_us)) / 1000
    for kind in (F, B, W):
        for begin in range(len(layers)):
            for end in range(begin + 1, len(layers) + 1):
                work = sum(layer[kind] for layer in layers[begin:end])
                assert given_.duration(kind, begin, end) == ceil(work * scale + overhead)


@given(st.fractions(0, 3, max_denominator=200), st.integers(1, 40))
def test_the_least_fraction_from_a_number_up(value: Fraction, most: int):
    expected = min(Fraction(ceil(value * d), d) for d in range(1, most + 1))
    assert _least_from(value, most) == expected


def test_sizes_too_far_apart():
    """A petabyte beside a byte's thousandth: 18 digits, and no unit that tells both."""
    with pytest.raises(InputError, match="sizes too far apart") as caught:
        sized((1e6, 0, 0), (1e-12, 0, 0), memory=1e6)
    assert caught.value.place == "model.kinds"


def test_the_largest_sizes_with_few_digits_stay_exact():
    given = sized((1e6, 0.1, 0), (0.3, 0, 0), memory=1e6)
    assert given.static == (10**7, 3)
    assert given.activation[0] == (1, 0)
    assert given.capacity == (10**7,)


def test_many_digits_on_large_sizes_coarsen_the_unit():
    """All sizes together fit in 58 bits, each rounded up, and a limit beyond them is cut there."""
    given = sized((123456.789012345, 234567.890123456, 0), memory=1e6)
    unit = given.memory_unit_gb
    assert Fraction(1, 10**12) < unit < Fraction(1, 10**6)
    assert given.static[0] - 1 < Fraction("123456.789012345") / unit <= given.static[0]
    assert given.static[0] + 2 * given.activation[0][0] <= 2**58
    assert given.capacity[0] <= 2**58


def test_a_limit_larger_than_everything_limits_nothing():
    kinds = {"a": {"ms": (1, 1, 1), "static_gb": 1e-12}}
    given = problem("aa", kinds, memory=1e6)
    assert sum(given.static) < given.capacity[0] <= 2**58
