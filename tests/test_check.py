"""The independent checker: every kind of violation, made by hand, is named with its op, device and amount."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handmade import TOY, toy_instance, toy_plan
from octocp.checker import check_plan, memory_timeline
from octocp.schema import Instance, Plan, PlanOp

Key = tuple[str, int, int]


def op_of(plan: Plan, key: Key) -> PlanOp:
    return next(op for op in plan.ops if (op.kind, op.stage, op.microbatch) == key)


def with_op(plan: Plan, key: Key, **changes: Any) -> Plan:
    ops = [op.model_copy(update=changes) if (op.kind, op.stage, op.microbatch) == key else op for op in plan.ops]
    return plan.model_copy(update={"ops": ops})


def shifted(plan: Plan, key: Key, by: int) -> Plan:
    op = op_of(plan, key)
    return with_op(plan, key, start=op.start + by, end=op.end + by)


def on(plan: Plan, **changes: Any) -> Plan:
    return plan.model_copy(update=changes)


def with_rules(plan: Plan, **changes: Any) -> Plan:
    """Replace parts of the plan's instance without rescheduling; keys as in `toy_instance`."""
    return on(plan, instance=toy_instance(**changes))


def lines(plan: Plan, family: str) -> list[str]:
    return [line for line in check_plan(plan) if line.startswith(f"{family}: ")]


def says(plan: Plan, family: str, *parts: str) -> None:
    found = lines(plan, family)
    assert any(all(part in line for part in parts) for line in found), check_plan(plan)


VALID = {
    "two stages": {},
    "one device": {"cluster__devices": 1, "partition": (6,), "placement": (0,)},
    "fused": {"training__split_backward": False},
    "recompute": {"training__recompute": "full"},
    "recompute, fused": {"training__recompute": "full", "training__split_backward": False},
    "recompute by choice": {"training__recompute": "auto", "recompute": (True, False)},
    "chunks": {"partition": (1, 2, 2, 1), "placement": (0, 1, 0, 1), "stages__placement": "interleaved"},
    "wave": {"partition": (1, 2, 2, 1), "placement": (0, 1, 1, 0), "stages__placement": "wave"},
    "linear": {"stages__placement": "linear"},
    "given": {
        "stages__placement": [1, 0],
        "stages__partition": [2, 4],
        "partition": (2, 4),
        "placement": (1, 0),
    },
    "colocate": {
        "partition": (1, 4, 1),
        "placement": (0, 1, 0),
        "stages__colocate": [[0, 5]],
        "stages__keep_together": [[1, 4]],
    },
    "link": {"cluster__link": {"latency_us": 1500.0, "bandwidth_gb_s": 0.7}},
    "nodes": {
        "cluster__devices": [{"node": 0}, {"node": 1}, {"node": 1}],
        "cluster__link": {"intra_node": {"latency_us": 1000.0}, "inter_node": {"bandwidth_gb_s": 1.0}},
        "partition": (2, 2, 2),
        "placement": (0, 1, 2),
    },
    "speeds": {"cluster__devices": [{"speed": 0.7}, {"speed": 3.0, "name": "fast"}]},
    "lengths": {"microbatches": [1.0, 0.5, 2.25, 0.3]},
    "overhead": {"training__op_overhead_us": 300.0},
    "everything": {
        "cluster__devices": [{"speed": 0.9, "memory_gb": 90.0}, {"node": 1}],
        "cluster__link": {"inter_node": {"latency_us": 100.0, "bandwidth_gb_s": 3.0}},
        "microbatches": [1.0, 0.5, 1.3],
        "training__recompute": "auto",
        "training__op_overhead_us": 1250.0,
        "partition": (2, 1, 1, 2),
        "placement": (0, 1, 1, 0),
        "recompute": (True, False, True, False),
    },
    "span": {"objective": "span"},
}


