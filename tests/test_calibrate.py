"""Predicted and measured timelines: what torch should do with a plan, its traces, and what they say about the costs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import tiny
import torch_plans
from octocp.schema import Plan
from octocp.schema.files import write_plan
from octocp.torch import available
from octocp.torch.actions import compute_actions
from octocp.torch.calibration import calibrate
from octocp.torch.picture import both_timelines
from octocp.torch.predict import predict
from octocp.torch.timeline import Timeline, from_zero, makespan, read_traces, trace_json
from terminal import octocp, refused

LINK = {"latency_us": 2000}


def plan_of(name: str, **more: Any) -> Plan:
    return torch_plans.heuristic_plan(tiny.instance(torch_plans.LAYERS, microbatches=4, **more), name)


# ---- the prediction --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved-1f1b", "hanayo", "serial"])
@pytest.mark.parametrize("more", [{}, {"link": LINK}, {"op_overhead_us": 1000}], ids=["plain", "link", "overhead"])
def test_fused_plans_are_predicted_to_the_tick(name: str, more: dict[str, Any]) -> None:
    plan = plan_of(name, split_backward=False, **more)
    predicted = {(str(span.action), span.start, span.end) for span in predict(plan)}
    assert predicted == {(f"{op.stage}{op.kind}{op.microbatch}", op.start, op.end) for op in plan.ops}


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "v-zb", "v-half", "list-dispatch", "zb-h2"])
@pytest.mark.parametrize("link", [{}, LINK])
def test_no_plan_is_predicted_to_end_late(name: str, link: dict[str, Any]) -> None:
    plan = plan_of(name, link=link)
    assert makespan(predict(plan)) <= plan.makespan
    assert sum(span.length for span in predict(plan)) == sum(op.end - op.start for op in plan.ops)


def test_the_prediction_by_hand() -> None:
    """Stage 0 runs its backward whole, where W is: F 2, B 3 + W 1; stage 1 has I 4, then W 2."""
    instance = tiny.instance([(2, 3, 1), (5, 4, 2)], microbatches=1)
    plan = torch_plans.heuristic_plan(instance, "zb-h1")
    assert [f"{span.action} {span.start:g} {span.end:g}" for span in from_zero(predict(plan))] == [
        "0F0 0 2",
        "0B0 11 15",
        "1F0 2 7",
        "1I0 7 11",
        "1W0 11 13",
    ]


# ---- traces ----------------------------------------------------------------------------------


def torch_traces(timeline: Timeline, folder: Path, *, steps: int = 1) -> list[Path]:
    """Write what torch.profiler would: a file per rank, with the wait for the input inside every span."""
    paths = []
    for rank in sorted({span.rank for span in timeline}):
        events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]
        base = 1_790_000_000_000_000_000 + 1_000_000 * rank
        for step in range(steps):
            # A base of its own for every file, and each step half a second after the one before.
            shift, free = 500.0 * step - rank + 10, 0.0
            for span in (span for span in timeline if span.rank == rank):
                for name in (f"PP:{span.action}", "aten::mm", f"PP:{span.action.stage}SEND_F0"):
                    ts, dur = 1000 * (free + shift), 1000 * (span.end - free)
                    events.append({"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur})
                free = span.end
        data = json.dumps({"baseTimeNanoseconds": base, "traceEvents": events}).encode()
        paths.append(folder / f"rank{rank}.json{'.gz' * (rank % 2)}")
        paths[-1].write_bytes(gzip.compress(data) if rank % 2 else data)
    return paths


def rounded(timeline: Timeline) -> list[tuple[str, int, float, float]]:
    return [(str(s.action), s.rank, round(s.start, 2), round(s.end, 2)) for s in from_zero(timeline)]


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "v-zb", "interleaved-1f1b"])
def test_traces_are_read_back(name: str, tmp_path: Path) -> None:
    plan = plan_of(name, devices=4)
    (tmp_path / "all.json").write_bytes(trace_json(predict(plan)))
    (read,) = read_traces([tmp_path / "all.json"], plan)
    assert rounded(read) == rounded(predict(plan))
    steps = read_traces(torch_traces(predict(plan), tmp_path, steps=3), plan)
    assert [rounded(step) for step in steps] == [rounded(predict(plan))] * 3


def test_gpu_spans_are_preferred(tmp_path: Path) -> None:
    plan = plan_of("1f1b")
    events = json.loads(trace_json(predict(plan)))["traceEvents"]
    launched = [{**event, "cat": "cpu_op", "dur": 1} for event in events if event["ph"] == "X"]
    ran = [{**event, "cat": "gpu_user_annotation"} for event in events if event["ph"] == "X"]
    (tmp_path / "gpu.json").write_text(json.dumps([*launched, *ran]))
    (read,) = read_traces([tmp_path / "gpu.json"], plan)
    assert rounded(read) == rounded(predict(plan))


# ---- calibration -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "v-zb"])
def test_an_overhead_is_found(name: str) -> None:
    plan = plan_of(name, op_overhead_us=250)
    exact = calibrate(plan, predict(plan))
    assert (exact.error, exact.overhead_us, exact.op_overhead_us) == (0, 0, 250)
    found = calibrate(plan, predict(plan, overhead_ms=0.5))
    assert found.overhead_us == pytest.approx(500)
    assert found.op_overhead_us == pytest.approx(750)
    assert found.error > 0.01
    assert found.corrected_error == pytest.approx(0, abs=1e-9)
    for each in found.kinds:
        assert each.measured_ms == pytest.approx(each.predicted_ms + 0.5)
    assert sum(each.count for each in found.kinds) == sum(map(len, compute_actions(plan)))


def test_costs_that_are_too_high_give_no_overhead() -> None:
    plan = plan_of("1f1b")
    faster = [span._replace(start=span.start / 2, end=span.end / 2) for span in predict(plan)]
    found = calibrate(plan, faster)
    assert found.error == pytest.approx(-0.5)
    assert (found.overhead_us, found.corrected_ms) == (0, found.predicted_ms)
    assert calibrate(plan, faster, scale=0.5).error == pytest.approx(0)


def test_both_timelines_are_drawn() -> None:
    plan = plan_of("zb-h1")
    found = calibrate(plan, predict(plan, overhead_ms=0.5))
    drawn = both_timelines(plan, found)
    assert len(drawn.instance.cluster.device_list()) == 2 * len(plan.instance.cluster.device_list())
    rows = [[op for op in drawn.ops if op.device == row] for row in range(4)]
    assert [len(row) for row in rows] == [len(compute_actions(plan)[row // 2]) for row in range(4)]
    assert max(op.end for op in rows[1]) == 1000 * max(span.end for span in found.measured if span.rank == 0)


# ---- the command -----------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Plan]:
    monkeypatch.chdir(tmp_path)
    plan = plan_of("zb-h1")
    write_plan(plan, tmp_path / "mine.plan.json")
    return tmp_path / "mine.plan.json", plan


def test_calibrate_tells_and_draws(files: tuple[Path, Plan], tmp_path: Path) -> None:
    file, plan = files
    paths = torch_traces(predict(plan, overhead_ms=0.5), tmp_path)
    ran = octocp("calibrate", file, *paths, "-o", "both.svg")
    assert ran.code == 0, ran
    assert "training: {op_overhead_us: 500}" in ran.out
    assert "each action takes 500 us beyond its cost" in ran.out
    picture = (tmp_path / "both.svg").read_text()
    assert "device 1, plan" in picture
    assert "device 1, run" in picture
    data = json.loads(octocp("calibrate", file, *paths, "--json").out)
    assert set(data) == {
        "instance", "steps", "predicted_ms", "measured_ms", "error", "kinds", "overhead_us", "op_overhead_us",
        "corrected_ms", "corrected_error",
    }  # fmt: skip


def test_calibrate_refuses_traces_of_something_else(files: tuple[Path, Plan], tmp_path: Path) -> None:
    file, plan = files
    one, other = torch_traces(predict(plan), tmp_path)
    assert "did not run once" in refused("calibrate", file, one)
    (tmp_path / "none.json").write_text('{"traceEvents": []}')
    assert "no PP: spans" in refused("calibrate", file, "none.json")
    (tmp_path / "bad.json").write_text("[1, 2")
    assert "bad.json: line 1, column 6: is not a trace: Expecting" in refused("calibrate", file, "bad.json")
    (tmp_path / "odd.json").write_text('[{"ph": "X", "name": "PP:0F0"}]')
    assert "odd.json: traceEvents[0].ts: is not a trace: is missing" in refused("calibrate", file, "odd.json")
    assert "gone.json: cannot be read" in refused("calibrate", file, "gone.json")
    assert "times, other actions" in refused("calibrate", file, one, other, one)
    larger = torch_plans.heuristic_plan(tiny.instance(torch_plans.LAYERS, microbatches=4, devices=4), "zb-h1")
    (tmp_path / "larger.json").write_bytes(trace_json(predict(larger)))
    assert "the plan has 2 stages" in refused("calibrate", file, "larger.json")
    more = torch_plans.heuristic_plan(tiny.instance(torch_plans.LAYERS, microbatches=5), "zb-h1")
    (tmp_path / "more.json").write_bytes(trace_json(predict(more)))
    assert "more actions than the plan has" in refused("calibrate", file, "more.json")
    assert "is the input itself" in refused("calibrate", file, one, "-o", file)


def test_without_torch_one_line_says_how_to_get_it(files: tuple[Path, Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available, "find_spec", lambda name: None)
    for command in (("run", files[0]), ("profile", "--module", "some:model")):
        assert "torch is not installed (pip install 'octocp[torch]')" in refused(*command)
