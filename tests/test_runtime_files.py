"""What `export --to`, `import` and `calibrate` must never do to files, and what TorchTitan would stumble over."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from octocp.runtimes.check import check_file
from octocp.runtimes.layers import layers_of
from octocp.runtimes.torch_csv import parse
from octocp.runtimes.torch_rules import violations
from octocp.schema import ModelSpec
from octocp.schema.files import write_plan
from runtime_plans import megatron_plan
from terminal import octocp, refused


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "two.plan.json"
    write_plan(megatron_plan(2, 2, 2), path)
    return path


# ---- files of the user's -----------------------------------------------------------------------


def test_the_toml_does_not_get_the_name_of_the_csv(plan: Path, tmp_path: Path) -> None:
    told = refused("export", plan, "--to", "torchtitan", "-o", tmp_path / "v.csv")
    assert f"is a CSV, and that of the order gets this name ({tmp_path / 'v.toml'})" in told
    assert not (tmp_path / "v.csv").exists()


def test_a_file_that_was_not_named_is_not_replaced(plan: Path, tmp_path: Path) -> None:
    (tmp_path / "v.csv").write_text("precious")
    assert f"{tmp_path / 'v.csv'}: is there already and would be replaced" in refused(
        "export", plan, "--to", "torchtitan", "-o", tmp_path / "v.toml"
    )
    assert (tmp_path / "v.csv").read_text() == "precious"
    # Its own files are.
    for _ in range(2):
        assert octocp("export", plan, "--to", "torchtitan", "-o", tmp_path / "w.toml").code == 0


@pytest.mark.parametrize("form", ["torchtitan", "chakra"])
@pytest.mark.parametrize("name", ["", ".", "/", "/dev/null"])
def test_what_is_no_file_name_is_one_line(form: str, name: str, plan: Path) -> None:
    assert "file" in refused("export", plan, "--to", form, "-o", name)
    assert not Path("/dev/null.csv").exists()
    assert not Path("/dev/null.0").exists()


def test_a_name_of_any_letters_is_valid_toml(plan: Path, tmp_path: Path) -> None:
    file = tmp_path / "\N{GRINNING FACE}\x7f\"'.toml"
    assert octocp("export", plan, "--to", "torchtitan", "-o", file).code == 0
    read = tomllib.loads(file.read_text(encoding="utf-8"))
    assert read["parallelism"]["pipeline_parallel_schedule_csv"] == file.with_suffix(".csv").name
    told = refused("export", plan, "--to", "torchtitan", "-o", tmp_path / "\udcff.toml")
    assert "is a name that no TOML file can have" in told


def test_import_replaces_plans_only(plan: Path, tmp_path: Path) -> None:
    instance = tmp_path / "instance.json"
    instance.write_text(json.dumps(json.loads(plan.read_text())["instance"]))
    order = tmp_path / "order.csv"
    octocp("export", plan, "--to", "torch-csv", "-o", order)
    layers = ",".join(map(str, json.loads(plan.read_text())["partition"]))
    before = instance.read_bytes()
    told = refused("import", f"{order}@{layers}", instance, "-o", instance)
    assert "is there already and is no plan" in told
    assert instance.read_bytes() == before
    for _ in range(2):  # a plan is replaced
        assert octocp("import", f"{order}@{layers}", instance, "-o", tmp_path / "own.plan.json").code == 0


def test_import_writes_to_stdout(plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    instance = tmp_path / "instance.json"
    instance.write_text(json.dumps(json.loads(plan.read_text())["instance"]))
    ran = octocp("import", plan, instance, "-o", "-")
    assert (ran.code, json.loads(ran.out)["format"]) == (0, "octocp.plan/1")
    assert not (tmp_path / "-").exists()


def test_calibrate_replaces_no_trace(plan: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text("{}")
    assert "is the input itself" in refused("calibrate", plan, trace, "-o", trace)
    assert "is drawn as SVG" in refused("calibrate", plan, trace, "-o", tmp_path / "both.png")
    assert trace.read_text() == "{}"


# ---- TorchTitan ----------------------------------------------------------------------------------


def changed(plan: Path, folder: Path, old: str, new: str) -> str:
    """Return what `check --runtime` says of the configuration with a text replaced."""
    file = folder / "run.toml"
    octocp("export", plan, "--to", "torchtitan", "-o", file)
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    return "\n".join(check_file(file).violations)


MODULES = "parallelism.module_fqns_per_model_part"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"layers.1"', '"layers.0"', f"{MODULES}[1][0]: layers.0 is there twice"),
        ('"layers.1"', '"layers.9"', f"{MODULES}[1][0]: layers.9 is no module of this model"),
        ('"layers.1"', '"layers.01"', f"{MODULES}[1][0]: layers.01 is no module of this model"),
        ('"layers.1"', '"layers.2"', f"{MODULES}: layers.1 is missing"),
        ('"layers.1", "layers.2"', '"layers.2", "layers.1"', f"{MODULES}[1][0]: layers.2 is out of order"),
        ('"tok_embeddings", ', "", f"{MODULES}: tok_embeddings is missing"),
        (', "norm", "output"', "", f"{MODULES}: norm is missing"),
        ('"norm", "output"', '"output", "norm"', f"{MODULES}[3][1]: output is out of order"),
        ('"PipelineScheduleMulti"', '"FooBar"', "FooBar is no schedule of PyTorch's"),
        ('"PipelineScheduleMulti"', '"zbvzerobubble"', "zbvzerobubble) lays stages in a V"),
    ],
)
def test_modules_and_names_are_torchtitans(old: str, new: str, told: str, plan: Path, tmp_path: Path) -> None:
    assert told in changed(plan, tmp_path, old, new)


def test_a_name_is_known_whatever_its_case(plan: Path, tmp_path: Path) -> None:
    assert changed(plan, tmp_path, '"PipelineScheduleMulti"', '"INTERLEAVED1F1B"') == ""


def test_an_order_with_transfers_is_not_loaded(plan: Path, tmp_path: Path) -> None:
    changed(plan, tmp_path, "run.csv", "run.csv")
    octocp("export", plan, "--to", "torch-csv-comms", "-o", tmp_path / "run.csv")
    assert "has transfers; TorchTitan loads the compute-only form" in "\n".join(
        check_file(tmp_path / "run.toml").violations
    )


# ---- roles of layers -----------------------------------------------------------------------------


def roles(*kinds: tuple[str, str]) -> tuple[list[str], bool]:
    """Return the role of each layer of a model with these (key, name) kinds, in order, and whether it is a hybrid."""
    costs = {"forward_ms": 1.0, "backward_input_ms": 1.0, "backward_weight_ms": 1.0}
    model = ModelSpec.model_validate(
        {
            "name": "m",
            "layers": "".join(key for key, _ in kinds),
            "kinds": {key: {"name": name, **costs} for key, name in kinds},
        }
    )
    found = layers_of(model)
    return [found.role(layer) for layer in range(len(kinds))], found.hybrid


def test_a_name_that_says_otherwise_beats_the_key() -> None:
    assert roles(("E", "embedding"), ("a", "transformer"), ("L", "head")) == (["embedding", "decoder", "loss"], False)
    assert roles(("E", "moe"), ("M", "mamba"), ("-", "mlp")) == (["decoder"] * 3, True)
    assert roles(("a", "mlp"), ("b", "multi-head attention")) == (["decoder"] * 2, True)
    assert roles(("a", "MLP block"), ("L", "local attention block")) == (["decoder"] * 2, True)
    assert roles(("a", "self_attention"), ("b", "mlp"), ("A", "self_attention"), ("B", "mlp"))[1]
    assert not roles(("a", "attention+mlp"), ("b", "moe transformer"))[1]


# ---- reading -------------------------------------------------------------------------------------


def test_many_ops_in_the_wrong_order_are_found_at_once() -> None:
    """Work grows with the length of a row, not with its square: this row would take hours."""
    count = 100_000
    row = [f"0B{m}" for m in range(count)] + [f"0F{m}" for m in range(count)]
    assert any("comes before 0F0" in told for told in violations(parse(",".join(row) + "\n")))


def test_megatron_arguments_in_one_line_are_read(tmp_path: Path) -> None:
    file: Any = tmp_path / "args.txt"
    file.write_text('torchrun x.py --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout "Ett|ttL"\n')
    assert check_file(file).violations == []