@pytest.mark.parametrize("case", VALID, ids=list(VALID))
def test_valid_plans_pass(case: str) -> None:
    assert check_plan(toy_plan(**VALID[case])) == []


# ---------------------------------------------------------------------------------------------
# Costs


def one_op_instance(forward_ms: list[float], **changes: Any) -> Instance:
    kinds = {f"k{i}": {"forward_ms": value, "backward_weight_ms": 0.5} for i, value in enumerate(forward_ms)}
    model = {"format": "octocp.model/1", "name": "m", "layers": list(kinds), "kinds": kinds}
    return toy_instance(**{"model": model, "cluster__devices": 1, "microbatches": 1, **changes})


def plan_of(instance: Instance, ops: list[tuple[str, int, int]], **changes: Any) -> Plan:
    """One stage, one device; ops as (kind, start, end)."""
    layers = len(instance.model.layer_kinds())
    end = max(op[2] for op in ops)
    return Plan.model_validate(
        {
            "format": "octocp.plan/1",
            "instance": instance,
            "method": "m",
            "status": "feasible",
            "tick_us": instance.tick_us,
            "partition": [layers],
            "placement": [0],
            "recompute": [False],
            "objective": "makespan",
            "makespan": end,
            "span": end - min(op[1] for op in ops),
            "lower_bound": 0,
            "peak_memory_gb": [0.0],
            "ops": [
                {"kind": kind, "stage": 0, "microbatch": 0, "device": 0, "start": start, "end": end}
                for kind, start, end in ops
            ],
            **changes,
        }
    )


def test_layers_are_rounded_one_by_one_halves_up_in_decimal() -> None:
    # tick 10 us: 0.005, 0.015, 1.005 ms are 0.5, 1.5 and 100.5 ticks, so 1 + 2 + 101. In binary
    # floating point 1.005 is below the half; rounding the sum (102.5) or to even gives less.
    instance = one_op_instance([0.005, 0.015, 1.005], tick_us=10.0)
    assert check_plan(plan_of(instance, [("F", 0, 104), ("B", 104, 104), ("W", 104, 254)])) == []
    says(
        plan_of(instance, [("F", 0, 103), ("B", 103, 103), ("W", 103, 253)]),
        "duration",
        "F of stage 0",
        "1 tick too short",
    )


def test_fused_backward_adds_what_is_rounded() -> None:
    # B and W of 0.5 ticks each are rounded to 1 each before they are added: fused B is 2 a layer.
    kinds = {"k": {"forward_ms": 1.0, "backward_input_ms": 0.5, "backward_weight_ms": 0.5}}
    model = {"format": "octocp.model/1", "name": "m", "layers": "kk", "kinds": kinds}
    instance = one_op_instance([1.0], model=model, training__split_backward=False)
    assert check_plan(plan_of(instance, [("F", 0, 2), ("B", 2, 6)])) == []
    says(
        plan_of(instance, [("F", 0, 2), ("B", 2, 4)]),
        "duration",
        "B of stage 0",
        "2 ticks too short",
        "needs 4",
    )


def test_scaling_rounds_up_once() -> None:
    # (3 + 4) ticks x 0.3 / 0.7 is 3, in decimals only: in binary floating point 7 * 0.3 / 0.7 may pass
    # it. With an overhead of 0.25 ticks that is 3.25, so 4; with one of 1 tick it is 4 and never 5.
    for overhead in (250.0, 1000.0):
        instance = one_op_instance(
            [3.0, 4.0],
            cluster__devices=[{"speed": 0.7}],
            microbatches=[0.3],
            training__op_overhead_us=overhead,
            training__split_backward=False,
        )
        # B: two layers of weight 0.5 ms, rounded to 1 each: 2 x 3/7 + overhead.
        backward = 2
        assert check_plan(plan_of(instance, [("F", 0, 4), ("B", 4, 4 + backward)])) == []


