"""The shipped models and instances: generated, loadable, and true to the published numbers they cite."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from octocp import catalog
from octocp.costs import build_problem
from octocp.problem import B, F, Problem, W
from octocp.schedule import Layout, Op
from octocp.schema import Instance
from octocp.schema.files import load_instance, load_model
from octocp.timing import time_orders

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
make_models = importlib.import_module("make_models")
make_instances = importlib.import_module("make_instances")

MODELS = sorted(catalog.models())
INSTANCES = sorted(catalog.instances())
ROWS = {row.name: row for row in make_instances.ROWS}
BEST_KNOWN = json.loads((ROOT / "instances" / "best_known.json").read_text(encoding="utf-8"))


def on_disk(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_bytes().decode() for path in folder.rglob("*.yaml")}


# ---- the files ------------------------------------------------------------------------------


def test_models_are_what_the_script_generates():
    assert on_disk(ROOT / "models") == make_models.generate()


def test_instances_are_what_the_script_generates():
    assert on_disk(ROOT / "instances") == make_instances.generate()


def test_best_known_holds_at_least_what_is_published():
    text = (ROOT / "instances" / "best_known.json").read_text(encoding="utf-8")
    assert make_instances.best_known_text(make_instances.merged(BEST_KNOWN)) == text


def test_names_are_unique_over_the_subfolders():
    stems = [path.stem for path in (ROOT / "instances").rglob("*.yaml")]
    assert len(stems) == len(set(stems)) == len(INSTANCES)


@pytest.mark.parametrize("name", MODELS)
def test_model_loads(name):
    model = load_model(name)
    assert model.name == name
    assert model.description
    for profile in model.profiles.values() or [model]:
        assert profile.provenance.kind in {"published", "derived"}
        assert profile.provenance.source


@pytest.mark.parametrize("name", INSTANCES)
def test_instance_builds(name):
    instance = load_instance(name)
    assert instance.name == name
    assert instance.description
    problem = build_problem(instance)
    known = BEST_KNOWN.get(name)
    if known:
        assert known["bound"] <= known["value"]
        assert known["proven"] == (known["bound"] == known["value"])
        assert known["value"] >= work_per_device(problem)


def test_every_profile_of_every_proxy_builds():
    for name in MODELS:
        model = load_model(name)
        for profile in model.profiles or [None]:
            data = {"format": "octocp.instance/1", "name": "any", "model": model, "profile": profile}
            instance = Instance.model_validate(data | {"cluster": {"devices": 4}, "microbatches": 4})
            assert build_problem(instance).n_layers == len(model.layer_kinds())


def test_documentation_names_every_model_and_folder():
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    for name in [*MODELS, "octopipe/", "known/", "teaching/"]:
        assert f"`{name}`" in text, name


def test_best_known_names_only_instances():
    assert set(BEST_KNOWN) <= set(INSTANCES)


# ---- published numbers, recomputed from the files -------------------------------------------


def work_per_device(problem: Problem) -> int:
    """Return total work over devices, rounded up: a bound on any plan."""
    total = sum(sum(row) for row in problem.layer_ticks) * problem.n_microbatches
    return -(-total // problem.n_devices)


def fused_uniform(name: str) -> Problem:
    """Return the instance with fused backward and one uniform stage per device; E and L ride along."""
    instance = load_instance(name)
    layers, devices = len(instance.model.layer_kinds()), instance.cluster.devices
    whole, rest = divmod(layers - 2, devices)
    partition = [whole + (stage < rest) for stage in range(devices)]
    partition[0] += 1
    partition[-1] += 1
    return build_problem(
        instance.model_copy(
            update={
                "training": instance.training.model_copy(update={"split_backward": False}),
                "stages": instance.stages.model_copy(update={"partition": partition, "placement": "linear"}),
            }
        )
    )


def orders_1f1b(devices: int, microbatches: int) -> list[list[Op]]:
    """Return the orders of 1F1B from its definition: warm up, then one F and one B in turn."""
    orders = []
    for device in range(devices):
        ahead = min(devices - 1 - device, microbatches)
        order = [Op(F, device, microbatch) for microbatch in range(ahead)]
        for microbatch in range(microbatches):
            if ahead + microbatch < microbatches:
                order.append(Op(F, device, ahead + microbatch))
            order.append(Op(B, device, microbatch))
        orders.append(order)
    return orders


@pytest.mark.parametrize("name", ROWS)
def test_work_column(name):
    problem = build_problem(load_instance(name))
    total = sum(sum(row) for row in problem.layer_ticks) * problem.n_microbatches
    assert ROWS[name].work == total / problem.n_devices


@pytest.mark.parametrize("name", ROWS)
def test_uniform_1f1b_column(name):
    row = ROWS[name]
    # SimPipe's plan is one tick per stage boundary shorter than this profile gives, whatever M is;
    # rounded layer by layer, halves up, it takes that much longer.
    dropped = row.devices - 1 if row.model == "llama3-32b" else 0
    problem = fused_uniform(name)
    layout = Layout(problem.fixed_bounds, tuple(range(row.devices)))
    schedule = time_orders(problem, layout, orders_1f1b(row.devices, row.microbatches))
    assert schedule.makespan == row.one_f_one_b + dropped


@pytest.mark.parametrize("case", make_instances.SLACKPIPE_CASES)
def test_slackpipe_wavefront_column(case):
    """Microbatch + position in the chain of 2N positions, later position first, under the uniform split."""
    devices, stages, microbatches, layers = case
    for delay, (wavefront, _, _) in zip((0, 2), make_instances.SLACKPIPE_CASES[case], strict=True):
        problem = build_problem(load_instance(f"slackpipe-w{devices}-n{stages}-b{microbatches}-l{layers}-c{delay}"))
        bounds = tuple(range(0, layers + 1, layers // stages))
        layout = Layout(bounds, problem.placement_for(stages))
        chain = [(F, stage) for stage in range(stages)] + [(B, stage) for stage in reversed(range(stages))]
        ranked = sorted(
            (microbatch + position, -position, microbatch)
            for microbatch in range(microbatches)
            for position in range(2 * stages)
        )
        orders = [[] for _ in range(devices)]
        for _, negative, microbatch in ranked:
            kind, stage = chain[-negative]
            orders[layout.placement[stage]].append(Op(kind, stage, microbatch))
        assert time_orders(problem, layout, orders).makespan == wavefront


@pytest.mark.parametrize("row", make_instances.ZERO_BUBBLE, ids=lambda row: "p{}-m{}".format(*row[0]))
def test_zero_bubble_1f1b_rate(row):
    """Published bubble rate of 1F1B: W right after B, and the gradient handed on when W ends."""
    (devices, microbatches), (forward, backward, weight, _), rate, _ = row
    problem = build_problem(load_instance(f"zero-bubble-p{devices}-m{microbatches}-zb1p"))
    layout = Layout(problem.fixed_bounds, tuple(range(devices)))
    # Device 0 runs the first and the last op, so its span is the makespan.
    problem = replace(problem, objective="makespan")
    orders = [
        [one for op in order for one in ([op] if op.kind == F else [op, op._replace(kind=W)])]
        for order in orders_1f1b(devices, microbatches)
    ]
    makespan = time_orders(problem, layout, orders, fused=True).makespan
    assert 1 - microbatches * (forward + backward + weight) / makespan == pytest.approx(rate, abs=6e-5)


def test_llama_2_7b_costs_follow_from_its_size():
    """6.74 billion weights at 16 bytes; 6 operations per weight and token and attention on top."""
    model = load_model("llama-2-7b")
    kinds = [model.kinds[kind] for kind in model.layer_kinds()]
    assert sum(kind.static_gb for kind in kinds) == pytest.approx(6.738 * 16, rel=1e-3)
    total = sum(kind.forward_ms + kind.backward_input_ms + kind.backward_weight_ms for kind in kinds)
    weights, attention = 6.607e9, 32 * 3 * 2 * 4096**2 * 4096
    assert total == pytest.approx((6 * weights * 4096 + attention) / 400e9, rel=1e-3)
