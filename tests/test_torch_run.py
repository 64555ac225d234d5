"""Plans under torch's own runtime: gradients of every kind of plan, predicted times, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import tiny
import torch_plans
from octocp.schema import Instance, Plan
from octocp.schema.files import write_plan
from octocp.torch import launch, runner
from octocp.torch.calibration import calibrate
from octocp.torch.models import Sizes
from octocp.torch.predict import predict
from octocp.torch.process import Birth, be_rank
from octocp.torch.runner import Job, Outcome
from octocp.torch.sources import Source, batch
from octocp.torch.timeline import makespan, median_step, read_traces
from terminal import octocp, refused

TINY = Source(sizes=Sizes(samples=1, tokens=8, width=16, vocabulary=16))
FORMS = ("compute_only", "compute_comms")
LIMIT = 1e-5


def small_plan(**more: object) -> Plan:
    return torch_plans.heuristic_plan(tiny.instance(torch_plans.LAYERS, microbatches=3, **more), "1f1b")


# ---- gradients -------------------------------------------------------------------------------


def assert_right(plans: list[Plan], warm_up: int) -> None:
    jobs = [Job(plan, TINY, csv_format=form, warm_up=warm_up) for plan in plans for form in FORMS]
    for job, outcome in zip(jobs, launch.launch(jobs), strict=True):
        what = f"{job.plan.method} {job.plan.placement} {job.csv_format}"
        assert outcome.gradient_error is not None, what
        assert outcome.gradient_error <= LIMIT, f"{what}: {outcome.worst}"
        assert {span.action for span in outcome.steps[0]} == {span.action for span in predict(job.plan)}, what


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_gradients_are_those_of_one_process(ranks: int) -> None:
    plans = list(torch_plans.variety(ranks))
    assert len(plans) == 15
    assert any(len(set(map(plan.placement.count, range(ranks)))) > 1 for plan in plans)
    assert_right(plans, warm_up=0)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_gradients_of_every_heuristic_are_those_of_one_process(ranks: int) -> None:
    plans = list(torch_plans.everything(ranks))
    assert len(plans) > 100
    assert_right(plans, warm_up=1)


def test_plans_of_fewer_ranks_run_on_the_first_processes() -> None:
    plans = [small_plan(devices=ranks) for ranks in (3, 2)]
    errors = [outcome.gradient_error for outcome in launch.launch([Job(plan, TINY) for plan in plans])]
    assert max(error for error in errors if error is not None) <= LIMIT


def test_a_wrong_gradient_is_seen() -> None:
    """The check itself: a model with another seed, one microbatch too few, one gradient gone."""
    torch.set_num_threads(1)
    plan = small_plan()
    work, other = TINY.build(plan), Source(sizes=TINY.sizes, seed=1).build(plan)
    cpu = torch.device("cpu")

    def error(own: dict[int, runner.StageModule], count: int = 3) -> float:
        alone = TINY.build(plan).layers
        return runner.gradient_error(own, alone, plan, work, count, cpu)[0]

    def trained(layers: list[nn.Module]) -> dict[int, runner.StageModule]:
        model = nn.Sequential(*layers)
        for x, target in zip(batch(work.sample, 3).chunk(3), batch(work.target, 3).chunk(3), strict=True):
            (work.loss(model(x), target) / 3).backward()
        return dict(enumerate(runner.stage_modules(plan, layers)))

    right = trained(TINY.build(plan).layers)
    assert error(right) <= LIMIT
    assert error(right, count=2) > 0.01
    assert error(trained(other.layers)) > 0.1
    next(right[1].parameters()).grad = None
    assert error(right) == float("inf")
    right = trained(TINY.build(plan).layers)
    list(right[1].parameters())[-1].grad.fill_(float("nan"))
    assert error(right) == float("inf")


def test_transfers_in_a_wrong_order_give_wrong_gradients(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the check is for: torch runs two swapped sends without a word."""
    plan = torch_plans.heuristic_plan(tiny.instance(torch_plans.LAYERS, microbatches=3), "gpipe")
    job = Job(plan, TINY, csv_format="compute_comms")
    order = runner.order_file(plan, "compute_comms")
    swapped = order.replace("0SEND_F0", "0SEND_F").replace("0SEND_F1", "0SEND_F0").replace("0SEND_F,", "0SEND_F1,")
    moved = swapped.replace("0F0,0SEND_F1,0F1,", "0F0,0F1,0SEND_F1,")
    assert sorted(moved) == sorted(order)
    assert moved != order
    (tmp_path / "order.csv").write_text(moved)
    monkeypatch.setattr(launch, "be_rank", Replaced(str(tmp_path / "order.csv")))
    (outcome,) = launch.launch([job])
    assert outcome.gradient_error is not None
    assert outcome.gradient_error > 100 * LIMIT


