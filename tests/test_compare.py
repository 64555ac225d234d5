"""`octocp compare`: values and shares counted by hand, what is said about the rest, aggregates, pictures, bad input."""

from __future__ import annotations

import csv
import importlib
import io
import json
import re
import sys
import time
import types
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import tiny
from octocp import api, catalog
from octocp.comparison import Choice, Comparison, Row, standings
from octocp.comparison import instance as comparison_instance
from octocp.comparison.choice import row_name
from octocp.comparison.instance import compare_instance
from octocp.comparison.pictures import profile_scene, rows_scene
from octocp.costs import build_problem
from octocp.decode import checked
from octocp.errors import InputError, NoPlanError
from octocp.heuristics import ALL_HEURISTICS
from octocp.heuristics.one_f_one_b import ONE_F_ONE_B
from octocp.heuristics.serial import serial
from octocp.report.export import draw
from octocp.schedule import Layout, Schedule
from octocp.schema import Instance
from octocp.schema.files import load_plan, write_plan
from octocp.timing import time_orders
from terminal import octocp, refused

# Four layers with F = 1, B (with W) = 2 ticks, two devices: the first with room for 2 GB or less.
EVEN = {"a": {"ms": (1, 2, 0), "activation_gb": 1}}


def even(microbatches: int = 2, memory: float | None = None, layers: str = "aa", **more: Any) -> Instance:
    return tiny.instance(
        layers, EVEN, microbatches=microbatches, memory=memory, split_backward=False, max_per_device=1, **more
    )


def run(instance: Instance, *names: str, **more: Any) -> Comparison:
    return compare_instance(instance, Choice(names), None, **more)


def rows_of(comparison: Comparison) -> dict[str, Row]:
    return {row.method: row for row in comparison.rows}


def save(instance: Instance, path: Path) -> Path:
    path.write_text(json.dumps(instance.model_dump(mode="json", exclude_none=True)))
    return path


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# ---- one instance, by hand -------------------------------------------------------------------


def test_shares_of_1f1b_by_hand() -> None:
    # Device 0: F0 [0,1) F1 [1,2) B0 [4,6) B1 [7,9); device 1: F0 [1,2) B0 [2,4) F1 [4,5) B1 [5,7). Makespan 9, load 6.
    row = rows_of(run(even(), "1f1b"))["1f1b"]
    assert (row.value, row.status, row.family, row.kind) == (9, "optimal", "1f1b", "known")
    assert row.shares is not None
    # Device 0 is idle in [2,4), steady since a = 2, the last F's end, and b = 4; and in [6,7), cool-down.
    # Device 1 is idle in [0,1) before its first B and in [7,9) after its last F.
    assert row.shares.bubble == 6 / 18
    assert (row.shares.warm_up, row.shares.steady, row.shares.cool_down) == (1 / 18, 2 / 18, 3 / 18)
    assert row.shares.imbalance == 0


def test_imbalance_by_hand() -> None:
    # Three layers, the uniform cut is 2 and 1. Device 0: F0 [0,2) F1 [2,4) B0 [5,9) B1 [9,13); device 1, from 2 on:
    # F0 B0 F1 B1, until 8. Loads 12 and 6.
    row = rows_of(run(even(layers="aaa"), "1f1b-uniform"))["1f1b"]
    assert row.value == 13
    assert row.shares is not None
    assert (row.shares.imbalance, row.shares.bubble) == (6 / 26, 8 / 26)


def test_infeasible_rows_tell_the_excess() -> None:
    # 1F1B holds two microbatches of 1 GB on device 0, GPipe four on both.
    found = rows_of(run(even(microbatches=4, memory=2), "1f1b", "gpipe", "v-min"))
    assert found["1f1b"].plan is not None
    assert found["1f1b"].worst_device == 0
    gpipe = found["gpipe"]
    assert (gpipe.status, gpipe.plan, gpipe.value) == ("infeasible", None, None)
    assert gpipe.excess is not None
    assert (gpipe.excess.device, gpipe.excess.gigabytes) in {(0, 2.0), (1, 2.0)}
    assert "2 GB too much" in gpipe.reason
    assert (found["v-min"].status, found["v-min"].reason) == ("not-applicable", "needs split_backward: true")


def test_ratios_are_to_the_best_row() -> None:
    made = run(even(microbatches=4), "1f1b", "gpipe", "octopipe")
    assert made.best == 15
    assert {row.method: row.value for row in made.rows} == {"1f1b": 15, "gpipe": 15, "octopipe": 15}
    assert [row.method for row in made.ranked()] == ["gpipe", "1f1b", "octopipe"]
    uneven = run(tiny.instance([(1, 2, 1), (3, 3, 3)], max_per_device=1), "1f1b", "zb-h1")
    best = min(row.value for row in uneven.rows if row.value)
    assert [uneven.ratio(row) for row in uneven.rows] == [row.value / best for row in uneven.rows if row.value]