def test_overhead_is_added_before_the_rounding_up() -> None:
    # 3 x 0.5 + 0.5 = 2 ticks; rounding up in two steps would give 3.
    instance = one_op_instance(
        [3.0], microbatches=[0.5], training__op_overhead_us=500.0, training__split_backward=False
    )
    assert check_plan(plan_of(instance, [("F", 0, 2), ("B", 2, 3)])) == []


def test_delay_is_exact_and_rounded_up() -> None:
    # The cut after layer 2 (kind B, 3000 MB) at 0.7 GB/s takes 4285.7 ms, plus 1.5 ms: 4288 ticks.
    plan = toy_plan(cluster__link={"latency_us": 1500.0, "bandwidth_gb_s": 0.7})
    says(
        shifted(plan, ("F", 1, 0), -1),
        "precedence",
        "F of stage 1, microbatch 0 on device 1",
        "1 tick too early",
        "4288 ticks to arrive",
    )
    late = op_of(plan, ("B", 1, 0)).end + 4288
    assert op_of(plan, ("B", 0, 0)).start == late
    says(
        shifted(plan, ("B", 0, 0), -1),
        "precedence",
        "B of stage 0, microbatch 0 on device 0",
        "4288 ticks to arrive",
    )


def test_delay_depends_on_the_node() -> None:
    plan = toy_plan(**VALID["nodes"])
    # Devices 1 and 2 share a node: 1 ms. Device 0 does not: 2000 MB at 1 GB/s.
    says(shifted(plan, ("F", 2, 0), -1), "precedence", "F of stage 2", "takes 1 tick to arrive")
    says(shifted(plan, ("F", 1, 0), -1), "precedence", "F of stage 1", "takes 2000 ticks to arrive")


# ---------------------------------------------------------------------------------------------
# Structure


@pytest.mark.parametrize(
    ("changes", "rules", "family", "parts"),
    [
        ({"partition": [3, 4]}, {}, "partition", ["7 layers", "1 more", "6"]),
        ({"partition": [2, 3]}, {}, "partition", ["5 layers", "1 fewer"]),
        ({}, {"stages__count": 3}, "partition", ["2 stages", "asks for 3"]),
        ({}, {"stages__partition": [2, 4]}, "partition", ["[3, 3]", "[2, 4]", "first at stage 0"]),
        ({}, {"cluster__devices": 3}, "partition", ["2 stages for 3 devices", "1 too few"]),
        ({}, {"stages__keep_together": [[1, 4]]}, "partition", ["layers 1 to 4", "stages 0 to 1"]),
        (
            {"partition": [1, 1, 1, 1, 1, 1]},
            {"stages__max_per_device": 1},
            "partition",
            ["6 stages", "admit 2"],
        ),
        ({"partition": [1, 1, 1, 1, 1, 1, 1]}, {}, "partition", ["7 stages for 6 layers", "1 too many"]),
        ({"placement": [0]}, {}, "placement", ["1 stages", "partition has 2"]),
        ({"placement": [0, 2]}, {}, "placement", ["stage 1", "device 2", "0..1"]),
        ({"placement": [0, 0]}, {}, "placement", ["device 1 holds no stage"]),
        ({}, {"stages__placement": [1, 0]}, "placement", ["stage 0 is on device 0", "device 1"]),
        (
            {"placement": [1, 0]},
            {"stages__placement": "linear"},
            "placement",
            ["stage 0 is on device 1", "linear"],
        ),
        (
            {"placement": [1, 0]},
            {"stages__placement": "interleaved"},
            "placement",
            ["stage 0", "interleaved"],
        ),
        ({"placement": [1, 0]}, {"stages__placement": "wave"}, "placement", ["stage 1", "wave"]),
        ({}, {"stages__colocate": [[0, 5]]}, "placement", ["layers [0, 5]", "devices [0, 1]"]),
        (
            {"placement": [0, 0]},
            {"stages__max_per_device": 1},
            "placement",
            ["device 0 holds 2 stages", "is 1"],
        ),
        ({"recompute": [False]}, {}, "recompute", ["1 stages", "has 2"]),
        ({"recompute": [False, True]}, {}, "recompute", ["stage 1 is marked true", "none"]),
        ({}, {"training__recompute": "full"}, "recompute", ["stage 0 is marked false", "full"]),
        ({"objective": "span"}, {}, "objective", ["span", "makespan"]),
        ({"tick_us": 10.0}, {}, "tick_us", ["10.0", "1000.0"]),
        ({"makespan": 164}, {}, "makespan", ["164", "163", "1 tick"]),
        ({"span": 100}, {}, "span", ["100", "152", "52 ticks"]),
        ({"lower_bound": 165}, {}, "lower_bound", ["165 is 2 ticks above", "makespan 163"]),
        ({"lower_bound": 160, "status": "optimal"}, {}, "status", ["optimal", "160 is 3 ticks below", "163"]),
        ({"peak_memory_gb": [9.25]}, {}, "peak_memory_gb", ["1 entries for 2 devices"]),
        (
            {"peak_memory_gb": [9.25, 10.6]},
            {},
            "peak_memory_gb",
            ["device 1", "10.6 GB", "10.5 GB", "0.1 GB"],
        ),
        ({}, {"cluster__memory_gb": 10.0}, "memory", ["device 1 holds 10.5 GB", "0.5 GB above its 10 GB"]),
    ],
)
def test_broken_decisions(changes: dict[str, Any], rules: dict[str, Any], family: str, parts: list[str]) -> None:
    plan = toy_plan()
    if rules:
        plan = with_rules(plan, **rules)
    says(on(plan, **changes), family, *parts)