class Replaced:
    """What a process runs: as usual, but with the order in a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, birth: Birth) -> None:
        runner.order_file = lambda plan, form: Path(self.path).read_text()
        be_rank(birth)


# ---- layers that sleep -----------------------------------------------------------------------


def sleepers(**more: object) -> Instance:
    """Fourteen uneven layers, the last one heavy, on four ranks."""
    layers = [(4, 0, 4), *[(9, 10, 7), (6, 7, 5), (13, 14, 6)] * 4, (30, 34, 12)]
    return tiny.instance(layers, devices=4, microbatches=8, **more)


def run_sleeping(plans: list[Plan], scale: float, steps: int) -> list[Outcome]:
    source = Source("sleep", scale=scale)
    return launch.launch([Job(plan, source, steps=steps, check=False) for plan in plans])


def compare_sleeping(scale: float, steps: int, seconds: float) -> None:
    instance = sleepers(max_per_device=2)
    plans = [
        torch_plans.heuristic_plan(instance, "1f1b", "uniform"),
        torch_plans.heuristic_plan(instance, "v-zb"),
        torch_plans.solver_plan(instance, seconds),
    ]
    expected = [scale * makespan(predict(plan)) for plan in plans]
    for plan, value in zip(plans, expected, strict=True):
        assert value <= scale * plan.makespan + 1e-6

    def check() -> None:
        outcomes = run_sleeping(plans, scale, steps)
        walls = [min(outcome.wall_ms) for outcome in outcomes]
        errors = [min(map(makespan, o.steps)) / value - 1 for o, value in zip(outcomes, expected, strict=True)]
        told = f"wall {[round(wall) for wall in walls]} ms, errors {[f'{100 * error:.2f} %' for error in errors]}"
        print(told)
        assert max(map(abs, errors)) < 0.05, told
        assert walls[0] / walls[2] > 1.3, told

    torch_plans.when_quiet(check)


def test_measured_times_are_the_predicted_ones() -> None:
    compare_sleeping(scale=2.5, steps=1, seconds=4)


@pytest.mark.slow
def test_measured_times_are_the_predicted_ones_at_length() -> None:
    compare_sleeping(scale=5, steps=3, seconds=30)


def test_torch_profiler_traces_give_the_same_timeline(tmp_path: Path) -> None:
    plan = torch_plans.heuristic_plan(tiny.instance([(4, 4, 3)] * 4, microbatches=4), "zb-h1")
    job = Job(plan, Source("sleep", scale=3), check=False, torch_traces=str(tmp_path))

    def check() -> None:
        (outcome,) = launch.launch([job])
        (traced,) = read_traces(sorted(tmp_path.glob("*.json")), plan)
        own, read = (calibrate(plan, step, scale=3) for step in (median_step(outcome.steps), traced))
        # Another step than the own clock's, with the profiler in the way.
        assert read.measured_ms == pytest.approx(own.measured_ms, rel=0.25)
        for one, other in zip(read.kinds, own.kinds, strict=True):
            assert (one.kind, one.count) == (other.kind, other.count)
            assert one.measured_ms == pytest.approx(other.measured_ms, rel=0.5)

    torch_plans.when_quiet(check)


# ---- the command -----------------------------------------------------------------------------


@pytest.fixture
def plan_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "mine.plan.json"
    write_plan(small_plan(), path)
    return path


def test_run_reports_time_gradients_and_the_comparison(plan_file: Path, tmp_path: Path) -> None:
    ran = octocp("run", plan_file, "--sleep", "--steps", 2, "--compare", "both.svg", "--trace", "run.json", "--json")
    assert ran.code == 0, ran
    data = json.loads(ran.out)
    assert set(data) == {
        "instance", "method", "ran", "ranks", "wall_ms", "makespan_ms", "loss", "gradients_equal", "gradient_error",
        "gradient_worst", "timeline", "comparison",
    }  # fmt: skip
    assert len(data["wall_ms"]) == len(data["makespan_ms"]) == len(data["loss"]) == 2
    assert data["gradient_error"] <= LIMIT
    assert data["gradients_equal"] is True
    assert data["ran"]["layers"] == "sleeping"
    assert len(data["timeline"]) == len(predict(small_plan()))
    assert data["comparison"]["predicted_ms"] == makespan(predict(small_plan()))
    assert "device 1, run" in (tmp_path / "both.svg").read_text()
    again = octocp("calibrate", plan_file, "run.json", "--json")
    for one, other in zip(json.loads(again.out)["kinds"], data["comparison"]["kinds"], strict=True):
        assert one == pytest.approx(other, abs=0.01)


def test_run_takes_a_users_layers(plan_file: Path, tmp_path: Path) -> None:
    (tmp_path / "users_layers.py").write_text(USERS)
    ran = octocp("run", plan_file, "--module", "users_layers:good", "--steps", 1, "--order", "compute_comms")
    assert ran.code == 0, ran
    assert "gradients equal to those of one process" in ran.out
    assert "\nran the layers of users_layers:good\n" in ran.out
    for function, said in {
        "short": "gives 2 layers; the plan's model has 8",
        "tied": "share the parameter",
        "fails": "users_layers:fails failed: RuntimeError: out of luck",
        "breaks": "layer 0 (breaks) failed: ValueError: no such luck",
        "leaves": "layer 7 (leaves) called sys.exit(0)",
        "ends": "rank 1 ended without a result (exit code 0) while at the beginning of step 1 of 2",
        "pairs": "layer 7 (pairs) returns tuple (one tensor",
        "not_a_number": "no finite gradient in one process either (a model whose loss is finite, or --no-check)",
        "nothing": "returns NoneType",
        "missing": "has no attribute 'missing'",
    }.items():
        line = refused("run", plan_file, "--module", f"users_layers:{function}", "--steps", 1)
        assert said in line, line
    assert "package.module:function" in refused("run", plan_file, "--module", "users_layers")


USERS = """
import os
import sys