def test_all_rows_have_the_solver_s_bound_and_no_plan_may_be_below_it() -> None:
    instance = even(microbatches=3)
    rows = api.compare(instance, time_limit=10, workers=1)
    assert len({row.lower_bound for row in rows}) == 1
    assert rows[-1].method == "cp-sat"
    assert all(row.plan is None or row.plan.lower_bound == row.lower_bound for row in rows)
    assert all((row.status == "optimal") == (row.value == row.lower_bound) for row in rows if row.plan)
    with pytest.raises(api.octocp.OctoCPError, match="below the lower bound"):
        rows[0].bounded(10**6)


def test_every_known_schedule_and_the_tuner_have_a_row() -> None:
    made = run(even())
    families = list(dict.fromkeys(row.family for row in made.rows))
    assert families == [*(heuristic.name for heuristic in ALL_HEURISTICS), "octopipe"]


def test_v_half_is_the_same_on_small_instances() -> None:
    problem = tiny.problem("aaaa", {"a": (1, 1, 1)}, microbatches=4)
    from octocp.comparison import KNOWN

    quick, full = (next(one for one in many if one.name == "v-half") for many in (KNOWN, ALL_HEURISTICS))
    layout = Layout((0, 1, 2, 3, 4), full.placements(problem)[0])
    assert quick.run(problem, layout).value == full.run(problem, layout).value


# ---- which rows ------------------------------------------------------------------------------


def test_methods_by_name() -> None:
    uneven = tiny.instance("aaaab", {"a": (1, 2, 0), "b": (4, 8, 0)}, split_backward=False, max_per_device=1)
    assert set(rows_of(run(uneven, "1f1b"))) == {"1f1b", "1f1b-balanced"}
    assert set(rows_of(run(uneven, "1f1b-balanced", "gpipe-uniform"))) == {"1f1b-balanced", "gpipe"}
    # A rule that cuts as another one does has no row of its own; the method still has one.
    assert set(rows_of(run(even(), "1f1b-balanced"))) == {"1f1b"}
    assert row_name("1f1b", "uniform") == "1f1b"
    with pytest.raises(InputError, match=r"no method is called '1f1c'"):
        Choice(["1f1c"])


def test_best_partition_is_a_row_where_it_is_better() -> None:
    ran = octocp("compare", "tiny-uneven-head", "--no-solver", "--best-partition", "-t", 20, "-w", 1, "--json")
    rows = {row["method"]: row for row in json.loads(ran.out)}
    assert rows["zb-h1-best"]["value"] < min(rows["zb-h1"]["value"], rows["zb-h1-balanced"]["value"])
    assert rows["zb-h1-best"]["kind"] == "best-partition"
    assert "1f1b-best" not in rows
    methods = list(rows)
    assert methods.index("zb-h1-best") == methods.index("zb-h1-balanced") + 1
    ran = octocp("compare", "tiny-uneven-head", "--no-solver", "--best-partition", "-t", 20, "--methods", "1f1b")
    assert "No -best row of 1f1b: no partition is better for their orders." in ran.out


def test_best_partition_may_bring_a_schedule_into_memory() -> None:
    # 1F1B with [3, 2] needs 9 GB of 6, with [2, 3] it fits (the teaching instance says so).
    instance = api.load_instance("tiny-memory")
    rows = {row.method: row for row in api.compare(instance, solver=False, best_partition=True, methods=["zb-h1"])}
    assert rows["zb-h1"].status == "infeasible"
    assert "zb-h1-best" not in rows or rows["zb-h1-best"].plan is not None


# ---- schedules of one's own ------------------------------------------------------------------


@dataclass(frozen=True)
class Imported:
    name: str
    schedule: Schedule
    notes: tuple[str, ...] = ()