def test_makespan_of_the_toy_is_what_the_table_above_says() -> None:
    assert (toy_plan().makespan, toy_plan().span, toy_plan().peak_memory_gb) == (163, 152, [9.25, 10.5])


def test_max_per_device_counts_per_device() -> None:
    plan = toy_plan(partition=(1, 2, 2, 1), placement=(0, 1, 1, 1))
    says(
        with_rules(plan, stages__max_per_device=2),
        "placement",
        "device 1 holds 3 stages",
        "max_per_device is 2",
    )


def test_wave_turns_around() -> None:
    plan = toy_plan(partition=(1, 2, 2, 1), placement=(0, 1, 0, 1))
    says(
        with_rules(plan, stages__placement="wave"),
        "placement",
        "stage 2 is on device 0",
        "wave puts it on device 1",
    )


# ---------------------------------------------------------------------------------------------
# Ops


def test_missing_ops() -> None:
    plan = toy_plan()
    gone = op_of(plan, ("B", 1, 2))
    says(
        on(plan, ops=[op for op in plan.ops if op is not gone]),
        "ops",
        "B of stage 1, microbatch 2 on device 1 is missing",
    )
    none = lines(on(plan, ops=[]), "ops")
    assert len(none) == 11
    assert none[-1] == "ops: and 14 more"


def test_op_given_twice() -> None:
    plan = toy_plan()
    says(
        on(plan, ops=[*plan.ops, plan.ops[0]]),
        "ops given twice",
        "F of stage 0, microbatch 0 on device 0",
        "2 times",
    )


def test_unknown_ops() -> None:
    plan, fused = toy_plan(), toy_plan(training__split_backward=False)
    extra = plan.ops[0]
    for update, part in (({"stage": 7}, "stages are 0..1"), ({"microbatch": 9}, "microbatches are 0..3")):
        says(on(plan, ops=[*plan.ops, extra.model_copy(update=update)]), "ops unknown", part)
    added = [*fused.ops, extra.model_copy(update={"kind": "W"})]
    says(on(fused, ops=added), "ops unknown", "W of stage 0, microbatch 0", "B carries W")