import torch
from torch import nn

def good(n=8):
    return nn.Sequential(*[nn.Linear(4, 4) for _ in range(n)]), torch.randn(2, 4)

def short():
    return good(2)

def tied():
    layers = list(good()[0])
    return [*layers[:-1], layers[0]], torch.randn(2, 4)

def fails():
    raise RuntimeError("out of luck")

class Breaks(nn.Module):
    def forward(self, x):
        raise ValueError("no such luck")

def breaks():
    layers = list(good()[0])
    return [Breaks(), *layers[1:]], torch.randn(2, 4)

class Odd(nn.Linear):
    def forward(self, x):
        return self.odd(super().forward(x))

def last(name, odd):
    layer = type(name, (Odd,), {"odd": lambda self, x: odd(x)})(4, 4)
    return [*good(7)[0], layer], torch.randn(2, 4)

def leaves():
    return last("Leaves", lambda x: sys.exit(0))

def ends():
    return last("Ends", lambda x: os._exit(0))

def pairs():
    return last("Pairs", lambda x: (x, x))

def not_a_number():
    return last("Nan", lambda x: x * float("nan"))

def nothing():
    return None
"""


def test_run_says_whose_layers_it_ran(plan_file: Path) -> None:
    ran = octocp("run", plan_file, "--steps", 1)
    assert ran.code == 0, ran
    told = "ran small synthetic blocks named after the plan's kinds (2 samples of 16 tokens, width 32, vocabulary 64)"
    (line,) = [line for line in ran.out.splitlines() if line.startswith(told)]
    assert "--module MODULE:FUNCTION" in line
    data = json.loads(octocp("run", plan_file, "--steps", 1, "--json").out)["ran"]
    assert f"ran {data['note']}" == line
    assert (data["layers"], data["module"]) == ("synthetic", None)
    assert data["sizes"] == {"samples": 2, "tokens": 16, "width": 32, "vocabulary": 64}


def test_a_loss_that_is_no_number_is_null_in_json(plan_file: Path, tmp_path: Path) -> None:
    (tmp_path / "users_layers.py").write_text(USERS)
    ran = octocp("run", plan_file, "--module", "users_layers:not_a_number", "--steps", 1, "--json", "--no-check")
    data = json.loads(ran.out, parse_constant=pytest.fail)
    assert (data["loss"], data["gradients_equal"], data["gradient_error"]) == ([None], None, None)


def test_run_refuses_what_makes_no_sense(plan_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "exclude each other" in refused("run", plan_file, "--sleep", "--module", "a:b")
    assert "--scale" in refused("run", plan_file, "--scale", 2)
    assert "no such folder" in refused("run", plan_file, "--torch-traces", "nowhere")
    assert "a.png: is drawn as SVG (a.svg)" in refused("run", plan_file, "--compare", "a.png")
    assert "is both --compare and --trace" in refused("run", plan_file, "--compare", "a", "--trace", "a")
    assert "--timeout" in refused("run", plan_file, "--timeout", "nan")
    emptied = json.loads(plan_file.read_text())
    plan_file.with_name("empty.plan.json").write_text(json.dumps({**emptied, "ops": []}))
    assert "empty.plan.json: is not a valid plan" in refused("run", "empty.plan.json")
    assert not list(plan_file.parent.glob("a*"))
