"""Profiles: times of layers that sleep, bytes counted by hand, noise refused, and a model file that is solved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import torch_plans
from octocp.errors import InputError
from octocp.schema.files import load_model, load_plan
from octocp.torch.models import Sizes, SleepingLayer, Workload, hybrid
from octocp.torch.profile_model import model_of
from octocp.torch.profiler import OPS, LayerProfile, Timing, _timing, measure, refuse_noise
from octocp.torch.sources import load, mean_output
from terminal import octocp, refused

CPU = torch.device("cpu")


def workload(*layers: nn.Module, sample: torch.Tensor) -> Workload:
    return Workload(list(layers), sample, torch.zeros(sample.shape[0]), mean_output)


def test_times_are_those_of_layers_that_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SleepingLayer, "awake", False)
    seconds = [(0.04, 0.06, 0.02), (0.02, 0.04, 0.08), (0.06, 0.02, 0.04)]
    layers = [SleepingLayer(4, *times) for times in seconds]
    # The first layer's input needs no gradient: its I is nothing, and W is all of its backward.
    expected = [(40, 0, 80, 80), (20, 40, 80, 120), (60, 20, 40, 60)]

    def check() -> None:
        profiles = measure(workload(*layers, sample=torch.randn(2, 4)), CPU, repeats=4, warm_up=0)
        for profile, times in zip(profiles, expected, strict=True):
            for op, milliseconds in zip(OPS, times, strict=True):
                assert profile.times[op].median == pytest.approx(milliseconds, abs=5), (profile.title, op)

    torch_plans.when_quiet(check)


def test_bytes_are_those_counted_by_hand() -> None:
    """A linear layer keeps its input, 3 x 5 floats, until W, and then the output's gradient of 3 x 7 floats too."""
    layers = nn.Linear(2, 5), nn.Linear(5, 7), nn.Sequential(nn.Tanh(), nn.Linear(7, 1))
    first, inner, _ = measure(workload(*layers, sample=torch.randn(3, 2)), CPU, repeats=3, warm_up=0)
    assert (first.saved_bytes, first.late_bytes) == (3 * 2 * 4, 3 * 2 * 4)
    assert (inner.saved_bytes, inner.late_bytes) == (3 * 5 * 4, 3 * 5 * 4 + 3 * 7 * 4)
    assert (inner.output_bytes, inner.parameters, inner.parameter_bytes) == (3 * 7 * 4, 42, 42 * 4)


def test_a_layer_without_weights_has_no_late_bytes() -> None:
    layers = nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1)
    _, inner, _ = measure(workload(*layers, sample=torch.randn(3, 2)), CPU, repeats=3, warm_up=0)
    assert (inner.saved_bytes, inner.late_bytes) == (3 * 5 * 4, 0)


def test_layers_that_are_alike_are_one_kind() -> None:
    torch.set_num_threads(1)
    kinds = ["embedding", *["mamba", "mlp"] * 2, "attention", "head"]
    profiles = measure(hybrid(kinds, Sizes(samples=1, tokens=8, width=16)), CPU, repeats=3, warm_up=0)
    model = model_of(profiles, name="mine", source="a test", hardware="", note="", optimizer="adam")
    assert model.layer_kinds() == kinds
    assert list(model.profiles) == ["split", "fused"]
    assert model.costs("embedding").backward_input_ms < model.costs("embedding").backward_weight_ms
    fused = model.costs("mlp", "fused")
    assert fused.backward_weight_ms == 0
    assert fused.static_gb == model.costs("mlp").static_gb == profiles[2].parameters * 16 / 1e9


def steady(**changed: Timing) -> LayerProfile:
    times = {op: Timing(10.0, 9.9, 10.1) for op in OPS}
    return LayerProfile("mlp", "mlp", {**times, **changed})


def test_noise_is_refused_with_its_numbers() -> None:
    assert refuse_noise([steady(), steady()], 0.1) == pytest.approx(0.02)
    with pytest.raises(InputError) as error:
        refuse_noise([steady(), steady(backward_input=Timing(10.0, 9.0, 12.0))], 0.1)
    said = "backward_input of layer 1 (mlp) takes 10 ms, the middle half of its measurements 9 to 12 ms: 30 %"
    assert said in str(error.value)
    # What takes next to no time may vary.
    refuse_noise([steady(), steady(forward=Timing(0.1, 0.05, 0.2))], 0.1)
    for wrong in (float("nan"), float("inf")):
        with pytest.raises(InputError, match=r"forward of layer 1 \(mlp\) took (nan|inf) ms"):
            refuse_noise([steady(), steady(forward=Timing(wrong, 10.0, 10.0))], 100)


def test_disturbed_rounds_do_not_count_but_a_drift_does() -> None:
    disturbed = [10.0, 10.0, 14.0, 8.0, 30.0] * 10
    assert _timing(disturbed) == Timing(10.0, 10.0, 10.0)
    drifting = [10.0 + 0.2 * round_ for round_ in range(40)]
    assert _timing(drifting).spread > 0.2
    # Few rounds are in smaller blocks: a spread needs several.
    assert _timing([10.0, 30.0, 10.0]).spread > 0.5