def test_op_on_the_wrong_device() -> None:
    plan = toy_plan(cluster__devices=[{"name": "left"}, {"name": "right\nhand"}])
    says(
        with_op(plan, ("F", 0, 3), device=1),
        "device",
        "F of stage 0, microbatch 3 is on device 1 (right?hand)",
        "device 0 (left)",
    )
    says(with_op(plan, ("F", 0, 3), device=5), "device", "F of stage 0, microbatch 3 is on device 5", "0..1")


@pytest.mark.parametrize("by", [-2, 1])
def test_wrong_duration(by: int) -> None:
    plan = toy_plan()
    op = op_of(plan, ("W", 1, 3))
    word = "2 ticks too short" if by < 0 else "1 tick too long"
    says(
        with_op(plan, ("W", 1, 3), end=op.end + by),
        "duration",
        "W of stage 1, microbatch 3 on device 1",
        word,
    )


def test_op_that_ends_before_it_starts() -> None:
    plan = toy_plan()
    op = op_of(plan, ("F", 0, 2))
    broken = with_op(plan, ("F", 0, 2), end=op.start - 7)
    says(broken, "duration", "F of stage 0, microbatch 2 on device 0", "7 ticks before it starts")


def test_negative_start() -> None:
    # The schema refuses it in a file; a plan built in memory can still have it.
    says(shifted(toy_plan(), ("F", 0, 0), -3), "start", "F of stage 0, microbatch 0 on device 0", "-3")


@pytest.mark.parametrize(
    ("key", "before"),
    [
        (("F", 1, 1), "F of stage 0, microbatch 1 on device 0"),
        (("B", 1, 1), "F of stage 1, microbatch 1 on device 1"),
        (("B", 0, 1), "B of stage 1, microbatch 1 on device 1"),
        (("W", 0, 1), "B of stage 0, microbatch 1 on device 0"),
    ],
)
def test_precedence(key: Key, before: str) -> None:
    plan = toy_plan()
    need = next(
        op for op in plan.ops if before.startswith(f"{op.kind} of stage {op.stage}, microbatch {op.microbatch} ")
    )
    early = shifted(plan, key, need.end - 4 - op_of(plan, key).start)
    says(early, "precedence", f"{key[0]} of stage {key[1]}, microbatch {key[2]}", "4 ticks too early", before)


def test_overlap_is_named_by_both_ops() -> None:
    plan = toy_plan()
    # F 0 takes [0, 11) and F 1 [11, 22): three ticks earlier, they run together for three ticks.
    says(
        shifted(plan, ("F", 0, 1), -3),
        "overlap",
        "F of stage 0, microbatch 1 and F of stage 0, microbatch 0",
        "device 0",
        "3 ticks",
        "from 8",
    )


def test_overlap_with_an_op_that_is_not_the_neighbour() -> None:
    plan = toy_plan()
    first, last = op_of(plan, ("F", 0, 0)), op_of(plan, ("W", 0, 3))
    stretched = with_op(plan, ("F", 0, 0), end=last.end)
    hit = " ".join(lines(stretched, "overlap"))
    assert "and F of stage 0, microbatch 0 run together on device 0" in hit
    assert len([op for op in plan.ops if op.device == first.device]) - 1 == 11
    assert lines(stretched, "overlap")[-1] == "overlap: and 1 more"


@pytest.mark.parametrize(("at", "wrong"), [(0, False), (5, True), (11, False), (15, True)])
def test_an_op_of_length_zero_may_touch_but_not_be_inside(at: int, wrong: bool) -> None:
    plan = toy_plan()
    moved = with_op(plan, ("W", 0, 3), start=at, end=at)
    found = [line for line in lines(moved, "overlap") if "length zero" in line]
    assert bool(found) == wrong
    if wrong:
        assert "W of stage 0, microbatch 3" in found[0]
        assert f"at {at} inside F of stage 0" in found[0]
        assert "device 0" in found[0]


# ---------------------------------------------------------------------------------------------
# Memory


