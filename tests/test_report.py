"""Idle-time statistics against hand counts, and the terminal view at every width, with and without colour."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handmade import toy_instance, toy_plan
from octocp.report.bubbles import analyse
from octocp.report.show import render, strip_kinds, strip_owners, summary
from octocp.report.units import axis_marks, milliseconds, printable
from octocp.report.words import BOUND_WORDS
from octocp.schema import Plan

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def by_hand(ops: list[tuple[int, str, int, int]], devices: int = 2, **changes: Any) -> Plan:
    """A plan with exactly these ops: (device, kind, start, end), stage = device, microbatch by count."""
    plan = toy_plan(cluster__devices=devices, partition=(6 // devices,) * devices, placement=tuple(range(devices)))
    template = plan.ops[0]
    made = [
        template.model_copy(update={"device": d, "stage": d, "kind": k, "microbatch": m, "start": a, "end": b})
        for m, (d, k, a, b) in enumerate(ops)
    ]
    return plan.model_copy(update={"ops": made, **changes})


def test_idle_time_is_split_as_counted_by_hand() -> None:
    # Device 0 is idle in [0,2), [5,8), [12,14), [15,16) and [17,20); device 1 is never.
    report = analyse(
        by_hand(
            [
                (0, "F", 2, 5),
                (0, "B", 8, 12),
                (0, "F", 14, 15),
                (0, "W", 16, 17),
                (1, "F", 0, 10),
                (1, "B", 10, 20),
            ]
        )
    )
    one, two = report.devices
    assert (report.makespan, report.bubble) == (20, 11 / 40)
    assert (one.busy, one.idle) == (9, 11)
    assert (one.leading, one.inner, one.trailing) == (2, 6, 3)
    # a = 8, the first B's start; b = 15, the last F's end.
    assert (one.warm_up, one.steady, one.cool_down) == (5, 2, 4)
    assert (one.imbalance, two.imbalance) == (11, 0)
    assert (two.busy, two.idle, two.leading, two.inner, two.trailing) == (20, 0, 0, 0, 0)


def test_phases_when_all_forwards_end_before_the_first_backward() -> None:
    # a is then the last F's end and b the first B's start: the wait between them is steady.
    one = analyse(by_hand([(0, "F", 1, 3), (0, "B", 7, 9), (1, "F", 0, 10)])).devices[0]
    assert (one.warm_up, one.steady, one.cool_down) == (1, 4, 1)


def test_a_device_without_ops_or_without_backward() -> None:
    none, forward = analyse(by_hand([(1, "F", 2, 6)])).devices
    assert (none.idle, none.leading, none.inner, none.trailing) == (6, 6, 0, 0)
    assert (none.warm_up, none.steady, none.cool_down) == (6, 0, 0)
    assert (forward.warm_up, forward.steady, forward.cool_down) == (2, 0, 0)
    empty = analyse(by_hand([]))
    assert (empty.makespan, empty.bubble) == (0, 0.0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from("FBW"), st.integers(0, 50), st.integers(0, 50)),
        max_size=12,
    )
)
def test_both_splits_add_up_even_for_broken_plans(ops: list[tuple[int, str, int, int]]) -> None:
    plan = by_hand(ops)
    report = analyse(plan)
    for device in report.devices:
        assert device.leading + device.inner + device.trailing == device.idle
        assert device.warm_up + device.steady + device.cool_down == device.idle
        assert min(device.leading, device.inner, device.trailing) >= 0
        assert min(device.warm_up, device.steady, device.cool_down) >= 0
        assert device.busy + device.idle == report.makespan
    assert 0 <= report.bubble <= 1
    render(plan, 60)


def chunked(**changes: Any) -> Plan:
    return toy_plan(partition=(1, 2, 2, 1), placement=(0, 1, 1, 0), **changes)


PLANS = {
    "plain": toy_plan,
    "chunks": chunked,
    "fused": lambda: toy_plan(training__split_backward=False),
    "recompute": lambda: toy_plan(training__recompute="full", cluster__memory_gb=1234.5),
    "one op each": lambda: toy_plan(cluster__devices=1, microbatches=1, partition=(6,), placement=(0,)),
    "many ops": lambda: toy_plan(microbatches=60),
    "names": lambda: toy_plan(
        name="[red]x[/red]\x1b[31m",
        cluster__devices=[{"name": "a very long name of a device indeed"}, {"name": "装置"}],
    ),
    "broken": lambda: toy_plan().model_copy(
        update={"ops": [], "placement": [7], "peak_memory_gb": [], "recompute": []}
    ),
}


@pytest.mark.parametrize("name", PLANS, ids=list(PLANS))
@pytest.mark.parametrize("unicode", [True, False], ids=["unicode", "ascii"])
@pytest.mark.parametrize("width", [40, 41, 57, 87, 88, 100, 173])
def test_no_line_is_wider_than_asked(name: str, width: int, unicode: bool) -> None:
    from rich.cells import cell_len

    plan = PLANS[name]()
    plain = render(plan, width, unicode=unicode)
    assert max(map(cell_len, plain.splitlines())) <= width
    assert "\x1b" not in plain
    # Names may be cut short; numbers and headings never are.
    assert not re.search(r"[\d.%/-]…", plain)
    assert "cool" in plain
    assert all(line.rstrip()[-1] in "GB0123456789?" for line in plain.splitlines() if re.search(r"\d ?% ", line))
    coloured = ANSI.sub("", render(plan, width, colour=True, unicode=unicode))
    assert "\x1b" not in coloured
    assert max(map(cell_len, coloured.splitlines())) <= width
    if not unicode:
        assert plain.isascii()


def test_the_header_says_what_was_reached() -> None:
    text = " ".join(render(toy_plan(), 200).split())
    for part in (
        "toy-p2-m4, method by hand",
        "makespan 163 ms (163 ticks)",
        "lower bound 1 ms (1 tick)",
        "gap 99.4 %",
        "feasible",
        "bubble 14.1 %",
        "6 layers, 2 stages, 2 devices, 4 microbatches",
    ):
        assert part in text


def test_the_table_shows_layers_and_memory() -> None:
    text = render(chunked(cluster__memory_gb=80.0), 100)
    assert re.search(r"device 0 +0, 5 .* 7 / 80 GB", text)
    assert re.search(r"device 1 +1-2, 3-4 ", text)
    assert "0-2r" in render(toy_plan(training__recompute="full"), 100)


def test_strips_without_colour_tell_kinds_and_stages_apart() -> None:
    # 152 of 163 columns: device 1 starts after stage 0's 11 ticks, and every op shows its microbatch.
    line = next(line for line in render(toy_plan(), 166).splitlines() if line.startswith("d1 "))
    assert line.startswith("d1 " + "·" * 11 + "F0" + "─" * 11 + "B0" + "═" * 14)
    assert " ".join(re.findall(r"[FBW]\d", line)) == "F0 B0 F1 B1 F2 B2 F3 B3 W0 W1 W2 W3"
    second = next(line for line in render(chunked(), 240).splitlines() if line.startswith("d1 "))
    assert "F0" in second
    assert "f0" in second
    assert "f, b, w: every other stage" in " ".join(render(chunked(), 240).split())


def test_a_strip_column_shows_what_fills_most_of_it() -> None:
    plan = by_hand([(0, "F", 0, 3), (0, "B", 3, 4), (0, "W", 8, 9), (0, "B", 9, 10)])
    owners = strip_owners(plan.ops, 10, 2)
    # [0,5) is F for three of five; [5,10) is idle for three of five.
    assert [owner.kind if owner else None for owner in owners] == ["F", None]
    assert [owner.kind if owner else "." for owner in strip_owners(plan.ops, 10, 10)] == list("FFFB....WB")


def test_crowded_strips_are_still_complete() -> None:
    plan = toy_plan(microbatches=200)
    text = render(plan, 40)
    strips = [line for line in text.splitlines() if re.match(r"d\d [·█▒░]", line)]
    assert [len(line) for line in strips] == [40, 40]
    assert "each column is one kind" in " ".join(text.split())
    assert "microbatch" not in text[text.index("d0 ") :]
    assert re.search(r"^d0 [#=.-]{37}$", render(plan, 40, unicode=False), re.MULTILINE)
    coloured = render(plan, 40, colour=True)
    assert set(re.findall(r"48;5;(\d+)m", coloured)) == {"25", "208", "107"}


def test_a_shaded_strip_gives_every_kind_its_share() -> None:
    # F and B of 7 and 3 ticks in turn: no column is more B than F, yet three of ten columns show it.
    ops = [(0, kind, start, end) for k in range(100) for kind, start, end in (("F", 10 * k, 10 * k + 7),)]
    ops += [(0, "B", 10 * k + 7, 10 * k + 10) for k in range(100)]
    kinds = strip_kinds(by_hand(ops).ops, 1000, 50)
    assert (kinds.count("F"), kinds.count("B"), kinds.count("")) == (35, 15, 0)
    # A column shows only what is in it.
    kinds = strip_kinds(by_hand([(0, "F", 0, 14), (0, "B", 16, 40)]).ops, 40, 4)
    assert kinds[0] == "F"
    assert kinds[2:] == ["B", "B"]


def test_found_by_and_bound_are_told_in_words() -> None:
    plan = toy_plan()
    info = plan.solve.model_copy(update={"found_by": "local search", "bound_name": "indivisible layer"})
    text = " ".join(render(plan.model_copy(update={"solve": info}), 200).split())
    assert "Found by local search." in text
    assert "Bound: indivisible layer (layers that cannot be cut run every microbatch on one device" in text
    data = summary(plan.model_copy(update={"solve": info}))
    assert (data["found_by"], data["bound_name"]) == ("local search", "indivisible layer")
    assert "Found by" not in render(plan, 200)


def test_every_bound_has_words() -> None:
    from octocp.bounds import all_bounds
    from octocp.costs import build_problem

    names = {bound.name for bound in all_bounds(build_problem(toy_instance()))} | {"balanced load", "joint model"}
    assert names <= set(BOUND_WORDS)


def test_the_parts_of_a_device_s_time_are_explained() -> None:
    text = " ".join(render(toy_plan(), 100).split())
    assert "with busy they add up to the whole step" in text
    assert "no further share" in text
    assert "nothing in the model has a size" not in text


def test_no_peak_memory_where_nothing_has_a_size() -> None:
    plan = toy_plan(cluster__memory_gb=80.0)
    model = plan.instance.model
    none = dict.fromkeys(("static_gb", "activation_gb", "weight_activation_gb"), 0.0)
    model = model.model_copy(
        update={"kinds": {kind: costs.model_copy(update=none) for kind, costs in model.kinds.items()}}
    )
    bare = plan.model_copy(update={"instance": plan.instance.model_copy(update={"model": model})})
    for width in (60, 100):
        text = render(bare, width)
        assert re.search(r"^ ?d\S* .* -$", text, re.MULTILINE)
        assert "nothing in the model has a size" in " ".join(text.split())


def test_colour_marks_each_kind_and_alternate_stage() -> None:
    text = render(chunked(), 200, colour=True)
    codes = set(re.findall(r"48;5;(\d+)m", text))
    assert codes == {"25", "67", "208", "215", "107", "150"}


def test_summary_is_plain_data() -> None:
    plan = chunked()
    data = summary(plan)
    assert json.loads(json.dumps(data)) == data
    assert (data["makespan"], data["makespan_ms"], data["gap"]) == (
        plan.makespan,
        float(plan.makespan),
        plan.gap,
    )
    assert [stage["first_layer"] for stage in data["devices"][1]["stages"]] == [1, 3]
    assert data["devices"][0]["busy"] == 48
    assert json.dumps(summary(PLANS["broken"]()))


def test_units() -> None:
    plan = toy_plan(toy_instance(tick_us=0.1)).model_copy(update={"tick_us": 0.1})
    assert milliseconds(plan, 3) == 0.0003
    assert axis_marks(163.0, 4) == [(0, "0"), (50, "50"), (100, "100"), (150, "150")]
    assert [label for _, label in axis_marks(0.42, 3)] == ["0.0", "0.2", "0.4"]
    assert axis_marks(0.0, 5) == [(0.0, "0")]
    assert printable("a\x1b[1m\nb") == "a?[1m?b"
    assert len(printable("x" * 500)) == 120