@pytest.fixture
def importers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for `octocp.importers`: a file holds "serial" or "1f1b", the order to use on the uniform cut."""

    def read_schedule(problem: Any, path: Path, *, instance: Instance, partition: Any = None) -> Imported:
        assert partition is None
        text = path.read_text().strip()
        if text not in ("serial", "1f1b"):
            raise InputError("cell B3: no such op", file=str(path))
        layout = Layout((0, 1, 2), (0, 1))
        order = serial if text == "serial" else ONE_F_ONE_B.orders
        return Imported(path.stem, time_orders(problem, layout, order(problem, layout)), ("assumed two stages",))

    stub = types.ModuleType("octocp.importers")
    stub.read_schedule = read_schedule  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "octocp.importers", stub)


def test_add(importers: None) -> None:
    save(even(microbatches=2), Path("even.json"))
    Path("mine.csv").write_text("serial\n")
    Path("1f1b-balanced.csv").write_text("1f1b\n")
    ran = octocp("compare", "even.json", "--no-solver", "--add", "mine.csv", "--add", "1f1b-balanced.csv", "--json")
    assert ran.code == 0, ran
    assert ran.err.splitlines() == ["mine.csv: assumed two stages", "1f1b-balanced.csv: assumed two stages"]
    rows = {row["method"]: row for row in json.loads(ran.out)}
    # One microbatch after the other: each takes 1 + 1 + 2 + 2 ticks, and none overlap.
    mine = rows["mine.csv"]
    assert (mine["makespan"], mine["kind"], mine["ratio"]) == (12, "own", pytest.approx(4 / 3))
    # Named after the whole file, whatever the methods are called.
    assert rows["1f1b-balanced.csv"]["makespan"] == rows["1f1b"]["makespan"] == 9
    assert (mine["file"], rows["1f1b"]["file"]) == ("mine.csv", None)
    Path("sub").mkdir()
    Path("sub/mine.csv").write_text("1f1b\n")
    again = ["--add", "mine.csv", "--add", "sub/mine.csv", "--add", "mine.csv", "--methods", "1f1b", "--json"]
    own = [row for row in json.loads(octocp("compare", "even.json", "--no-solver", *again).out) if row["file"]]
    assert [row["method"] for row in own] == ["mine.csv", "sub/mine.csv", "mine.csv (2)"]
    ran = octocp("compare", "even.json", "--no-solver", "--add", "mine.csv")
    assert "mine.csv: gpipe saves 25.0 % of its time; at most 25.00 % of it can be saved." in ran.out


def test_add_over_the_memory_limit(importers: None) -> None:
    save(even(microbatches=2, memory=1), Path("tight.json"))
    Path("mine.csv").write_text("1f1b\n")
    ran = octocp("compare", "tight.json", "--no-solver", "--add", "mine.csv")
    assert "mine.csv by 1 GB on device 0 (9 ms)" in " ".join(ran.out.split())
    rows = {row["method"]: row for row in json.loads(octocp("compare", "tight.json", "--no-solver", "--json").out)}
    assert (rows["1f1b"]["makespan"], rows["1f1b"]["value_over_limit"], rows["1f1b"]["value_over_limit_ms"]) == (
        None,
        9,
        9.0,
    )
    assert (rows["1f1b"]["excess_gb"], rows["1f1b"]["excess_device"]) == (1.0, "device 0")


def test_add_against_the_rules_of_the_instance(importers: None) -> None:
    save(even(placement=[1, 0]), Path("turned.json"))
    Path("mine.csv").write_text("1f1b\n")
    ran = octocp("compare", "turned.json", "--no-solver", "--add", "mine.csv", "--json")
    (mine,) = (row for row in json.loads(ran.out) if row["kind"] == "own")
    assert (mine["status"], mine["makespan"]) == ("not-applicable", None)
    assert "fixes another placement" in mine["reason"]


def test_add_refuses(importers: None) -> None:
    save(even(), Path("even.json"))
    Path("bad.csv").write_text("?")
    assert "bad.csv: cell B3: no such op" in refused("compare", "even.json", "--add", "bad.csv")
    assert "nowhere.csv: --add: no such file" in refused("compare", "even.json", "--add", "nowhere.csv")
    assert "--add is for one instance" in refused("compare", "even.json", "tiny-memory", "--add", "bad.csv")


# ---- JSON and CSV ----------------------------------------------------------------------------


def test_json_and_csv_say_the_same() -> None:
    save(even(microbatches=4, memory=2), Path("even.json"))
    rows = json.loads(octocp("compare", "even.json", "--no-solver", "--json").out)
    table = list(csv.DictReader(io.StringIO(octocp("compare", "even.json", "--no-solver", "--csv").out)))
    assert [row["method"] for row in rows] == [row["method"] for row in table]
    assert list(rows[0]) == list(table[0])
    for row, line in zip(rows, table, strict=True):
        for key in ("status", "makespan", "ratio", "bubble", "warm_up", "excess_gb", "lower_bound", "reason"):
            assert line[key] == ("" if row[key] is None else str(row[key])), key
        assert all(row[key] is None or row[key] == round(row[key], 6) for key in ("gap", "bubble"))
        if row["makespan"] is not None:
            assert line["peak_memory_gb"].split() == [str(peak) for peak in row["peak_memory_gb"]]
            assert row["warm_up"] + row["steady"] + row["cool_down"] == pytest.approx(row["bubble"], abs=1e-5)
    found = {row["method"]: row for row in rows}
    assert found["1f1b"]["peak_memory_gb"] == [2.0, 1.0]
    assert found["1f1b"]["memory_gb"] == [2.0, 2.0]
    assert found["1f1b"]["worst_device"] == "device 0"
    assert found["1f1b"]["value_ms"] == found["1f1b"]["makespan"] == 15
    assert found["gpipe"]["excess_gb"] == 2.0
    assert found["gpipe"]["ratio"] is found["gpipe"]["bubble"] is None
    assert "both write to stdout" in refused("compare", "even.json", "--json", "--csv")


# ---- the table -------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [60, 80, 100, 120, 160])
def test_the_table_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # The one imports from the other: both patched only once they are there.
    importlib.import_module("octocp.cli.compare_tables")
    for module in ("output", "compare_tables"):
        monkeypatch.setattr(f"octocp.cli.{module}.is_terminal", lambda: True)
        monkeypatch.setattr(f"octocp.cli.{module}.width", lambda: columns)
    monkeypatch.setenv("NO_COLOR", "1")
    for command in (["tiny-memory"], ["teaching"]):
        ran = octocp("compare", *command, "--no-solver")
        assert ran.code == 0, ran
        lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in ran.out.splitlines()]
        assert max(map(len, lines[2:])) <= columns
        text = " ".join(" ".join(lines).split())
        assert ("No room for:" in text) == any("No room for:" in line for line in lines)
    assert ("No room for" in text) == (columns < 120)


def test_the_table_is_in_order_and_says_what_is_left_out() -> None:
    save(even(microbatches=4, memory=2), Path("even.json"))
    out = octocp("compare", "even.json", "--no-solver").out
    head = out.splitlines()[2].split("  ")
    assert head[0] == "method"
    assert "gap: the share of its time that could be saved at most." in " ".join(out.split())
    for word in ("makespan ms", "ratio", "gap", "bubble", "warm-up", "steady", "cool-down", "imbal.", "peak GB"):
        assert word in out.splitlines()[2]
    assert re.search(r"^1f1b +15 +15 +1\.000 +(optimal|\d+\.\d\d %) +20\.0 % .* 2/2 d0 +2 ", out, re.MULTILINE)
    assert re.search(r"Infeasible, over the memory limit: .*gpipe by 2 GB on device [01]", " ".join(out.split()))
    # Each reason once.
    assert out.count("needs split_backward: true") == 1


# ---- several instances -----------------------------------------------------------------------


def made(values: dict[str, list[int | None]], bound: int = 1) -> list[Comparison]:
    """Comparisons with given values: plans of a real instance whose makespan is said to be another one."""
    instance = even()
    problem = build_problem(instance)
    layout = Layout((0, 1, 2), (0, 1))
    plan = checked(time_orders(problem, layout, serial(problem, layout)), instance, method="serial", lower_bound=bound)
    count = len(next(iter(values.values())))
    found = []
    for index in range(count):
        rows = []
        for method, column in values.items():
            value = column[index]
            said = None if value is None else plan.model_copy(update={"makespan": value})
            status = "infeasible" if value is None else "feasible"
            rows.append(Row(method, status, said, bound, 0.0, "", method))
        found.append(Comparison(instance, rows))
    return found


def test_standings_by_hand() -> None:
    # Ratios: a 1, 1, 1.2, -; b 1.1, 1.05, 1, 1; c 1.5, -, 4/3, 1.
    comparisons = made({"a": [100, 100, 120, None], "b": [110, 105, 100, 50], "c": [150, None, 150, 50]})
    comparisons[2].rows[2] = Row("c", "not-applicable", None, 1, 0.0, "no", "c")
    b, a, c = standings(comparisons)
    assert [one.method for one in (a, b, c)] == ["a", "b", "c"]
    assert (a.plans, a.best, a.infeasible, a.not_applicable) == (3, 2, 1, 0)
    assert (c.plans, c.best, c.infeasible, c.not_applicable) == (2, 1, 1, 1)
    assert a.mean == pytest.approx(1.2 ** (1 / 3))
    assert b.mean == pytest.approx((1.1 * 1.05) ** (1 / 4))
    assert c.mean == pytest.approx(1.5**0.5)
    assert [a.within(t) for t in (1.0, 1.01, 1.05, 1.1, 1.2, 1.5)] == [0.5, 0.5, 0.5, 0.5, 0.75, 0.75]
    assert [b.within(t) for t in (1.0, 1.01, 1.05, 1.1, 1.2, 1.5)] == [0.5, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert [c.within(t) for t in (1.0, 1.2, 1.5)] == [0.25, 0.25, 0.5]


def test_the_best_row_of_a_method_counts_and_unfinished_instances_do_not() -> None:
    comparisons = made({"a": [100, 100], "b": [120, 110]})
    better = comparisons[0].rows[1]
    assert better.plan is not None
    plan = better.plan.model_copy(update={"makespan": 100})
    comparisons[0].rows.append(Row("b-balanced", "feasible", plan, 1, 0.0, "", "b"))
    found = {one.method: one for one in standings(comparisons)}
    assert found["b"].ratios == (1.0, 1.1)
    comparisons[1].complete = False
    assert {one.method: one.ratios for one in standings(comparisons)} == {"a": (1.0,), "b": (1.0,)}
    assert standings([]) == []


@pytest.fixture
def folder() -> Path:
    path = Path("many")
    path.mkdir()
    save(even(microbatches=2, name="one"), path / "one.json")
    save(even(microbatches=4, memory=2, name="two"), path / "two.json")
    (path / "three.plan.json").write_text("{}")
    (path / "notes.json").write_text('{"anything": 1}')
    (path / "read.me").write_text("no instance")
    return path


def test_a_folder(folder: Path) -> None:
    data = json.loads(octocp("compare", folder, "--no-solver", "--methods", "1f1b,gpipe,zb-h1", "--json").out)
    assert [(each["instance"], each["best"], each["best_method"]) for each in data["instances"]] == [
        ("one", 9, "gpipe"),
        ("two", 15, "1f1b"),
    ]
    methods = {each["method"]: each for each in data["methods"]}
    assert methods["1f1b"] == {
        "method": "1f1b",
        "instances": 2,
        "plans": 2,
        "geometric_mean_ratio": 1.0,
        "best": 2,
        "infeasible": 0,
        "not_applicable": 0,
        "unknown": 0,
        "within": {"1.00": 1.0, "1.01": 1.0, "1.05": 1.0, "1.10": 1.0, "1.20": 1.0, "1.50": 1.0},
    }
    assert (methods["gpipe"]["plans"], methods["gpipe"]["infeasible"], methods["gpipe"]["within"]["1.50"]) == (
        1,
        1,
        0.5,
    )
    assert (methods["zb-h1"]["not_applicable"], methods["zb-h1"]["geometric_mean_ratio"]) == (2, None)
    assert {row["instance"] for row in data["rows"]} == {"one", "two"}
    table = csv.DictReader(io.StringIO(octocp("compare", folder, "--no-solver", "--csv").out))
    assert {row["instance"] for row in table} == {"one", "two"}
    out = octocp("compare", folder, "--no-solver", "--methods", "1f1b,gpipe").out
    assert re.search(r"^1f1b +1\.000 +2 +2 +0 +0 .* 100 %$", out, re.MULTILINE)
    assert re.search(r"^gpipe +1\.000 +1 +1 +1 +0 .* 50 %$", out, re.MULTILINE)
    # Several files are as good as a folder, a folder of the catalogue as one of one's own.
    again = json.loads(
        octocp("compare", folder / "one.json", folder / "two.json", "--no-solver", "--methods", "1f1b", "--json").out
    )
    assert [each["instance"] for each in again["instances"]] == ["one", "two"]
    data = json.loads(octocp("compare", "teaching", "--no-solver", "--methods", "1f1b", "--json").out)
    assert {each["instance"] for each in data["instances"]} == {"tiny-memory", "tiny-two-devices", "tiny-uneven-head"}


def test_an_instance_that_has_no_plan_does_not_end_the_rest(folder: Path) -> None:
    save(even(memory=0.5, name="zero"), folder / "zero.json")
    ran = octocp("compare", folder, "-t", 5, "-w", 1, "--methods", "1f1b", "--json")
    assert ran.code == 0, ran
    assert "warning: " in ran.err
    data = json.loads(ran.out)
    (zero,) = (each for each in data["instances"] if each["instance"] == "zero")
    assert (zero["best"], zero["reason"] != "") == (None, True)
    assert {each["instances"] for each in data["methods"]} == {2}
    assert [each["infeasible"] for each in data["instances"]].count(True) == 1
    out = octocp("compare", folder, "-t", 5, "-w", 1, "--methods", "1f1b").out
    assert "zero: proven infeasible, no plan exists: " in out


# ---- pictures --------------------------------------------------------------------------------

SVG = "{http://www.w3.org/2000/svg}"


def texts(path: Path) -> list[str]:
    root = ET.fromstring(path.read_bytes())
    assert root.tag == f"{SVG}svg"
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def test_plot_of_one_instance() -> None:
    save(even(microbatches=4, memory=2), Path("even.json"))
    ran = octocp("compare", "even.json", "--no-solver", "--plot", "x.svg", "--rows", "1f1b,octopipe")
    assert ran.code == 0, ran
    assert "Written to x.svg." in ran.err
    found = texts(Path("x.svg"))
    # Each row names its devices, and each op has its box: 2 devices x 4 microbatches x 2 kinds.
    assert [text for text in found if text in ("device 0", "device 1")] == ["device 0", "device 1"] * 2
    assert {"1f1b", "octopipe", "limit", "peak memory by device (GB)", "time (ms)"} <= set(found)
    tips = [each.text or "" for each in ET.fromstring(Path("x.svg").read_bytes()).iter(f"{SVG}title")]
    assert sum(bool(re.match("[FB] of stage", tip)) for tip in tips) == 2 * 16
    assert sum(": warm-up" in tip for tip in tips) == 2
    assert sum(" GB" in tip for tip in tips) == 4
    # By default the best known schedule and the solver.
    octocp("compare", "even.json", "-t", 5, "-w", 1, "--plot", "y.svg")
    assert {"cp-sat"} <= set(texts(Path("y.svg")))


def test_rows_share_one_axis() -> None:
    instance = even(microbatches=2)
    problem, layout = build_problem(instance), Layout((0, 1, 2), (0, 1))
    made_ = run(instance, "1f1b")
    slow = checked(
        time_orders(problem, layout, serial(problem, layout)),
        instance,
        method="slow",
        lower_bound=made_.rows[0].lower_bound,
    )
    made_.rows.append(Row("slow", "feasible", slow, slow.lower_bound, 0.0, family="slow", kind="own"))
    scene = rows_scene(made_, ["1f1b", "slow"])
    ends = {}
    for box in scene.boxes:
        if box.tip.startswith("B of stage 0, microbatch 1"):
            ends[round(box.y)] = box.x + box.width
    quick, late = sorted(ends.values())
    left = min(box.x for box in scene.boxes if box.tip.startswith("F of stage 0"))
    # 9 and 12 ticks; a hairline of paper follows each op.
    assert (quick - left) / (late - left) == pytest.approx(9 / 12, abs=0.002)


def test_plot_of_the_profile(folder: Path) -> None:
    ran = octocp("compare", folder, "--no-solver", "--methods", "1f1b,gpipe", "--plot", "p.svg")
    assert ran.code == 0, ran
    found = texts(Path("p.svg"))
    assert {"1f1b", "gpipe", "100 %", "factor"} <= set(found)
    scene = profile_scene(made({"a": [100, 100], "b": [110, None]}))
    # b rises once, to one half, at the right edge.
    risen = [line for line in scene.lines if line.x1 == line.x2 and line.y1 > line.y2 and line.stroke == "#e88c3c"]
    assert [round((line.y1 - line.y2) / 360, 6) for line in risen] == [0.5]
    assert draw(scene, "t", "svg").startswith(b"<?xml")


def test_plot_as_png() -> None:
    pytest.importorskip("matplotlib")
    save(even(), Path("even.json"))
    assert octocp("compare", "even.json", "--no-solver", "--plot", "x.png").code == 0
    assert Path("x.png").read_bytes().startswith(b"\x89PNG")


# ---- interruptions ---------------------------------------------------------------------------


def interrupting(after: int) -> Callable[[str], None]:
    """Return a step hook that interrupts once so many methods have begun."""
    begun: list[str] = []

    def step(text: str) -> None:
        begun.append(text)
        if len(begun) > after:
            raise KeyboardInterrupt

    return step


def test_an_interruption_keeps_what_is_done() -> None:
    half = compare_instance(even(), Choice(), None, on_step=interrupting(2))
    assert not half.complete
    assert {row.family for row in half.rows} == {"gpipe", "1f1b"}

    def solve() -> Any:
        raise KeyboardInterrupt

    whole = compare_instance(even(), Choice(["1f1b"]), solve)
    assert whole.complete
    assert [(row.method, row.status) for row in whole.rows] == [("1f1b", "optimal"), ("cp-sat", "unknown")]
    assert "interrupted" in whole.rows[-1].reason


def test_no_plan_in_time_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def solve(*_: object, **__: object) -> None:
        raise NoPlanError("no plan found in 1.0 s")

    monkeypatch.setattr("octocp.api.solve", solve)
    ran = octocp("compare", "tiny-memory", "-t", 1)
    assert ran.code == 0, ran
    assert "cp-sat: no plan found in 1.0 s." in ran.out


def test_partitions_share_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    def best_partition(_problem: Any, schedule: Schedule, *, seconds: float, **_more: Any) -> Schedule:
        given.append(seconds)
        return schedule

    monkeypatch.setattr("octocp.cpsat.for_order.best_partition", best_partition)
    effort = comparison_instance.PartitionEffort(4.0, 1, 0)
    done = compare_instance(even(), Choice(["1f1b", "gpipe"]), None, partitions=effort)
    assert done.no_better_partition == ["gpipe", "1f1b"]
    assert given[0] == pytest.approx(2.0, abs=0.5)
    assert given[1] == pytest.approx(4.0, abs=0.5)


# ---- bad input -------------------------------------------------------------------------------


def test_refusals() -> None:
    save(even(), Path("even.json"))
    Path("empty").mkdir()
    Path("data.yaml").write_text(yaml.safe_dump({"format": "octocp.instance/1"}))
    cases: list[tuple[list[object], str]] = [
        (["empty"], "is a folder without an instance in it"),
        (["even.json", "--methods", "1f1c"], "--methods: no method is called '1f1c' (did you mean '1f1b'?)"),
        (["even.json", "--methods", "1f1b,,gpipe"], "list of names with commas"),
        (["even.json", "--rows", "1f1b"], "add --plot FILE"),
        (["even.json", "--plot", "x.pdf"], ".svg or .png"),
        (["even.json", "--plot", "missing/x.svg"], "there is no folder"),
        (["even.json", "--plot", "x.svg", "--rows", "a"], "--rows: no method is called 'a'"),
        (["even.json", "--plot", "x.svg", "--rows", "gpipe,1f1b,zb-h1,zb-h2"], "3 at most"),
        (["even.json", "tiny-memory", "--plot", "x.svg", "--rows", "1f1b"], "--rows is for one instance"),
        (["even.json", "nowhere.yaml"], "no such file"),
        (["data.yaml"], "data.yaml"),
    ]
    for arguments, words in cases:
        assert words in refused("compare", *arguments), arguments
    assert not Path("x.svg").exists()


def test_a_row_without_a_plan_is_not_drawn() -> None:
    save(even(), Path("even.json"))
    ran = octocp("compare", "even.json", "--no-solver", "--plot", "x.svg", "--rows", "1f1b,zb-h1")
    assert ran.code == 2
    assert "--rows: zb-h1 has no plan: not-applicable (needs split_backward: true)" in ran.err
    assert "1f1b" in ran.out
    save(even(memory=0.5), Path("none.json"))
    ran = octocp("compare", "none.json", "--no-solver", "--plot", "x.svg")
    assert ran.code in (3, 4)
    assert len(ran.err.splitlines()) == 1


def test_a_plan_file_can_be_added() -> None:
    instance = even()
    plan = next(row.plan for row in api.compare(instance, solver=False, methods=["1f1b"]) if row.plan)
    write_plan(plan, "mine.plan.json")
    ran = octocp("compare", save(instance, Path("even.json")), "--no-solver", "--add", "mine.plan.json", "--json")
    assert ran.code == 0, ran
    (own,) = (row for row in json.loads(ran.out) if row["kind"] == "own")
    assert (own["method"], own["makespan"]) == ("mine.plan.json", 9)
    line = refused("compare", "tiny-two-devices", "--add", "mine.plan.json")
    assert "mine.plan.json" in line
    # What is no schedule says what it is, and which file.
    Path("ex").mkdir()
    save(instance, Path("ex/own.json"))
    assert "ex/own.json: is an OctoCP instance, not a schedule" in refused(
        "compare", "even.json", "--add", "ex/own.json"
    )
    Path("ex/own.svg").write_text("<svg/>")
    assert refused("compare", "even.json", "--add", "ex/own.svg").startswith("octocp: ex/own.svg: is in no format")
    assert "has a partition of its own" in refused("compare", "even.json", "--add", "mine.plan.json@1,1")


OWN = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


def test_a_csv_takes_a_partition() -> None:
    save(even(layers="aaaa"), Path("four.json"))
    Path("own.torch.csv").write_text(OWN)
    plain = ["compare", "four.json", "--no-solver", "--methods", "1f1b", "--json", "--add"]
    ran = octocp(*plain, "own.torch.csv")
    assert ran.code == 0, ran
    assert "the file has no partition: [2, 2] is taken" in ran.err
    assert "FILE@N,N,..." in ran.err
    assert "stages.partition" in ran.err
    (own,) = (row for row in json.loads(ran.out) if row["kind"] == "own")
    assert own["partition"] == [2, 2]
    ran = octocp(*plain, "own.torch.csv@3,1")
    (own,) = (row for row in json.loads(ran.out) if row["kind"] == "own")
    assert (ran.err, own["partition"], own["method"]) == ("", [3, 1], "own.torch.csv")
    assert "2 numbers from 1 on, 4 in all" in refused(*plain, "own.torch.csv@3,2")
    # From Python too, and a single name is a list of one.
    rows = api.compare("four.json", solver=False, methods="1f1b", added=("own.torch.csv@3,1", Path("own.torch.csv")))
    assert [row.plan.partition for row in rows if row.plan and row.kind == "own"] == [[3, 1], [2, 2]]
    with pytest.raises(TypeError, match="this is int"):
        api.compare("four.json", solver=False, added=[3])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="this is dict"):
        api.solve({})  # type: ignore[arg-type]

    # The same file as a plan.
    ran = octocp("import", "own.torch.csv@3,1", "four.json", "-o", "own.plan.json")
    assert (ran.code, ran.err.splitlines()[-1]) == (0, "Written to own.plan.json."), ran
    assert octocp("check", "own.plan.json").code == 0
    plan = load_plan("own.plan.json")
    assert (plan.method, plan.partition, plan.lower_bound) == ("imported", [3, 1], api.bounds("four.json")[0].value)
    assert api.import_plan("four.json", "own.torch.csv", partition=[3, 1]) == plan
    assert octocp("explain", "own.plan.json").code == 0
    save(even(layers="aaaa", memory=1), Path("tight.json"))
    assert "own.torch.csv: memory: device 0 needs" in refused("import", "own.torch.csv", "tight.json")
    assert "nowhere.csv: no such file" in refused("import", "nowhere.csv", "four.json")
    assert "is the input itself" in refused("import", "own.plan.json", "four.json", "-o", "own.plan.json")


def test_save() -> None:
    save(even(), Path("even.json"))
    plain = ["compare", "even.json", "--no-solver", "--methods", "1f1b,zb-h1"]
    ran = octocp(*plain, "--save", "1f1b=a.plan.json")
    assert (ran.code, ran.err) == (0, "Written to a.plan.json.\n"), ran
    plan = load_plan("a.plan.json")
    assert (plan.method, plan.makespan, api.check("a.plan.json")) == ("1f1b", 9, [])
    ran = octocp(*plain, "--save", "zb-h1=b.plan.json")
    assert (ran.code, ran.err.splitlines()[-1][:40]) == (2, "octocp: --save: zb-h1 has no plan: not-a")
    for given, words in (
        (["1f1b"], "--save is ROW=FILE"),
        (["1f1c=x.json"], "--save: no method is called '1f1c'"),
        (["1f1b=missing/x.json"], "there is no folder missing"),
        (["1f1b=x.json", "--save", "1f1b=y.json"], "has 1f1b twice"),
    ):
        assert words in refused(*plain, "--save", *given), given
    assert "--save is for one instance" in refused("compare", "even.json", "tiny-memory", "--save", "1f1b=x.json")


def test_a_search_for_partitions_says_how_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    save(even(), Path("even.json"))
    monkeypatch.setattr("octocp.cpsat.for_order.best_partition", lambda _problem, schedule, **_more: schedule)
    plain = ["compare", "even.json", "--no-solver", "--methods", "1f1b", "--best-partition"]
    assert "No -best row of 1f1b: no partition is better for their orders." in octocp(*plain).out
    monkeypatch.setattr("octocp.comparison.instance.PARTITION_SECONDS", 0.0)
    monkeypatch.setattr(
        "octocp.cpsat.for_order.best_partition",
        lambda _problem, schedule, *, seconds, **_more: (time.sleep(seconds), schedule)[1],
    )
    assert "No -best row of 1f1b: no better partition was found before the seconds" in octocp(*plain).out


@pytest.mark.parametrize("option", [("--plot", "mine.svg"), ("--save", "gpipe=mine.svg")])
def test_the_input_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: tuple[str, str]) -> None:
    monkeypatch.chdir(tmp_path)
    text = (Path(catalog.folder("instances")) / "teaching" / "tiny-two-devices.yaml").read_text()
    Path("mine.svg").write_text(text)
    ran = octocp("compare", "mine.svg", "--no-solver", "--methods", "gpipe", *option)
    assert ran.code == 2
    assert "is the input itself" in ran.err
    assert Path("mine.svg").read_text() == text