def test_memory_freed_at_t_can_be_taken_at_t() -> None:
    # One microbatch in flight at a time: B of microbatch 0 ends exactly where F of microbatch 1 starts.
    kinds = {"k": {"forward_ms": 2, "backward_input_ms": 3, "activation_gb": 5.0, "static_gb": 1.0}}
    model = {"format": "octocp.model/1", "name": "m", "layers": "k", "kinds": kinds}
    plan = toy_plan(
        model=model,
        cluster={"devices": 1, "memory_gb": 6.0},
        training__split_backward=False,
        partition=(1,),
        placement=(0,),
        microbatches=2,
    )
    assert plan.peak_memory_gb == [6.0]
    assert check_plan(plan) == []
    assert op_of(plan, ("B", 0, 0)).end == op_of(plan, ("F", 0, 1)).start == 5
    kept = plan.instance.cluster.model_copy(update={"memory_gb": 5.999999})
    tight = on(plan, instance=plan.instance.model_copy(update={"cluster": kept}))
    says(tight, "memory", "device 0 holds 6 GB", "1e-06 GB above", "F of stage 0, microbatch 0")


def test_cap_is_exact_where_floats_are_not() -> None:
    # 0.1 + 0.2 GB fill 0.3 GB exactly; summed as binary floats they would pass it.
    kinds = {"a": {"forward_ms": 1, "static_gb": 0.1}, "b": {"forward_ms": 1, "static_gb": 0.2}}
    model = {"format": "octocp.model/1", "name": "m", "layers": "ab", "kinds": kinds}
    plan = toy_plan(model=model, cluster={"devices": 1, "memory_gb": 0.3}, partition=(2,), placement=(0,))
    assert check_plan(plan) == []


def test_reported_peak_may_be_rounded_a_little() -> None:
    plan = toy_plan()
    assert check_plan(on(plan, peak_memory_gb=[9.25 * (1 + 9e-7), 10.5])) == []
    says(on(plan, peak_memory_gb=[9.25 * (1 + 2e-6), 10.5]), "peak_memory_gb", "device 0")


def test_recompute_keeps_only_the_input_between() -> None:
    plan = toy_plan(
        training__recompute="full",
        cluster__devices=3,
        partition=(2, 2, 2),
        placement=(0, 1, 2),
        microbatches=1,
    )
    # Stage 1 is B A: static 3, activations 1.25, weight activations 0.75 GB; its input is A's 2 GB.
    # Before F, during F, between, during B, until W ends, after.
    assert [float(use) for _, use in memory_timeline(plan)[1]] == [3, 4.25, 5, 4.25, 3.75, 3]
    assert check_plan(plan) == []


def test_recompute_that_an_auto_plan_chose_is_the_plans() -> None:
    plan = toy_plan(**VALID["recompute by choice"])
    says(on(plan, recompute=[False, False]), "duration", "B of stage 0", "11 ticks too long")


def test_timeline_of_an_unusable_partition_is_empty() -> None:
    assert memory_timeline(on(toy_plan(), partition=[9, 9])) == [[], []]


# ---------------------------------------------------------------------------------------------
# Properties


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    return toy_plan(**VALID[draw(st.sampled_from(sorted(VALID)))])


@settings(max_examples=60, deadline=None)
@given(plan=plans(), data=st.data())
def test_an_op_of_the_wrong_length_is_always_named(plan: Plan, data: st.DataObject) -> None:
    op = data.draw(st.sampled_from(plan.ops))
    by = data.draw(st.integers(-op.end, 50).filter(bool))
    broken = with_op(plan, (op.kind, op.stage, op.microbatch), end=op.end + by)
    says(broken, "duration", f"{op.kind} of stage {op.stage}, microbatch {op.microbatch} on device {op.device}")


