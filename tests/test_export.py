"""Files for other tools: each is parsed back and compared with the plan."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections import defaultdict
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from handmade import toy_plan
from octocp.checker import memory_timeline
from octocp.errors import InputError
from octocp.report.export import EXPORTERS, SUFFIXES
from octocp.report.export.gantt import COLOURS, NODE, colour, ink_on, layout
from octocp.schema import Plan

SVG = "{http://www.w3.org/2000/svg}"

PLANS = {
    "plain": {},
    "chunks": {"partition": (1, 2, 2, 1), "placement": (0, 1, 1, 0)},
    "fused": {"training__split_backward": False},
    "odd tick": {"training__op_overhead_us": 100.0, "tick_us": 333.3, "cluster__link": {"latency_us": 100.0}},
    "one op each": {"cluster__devices": 1, "microbatches": 1, "partition": (6,), "placement": (0,)},
    "names": {
        "name": "<b>&\x01 $x$ \\frac",
        "cluster__devices": [{"name": 'a"<&>\x1b'}, {"name": "装置 $1$"}],
    },
}


def make(name: str) -> Plan:
    return toy_plan(**PLANS[name])


def broken() -> Plan:
    plan = toy_plan()
    far = plan.ops[0].model_copy(update={"device": 900, "stage": 77, "start": 9, "end": 3})
    return plan.model_copy(
        update={"ops": [far, *plan.ops[::3]], "placement": [7], "peak_memory_gb": [], "partition": [9]}
    )


@pytest.mark.parametrize("format_", sorted(EXPORTERS))
def test_broken_and_empty_plans_are_exported_too(format_: str) -> None:
    plan = broken()
    assert EXPORTERS[format_](plan)
    assert EXPORTERS[format_](plan.model_copy(update={"ops": []}))
    assert format_ in SUFFIXES


# ---------------------------------------------------------------------------------------------
# Chrome trace


def trace(plan: Plan) -> dict[str, list[dict[str, Any]]]:
    document = json.loads(EXPORTERS["trace"](plan))
    assert document["displayTimeUnit"] == "ms"
    events: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in document["traceEvents"]:
        events[event["ph"]].append(event)
    assert set(events) <= set("MXCsf")
    return events


@pytest.mark.parametrize("name", PLANS)
def test_trace_threads_are_unique_and_named(name: str) -> None:
    plan, events = make(name), trace(make(name))
    devices = len(plan.instance.cluster.device_list())
    assert {event["pid"] for group in events.values() for event in group} == {1}
    threads = [event["tid"] for event in events["M"] if event["name"] == "thread_name"]
    assert len(threads) == len(set(threads)) == devices
    assert {event["tid"] for event in events["X"]} == set(threads)
    assert sum(event["name"] == "process_name" for event in events["M"]) == 1


@pytest.mark.parametrize("name", PLANS)
def test_trace_slices_are_the_ops_and_never_overlap(name: str) -> None:
    plan, events = make(name), trace(make(name))
    assert len(events["X"]) == len(plan.ops)
    ops = {(op.kind, op.stage, op.microbatch): op for op in plan.ops}
    by_thread = defaultdict(list)
    for event in events["X"]:
        kind, microbatch = event["name"].split()
        op = ops[kind, event["args"]["stage"], int(microbatch)]
        assert event["ts"] == pytest.approx(op.start * plan.tick_us, abs=0.001)
        assert event["dur"] == pytest.approx((op.end - op.start) * plan.tick_us, abs=0.002)
        assert (event["args"]["start_tick"], event["args"]["end_tick"]) == (op.start, op.end)
        by_thread[event["tid"]].append((round(event["ts"] * 1000), round(event["dur"] * 1000)))
    for slices in by_thread.values():
        ordered = sorted(slices)
        assert all(a + length <= b for (a, length), (b, _) in pairwise(ordered))


@pytest.mark.parametrize("name", PLANS)
def test_trace_arrows_are_paired_and_inside_their_slices(name: str) -> None:
    plan, events = make(name), trace(make(name))
    starts = {event["id"]: event for event in events["s"]}
    ends = {event["id"]: event for event in events["f"]}
    assert set(starts) == set(ends)
    assert len(starts) == len(events["s"]) == len(events["f"])
    cuts = sum(a != b for a, b in zip(plan.placement, plan.placement[1:], strict=False))
    # B of the embedding alone takes no time: no arrow can be tied to it.
    weightless = sum(op.kind == "B" and op.start == op.end for op in plan.ops)
    assert len(starts) == 2 * cuts * len(plan.instance.lengths()) - weightless

    def inside(event: dict[str, Any]) -> dict[str, Any]:
        hits = [
            piece
            for piece in events["X"]
            if piece["tid"] == event["tid"] and piece["ts"] < event["ts"] < piece["ts"] + piece["dur"]
        ]
        assert len(hits) == 1
        return hits[0]

    for number, start in starts.items():
        end = ends[number]
        assert end["bp"] == "e"
        assert start["ts"] <= end["ts"]
        assert start["tid"] != end["tid"]
        source, target = inside(start), inside(end)
        assert source["name"] == target["name"]
        step = 1 if source["cat"] == "forward" else -1
        assert target["args"]["stage"] - source["args"]["stage"] == step


def test_trace_counts_memory() -> None:
    plan, events = make("plain"), trace(make("plain"))
    peaks: dict[str, float] = defaultdict(float)
    for event in events["C"]:
        peaks[event["name"]] = max(peaks[event["name"]], event["args"]["GB"])
    assert peaks == {"memory of device 0": 9.25, "memory of device 1": 10.5}
    assert len(events["C"]) <= sum(map(len, memory_timeline(plan)))


# ---------------------------------------------------------------------------------------------
# SVG and PNG


@pytest.mark.parametrize("name", PLANS)
def test_svg_is_xml_with_a_box_per_op(name: str) -> None:
    plan = make(name)
    root = ET.fromstring(EXPORTERS["svg"](plan))
    tips = [title.text for rect in root.iter(f"{SVG}rect") for title in rect.iter(f"{SVG}title")]
    timed = [op for op in plan.ops if op.end > op.start]
    assert len(tips) == len(timed)
    for op in timed:
        assert any(
            tip and tip.startswith(f"{op.kind} of stage {op.stage}, microbatch {op.microbatch}:") for tip in tips
        )
    text = " ".join(element.text or "" for element in root.iter(f"{SVG}text"))
    for part in ("makespan", "lower bound", "gap", "bubble", "time (ms)", "forward", "idle"):
        assert part in text


@pytest.mark.parametrize("name", PLANS)
def test_nothing_of_the_chart_is_off_the_page(name: str) -> None:
    scene = layout(make(name))
    for box in scene.boxes:
        assert 0 <= box.x <= box.x + box.width <= scene.width
        assert 0 <= box.y <= box.y + box.height <= scene.height
    for label in scene.labels:
        assert 0 <= label.x <= scene.width
        assert 0 <= label.y <= scene.height


def test_boxes_of_a_row_do_not_overlap() -> None:
    scene = layout(make("chunks"))
    rows = defaultdict(list)
    for box in scene.boxes:
        if box.tip:
            rows[box.y].append(box)
    assert len(rows) == 2
    for row in rows.values():
        ordered = sorted(row, key=lambda box: box.x)
        assert all(a.x + a.width <= b.x + 1e-9 for a, b in pairwise(ordered))


def test_a_thousand_devices_still_make_a_page() -> None:
    plan = make("plain")
    cluster = plan.instance.cluster.model_copy(update={"devices": 1024})
    scene = layout(plan.model_copy(update={"instance": plan.instance.model_copy(update={"cluster": cluster})}))
    assert scene.height < 2600


def test_crowded_charts_leave_numbers_out() -> None:
    scene = layout(toy_plan(microbatches=150))
    microbatches = [label for label in scene.labels if label.anchor == "middle" and label.size < 10]
    assert not any(label.text.isdecimal() for label in microbatches)
    assert scene.width < 3000
    assert not any("number: microbatch" in label.text for label in scene.labels)
    some = [label for label in layout(make("plain")).labels if label.text.isdecimal() and label.size < 10]
    assert some
    assert all(label.size >= 6 for label in some)


def test_a_line_stands_between_nodes() -> None:
    def lines(nodes: list[int]) -> tuple[list[float], bool]:
        scene = layout(
            toy_plan(
                cluster__devices=[{"node": node} for node in nodes],
                partition=(2, 2, 2),
                placement=(0, 1, 2),
            )
        )
        explained = any("line: another node" in label.text for label in scene.labels)
        return [line.y1 for line in scene.lines if line.stroke == NODE], explained

    assert lines([0, 0, 0]) == ([], False)
    (y,), explained = lines([0, 0, 1])
    assert explained
    rows = sorted({box.y for box in layout(make("plain")).boxes if box.tip})
    assert y > rows[1]


def test_colours_differ_by_kind_and_lighten_by_chunk() -> None:
    assert len({colour(kind, chunk, 4) for kind in COLOURS for chunk in range(4)}) == 12
    assert colour("F", 0, 1) == colour("F", 0, 4) == "#3165a3"
    assert ink_on(colour("F", 0, 1)) != ink_on(colour("W", 0, 1))


@pytest.mark.parametrize("name", ["plain", "chunks", "names"])
def test_png_is_a_png(name: str) -> None:
    pytest.importorskip("matplotlib")
    png = EXPORTERS["png"](make(name))
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width = int.from_bytes(png[16:20], "big")
    assert width > 2000


def test_png_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r'pip install "octocp\[plot\]"'):
        EXPORTERS["png"](make("plain"))


# ---------------------------------------------------------------------------------------------
# CSV


@pytest.mark.parametrize("name", PLANS)
def test_csv_round_trip(name: str) -> None:
    plan = make(name)
    rows = list(csv.DictReader(io.StringIO(EXPORTERS["csv"](plan).decode())))
    columns = ("device", "stage", "microbatch", "start", "end")
    read = {(row["kind"], *(int(row[column]) for column in columns)) for row in rows}
    assert read == {(op.kind, op.device, op.stage, op.microbatch, op.start, op.end) for op in plan.ops}
    assert len(rows) == len(plan.ops)
    for row in rows:
        assert float(row["end_ms"]) == pytest.approx(int(row["end"]) * plan.tick_us / 1000)
    starts = [(int(row["device"]), int(row["start"])) for row in rows]
    assert starts == sorted(starts)