USERS = """
import sys

import torch
from torch import nn

def model():
    layers = [nn.Embedding(16, 8), *[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)], nn.Linear(8, 16)]
    tokens = torch.randint(16, (2, 4))
    return layers, tokens, tokens, loss

def loss(scores, target):
    return nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())

class Pair(nn.Module):
    def forward(self, x):
        return x, x

def pair():
    return [nn.Linear(4, 4), Pair(), nn.Linear(4, 4)], torch.randn(2, 4)

def misfit():
    return [nn.Linear(4, 4), nn.Linear(5, 4)], torch.randn(2, 4)

def one():
    return nn.Linear(4, 4), torch.randn(2, 4)

def given(layers, *more):
    return lambda: (layers, torch.randn(2, 4), *more)

number, none, words = given(5), given([]), given(["a", "b"])

def lazy():
    return [nn.LazyLinear(4)], torch.randn(2, 4)

def meta():
    return [nn.Linear(4, 4), nn.Linear(4, 4, device="meta")], torch.randn(2, 4)

def meta_sample():
    return [nn.Linear(4, 4)], torch.randn(2, 4, device="meta")

class HostileError(Exception):
    def __str__(self):
        raise self

def hostile():
    raise HostileError

class Raises(nn.Module):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, x):
        raise self.error

hostile_layer, leaving_layer = given([Raises(HostileError())]), given([Raises(SystemExit(3))])

def leaves():
    sys.exit(3)

no_loss = given([nn.Linear(4, 4)], torch.randn(2, 4), lambda output, target: output)

def talks():
    print("hello")
    return model()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "profiled.py").write_text(USERS)
    return tmp_path


def test_from_a_users_model_to_a_plan(here: Path) -> None:
    ran = octocp("profile", "--module", "profiled:model", "--max-spread", 100, "-o", "mine.yaml", "--json")
    assert ran.code == 0, ran
    rows = json.loads(ran.out)
    assert [row["kind"] for row in rows] == ["embedding", *["linear+tanh"] * 3, "linear"]
    assert all(row["forward_ms"] > 0 and row["saved_bytes"] > 0 for row in rows)
    model = load_model(here / "mine.yaml")
    assert (model.name, model.provenance.kind, model.profiles["split"].provenance.kind) == ("model", *["measured"] * 2)
    instance = (
        "{format: octocp.instance/1, name: a, model: mine.yaml, cluster: {devices: 2}, microbatches: 4, tick_us: 1}"
    )
    (here / "a.yaml").write_text(instance)
    assert octocp("solve", "a.yaml", "-t", 1, "-w", 1, "-q").code == 0
    assert load_plan(here / "a.plan.json").instance.model.provenance.kind == "measured"
    shown = octocp("profile", "--module", "profiled:model", "--max-spread", 100, "-o", "mine.json")
    assert "B+W fused ms" in shown.out
    assert load_model(here / "mine.json").layer_kinds() == model.layer_kinds()


def test_profile_refuses_in_one_line(here: Path) -> None:
    def said(function: str, *more: object) -> str:
        line = refused("profile", "--module", f"profiled:{function}", *more)
        assert not list(here.glob("*.yaml"))
        return line

    assert "measurements vary too much" in said("model", "--max-spread", 0.001, "--repeats", 3)
    assert "layer 1 (pair) returns tuple (one tensor" in said("pair")
    assert "layer 1 (linear) failed: RuntimeError" in said("misfit")
    assert "returns one module as layers" in said("one")
    assert "no folder" in said("model", "-o", "nowhere/mine.yaml")
    assert "--max-spread" in said("model", "--max-spread", "nan")
    if not torch.cuda.is_available():
        assert "no GPU here" in said("model", "--device", "cuda")


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("number", "'int' object is not iterable (a function that returns (layers, sample)"),
        ("none", "returns layers that are no modules"),
        ("words", "returns layers that are no modules"),
        ("lazy", "layer 0 (lazylinear) has no size for weight yet"),
        ("meta", "layer 1 (linear) has weight on the meta device (layers with numbers"),
        ("meta_sample", "the sample is on the meta device"),
        ("hostile", "profiled:hostile failed: HostileError: (its text cannot be shown)"),
        ("hostile_layer", "layer 0 (raises) failed: HostileError: (its text cannot be shown)"),
        ("leaving_layer", "layer 0 (raises) called sys.exit(3)"),
        ("leaves", "profiled:leaves called sys.exit(3)"),
        ("no_loss", "the loss is a tensor of shape [2, 4] (a tensor with one number"),
    ],
)
def test_whatever_a_users_code_does_is_one_line(here: Path, function: str, expected: str) -> None:
    assert expected in refused("profile", "--module", f"profiled:{function}")
    assert not list(here.glob("*.yaml"))


def test_what_a_users_code_prints_is_not_in_the_json(here: Path) -> None:
    ran = octocp("profile", "--module", "profiled:talks", "--max-spread", 100, "--json")
    assert [row["layer"] for row in json.loads(ran.out)] == [0, 1, 2, 3, 4]
    assert "hello" in ran.err


@pytest.mark.parametrize("name", ["", ":f", "octocp.torch.models", "no.such.module:f", "octocp.torch.models:Nothing"])
def test_names_of_no_function_are_refused(name: str) -> None:
    with pytest.raises(InputError):
        load(name)


def test_the_example_of_the_docs_loads() -> None:
    assert len(load("octocp.torch.models:small_hybrid").layers) == 10