@settings(max_examples=60, deadline=None)
@given(plan=plans(), data=st.data())
def test_moved_ops_are_judged_as_brute_force_judges_them(plan: Plan, data: st.DataObject) -> None:
    moved = plan
    for _ in range(data.draw(st.integers(1, 3))):
        op = data.draw(st.sampled_from(moved.ops))
        moved = shifted(moved, (op.kind, op.stage, op.microbatch), data.draw(st.integers(-op.start, 60)))
    clashes = 0
    for one, other in combinations(moved.ops, 2):
        if one.device == other.device:
            inside = one.start == one.end or other.start == other.end
            strictly = min(one.end, other.end) - max(one.start, other.start)
            hit = max(one.start, other.start) < min(one.end, other.end)
            if inside:
                long, point = (one, other.start) if other.start == other.end else (other, one.start)
                hit = long.start < point < long.end
            clashes += hit or strictly > 0
    assert bool(lines(moved, "overlap")) == bool(clashes)
    early = 0
    times = {(op.kind, op.stage, op.microbatch): op for op in moved.ops}
    original = {(op.kind, op.stage, op.microbatch): op for op in plan.ops}
    for (kind, stage, microbatch), op in times.items():
        needs = {
            "F": [("F", stage - 1, microbatch)],
            "B": [("F", stage, microbatch), ("B", stage + 1, microbatch)],
            "W": [("B", stage, microbatch)],
        }[kind]
        early += any(need in times and times[need].end > op.start for need in needs)
        assert op.end - op.start == original[kind, stage, microbatch].end - original[kind, stage, microbatch].start
    if early:
        assert lines(moved, "precedence")
    elif plan.instance.cluster == toy_instance().cluster:  # no delays: brute force is exact
        assert not lines(moved, "precedence")


BIG = st.one_of(st.integers(0, 8), st.integers(0, 2**62))


@settings(max_examples=150, deadline=None)
@given(plan=plans(), data=st.data())
def test_it_never_crashes_on_what_the_schema_accepts(plan: Plan, data: st.DataObject) -> None:
    ops = st.fixed_dictionaries(
        {
            "kind": st.sampled_from("FBW"),
            "stage": st.integers(0, 9999),
            "microbatch": st.integers(0, 16383),
            "device": st.integers(0, 1023),
            "start": BIG,
            "end": BIG,
        }
    )
    fields = {
        "partition": st.lists(st.one_of(st.integers(1, 6), st.integers(1, 10_000)), min_size=1, max_size=9),
        "placement": st.lists(st.one_of(st.integers(0, 3), st.integers(0, 1_023)), min_size=1, max_size=9),
        "recompute": st.lists(st.booleans(), max_size=9),
        "makespan": BIG,
        "span": BIG,
        "lower_bound": BIG,
        "tick_us": st.floats(min_value=1e-300, max_value=1e300),
        "status": st.sampled_from(["optimal", "feasible"]),
        "objective": st.sampled_from(["makespan", "span"]),
        "peak_memory_gb": st.lists(st.floats(min_value=0, allow_infinity=False), max_size=5),
        "ops": st.lists(ops, max_size=12).map(lambda extra: [*map(dict, plan.ops[::2]), *extra]),
    }
    chosen = data.draw(st.lists(st.sampled_from(sorted(fields)), unique=True, min_size=1))
    broken = Plan.model_validate({**dict(plan), **{name: data.draw(fields[name]) for name in chosen}})
    found = check_plan(broken)
    assert all("\n" not in line and ": " in line for line in found)


def test_it_never_counts_what_a_plan_only_claims() -> None:
    # 10,000 stages x 16,384 microbatches x 3 kinds are claimed, none is there; placement is absurd.
    model = {**TOY, "layers": "A" * 10_000}
    instance = toy_instance(model=model, microbatches=16_384, stages__max_per_device=None)
    plan = on(toy_plan(), instance=instance, partition=[1] * 10_000, placement=[10**5000], ops=[])
    says(plan, "ops", "and 491519990 more")
    says(plan, "placement", "a number of about 5001 digits")
