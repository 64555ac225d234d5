"""TorchTitan: its configuration and the CSV beside it, written and read back."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from handmade import toy_instance
from octocp.costs import build_problem
from octocp.errors import InputError
from octocp.importers import read_schedule
from octocp.report.export.runtime import runtime_files
from octocp.runtimes.layers import layers_of
from octocp.runtimes.torch_csv import parse
from octocp.runtimes.torch_rules import violations
from octocp.runtimes.torchtitan import parse as parse_toml
from octocp.runtimes.torchtitan import partition as partition_of
from octocp.schedule import Layout
from octocp.schema.files import load_plan, write_plan
from runtime_plans import blocks, complaint, hybrid, megatron_plan, plan_of
from terminal import octocp


def test_torchtitan_names_modules(tmp_path: Path) -> None:
    plan = megatron_plan(2, 2, 2)
    file = tmp_path / "plan.torchtitan.toml"
    made = runtime_files(plan, "torchtitan", file)
    order = tmp_path / "plan.torchtitan.csv"
    assert set(made.files) == {file, order}
    read = tomllib.loads(made.files[file].decode())["parallelism"]
    assert read["pipeline_parallel_degree"] == 2
    assert read["pipeline_parallel_schedule"] == "PipelineScheduleMulti"
    assert read["pipeline_parallel_schedule_csv"] == order.name
    assert read["module_fqns_per_model_part"] == [
        ["tok_embeddings", "layers.0"],
        ["layers.1", "layers.2"],
        ["layers.3", "layers.4"],
        ["layers.5", "norm", "output"],
    ]
    assert violations(parse(made.files[order].decode())) == []


def test_torchtitan_runs_loops_and_vees_only() -> None:
    instance = blocks(4, 2, 2)

    def made(placement: tuple[int, ...]) -> str:
        partition = (2, 1, 1, 2) if len(placement) == 4 else (3, 3)
        plan = plan_of(instance, partition, placement, _serial(instance, partition, placement))
        file = Path("x.toml")
        return runtime_files(plan, "torchtitan", file).files[file].decode()

    assert '"PipelineScheduleMulti"' in made((0, 1, 0, 1))
    assert '"ZBVZeroBubble"' in made((0, 1, 1, 0))
    assert '"PipelineScheduleSingle"' in made((0, 1))
    with pytest.raises(InputError, match=r"placement: TorchTitan places stages in a loop.*the plan has \[0, 0, 1, 1\]"):
        made((0, 0, 1, 1))


def _serial(instance: Any, partition: tuple[int, ...], placement: tuple[int, ...]) -> Any:
    from octocp.heuristics.serial import serial

    bounds = tuple(sum(partition[:s]) for s in range(len(partition) + 1))
    return serial(build_problem(instance), Layout(bounds, placement))


def test_torchtitan_needs_whole_blocks() -> None:
    instance = hybrid("EM-*-L", 2)
    plan = plan_of(instance, (3, 3), (0, 1), _serial(instance, (3, 3), (0, 1)))
    with pytest.raises(InputError, match=r"model: TorchTitan's layers\.N is a whole block"):
        runtime_files(plan, "torchtitan", Path("x"))


# ---- read back -------------------------------------------------------------------------------

TOML = """
[parallelism]
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "PipelineScheduleMulti"
pipeline_parallel_schedule_csv = "mine.csv"
module_fqns_per_model_part = [
  ["tok_embeddings", "layers.0"],
  ["layers.1", "layers.2"],
  ["layers.3", "layers.4"],
  ["layers.5", "norm", "output"],
]
"""
ORDER = "0F0,2F0,0F1,2F1,2B0,0B0,2B1,0B1\n1F0,3F0,3B0,1F1,3F1,1B0,3B1,1B1\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_text(ORDER)
    (tmp_path / "mine.toml").write_text(TOML)
    return tmp_path


@pytest.mark.parametrize("vee", [False, True])
def test_what_is_written_is_read_back(vee: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    partition, placement = (1, 2, 2, 3), (0, 1, 1, 0) if vee else (0, 1, 0, 1)
    instance = blocks(6, 2, 4)
    plan = plan_of(instance, partition, placement, _serial(instance, partition, placement))
    (tmp_path / "there").mkdir()
    for file, content in runtime_files(plan, "torchtitan", Path("there/plan.toml")).files.items():
        file.write_bytes(content)
    problem = build_problem(instance)
    # With the roles of the layers, and without: only their number is known.
    for given in (instance, None):
        read = read_schedule(problem, "there/plan.toml", instance=given)
        assert (tuple(read.schedule.layout.partition), read.schedule.layout.placement) == (partition, placement)
        assert read.schedule.makespan <= plan.makespan
        assert read.notes == ()
    write_plan(plan, "mine.plan.json")
    Path("instance.json").write_text(instance.model_dump_json())
    ran = octocp("import", "there/plan.toml", "instance.json")
    assert ran.code == 0, ran
    assert load_plan("plan.imported.plan.json").partition == list(partition)
    ran = octocp("check", "--runtime", "there/plan.toml")
    assert (ran.code, ran.out.split(":")[1]) == (0, " OK, TorchTitan, stages")


def test_comments_say_how_to_use_it() -> None:
    text = runtime_files(megatron_plan(2, 2, 2), "torchtitan", Path("mine.toml")).files[Path("mine.toml")].decode()
    comments = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    for said in (
        "--parallelism.pipeline_parallel_schedule_csv mine.csv",
        "octocp import",
        "named_children()",
        "folder",
    ):
        assert said in comments


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[parallelism]", "[parallelism", "mine.toml: not valid TOML: "),
        (
            '["layers.1", "layers.2"]',
            '["layers.2", "layers.1"]',
            "part[1][0]: layers.2 is out of order; layers.1 is next",
        ),
        ('["layers.1", "layers.2"]', '["layers.1", 2]', "part[1]: is no list of modules"),
        ('["layers.1", "layers.2"],', "[],", "part[1]: has no module"),
        ('"layers.5", ', "", "has 5 blocks (layers.N); the instance has 6 layers between embedding and head"),
        (
            '"layers.1", "layers.2"],',
            '"layers.1"], ["freqs"], ["layers.2"],',
            "part[3][0]: layers.2 is out of order; it comes after freqs",
        ),
        ('"norm", "output"', '"norm", "layers.6"', "part[3][2]: layers.6 is out of order; it comes after norm"),
        ("degree = 2", "degree = 4", "parallelism.pipeline_parallel_degree: is 4; the instance has 2 devices"),
        ("degree = 2", "degree = true", "parallelism.pipeline_parallel_degree: is no number of ranks"),
        ('"mine.csv"', "3", "parallelism.pipeline_parallel_schedule_csv: is no text"),
        ('"mine.csv"', '"gone.csv"', "gone.csv: no such file"),
        (
            'pipeline_parallel_schedule_csv = "mine.csv"',
            "",
            "schedule_csv: is missing: the order is that of TorchTitan's",
        ),
        ('pipeline_parallel_schedule_csv = "mine.csv"', "", "(a CSV of the order by itself: FILE.csv@2,2,2,2)"),
        ("PipelineScheduleMulti", "ZBVZeroBubble", "mine.csv: stage 2 is on rank 0; TorchTitan (ZBVZeroBubble) lays"),
        ("module_fqns_per_model_part", "other", "mine.toml: parallelism.module_fqns_per_model_part: is missing"),
    ],
)
def test_what_is_wrong_is_named_with_its_key(folder: Path, old: str, new: str, said: str) -> None:
    problem, instance = build_problem(blocks(6, 2, 2)), blocks(6, 2, 2)
    assert read_schedule(problem, "mine.toml", instance=instance).schedule.layout.placement == (0, 1, 0, 1)
    assert old in TOML
    Path("mine.toml").write_text(TOML.replace(old, new, 1))
    message = complaint(lambda: read_schedule(problem, "mine.toml", instance=instance))
    assert said in message


def test_a_stage_of_what_the_model_leaves_out_has_no_layer() -> None:
    bare = toy_instance(
        model={"name": "bare", "layers": "TTTT", "kinds": {"T": {"forward_ms": 1, "backward_input_ms": 1}}}
    )
    read = parse_toml(
        TOML.replace('"layers.4"],', "],").replace('"layers.5", ', "").replace('"layers.3", ', '"layers.3"')
    )
    assert read.stages[3] == ("norm", "output")
    with pytest.raises(InputError, match=r"module_fqns_per_model_part\[3\]: has no layer of the instance"):
        partition_of(read, layers_of(bare.model), 4)


def test_a_broken_order_beside_it_is_named(folder: Path) -> None:
    Path("mine.csv").write_text(ORDER.replace("3B0,", ""))
    ran = octocp("check", "--runtime", "mine.toml")
    assert ran.code == 1
    assert ran.out == "mine.toml: mine.csv: row 2 (rank 1): 3B0 (or 3I0 and 3W0) is missing\n"
    Path("mine.csv").write_text("".join(reversed(ORDER.splitlines(keepends=True))))
    assert "stage 0 is on rank 1" in octocp("check", "--runtime", "mine.toml").out
    Path("mine.csv").write_text("0F0,0B0\n1F0,1B0\n2F0,2B0\n")
    assert octocp("check", "--runtime", "mine.toml").out.splitlines() == [
        "mine.toml: mine.csv: has 3 rows, one for each rank; parallelism.pipeline_parallel_degree is 2",
        "mine.toml: mine.csv: has 3 stages; parallelism.module_fqns_per_model_part has 4",
    ]
    Path("mine.toml").write_text(TOML.replace('pipeline_parallel_schedule_csv = "mine.csv"', ""))
    ran = octocp("check", "--runtime", "mine.toml")
    assert ran.code == 0
    assert "TorchTitan runs an order of its own, which is not checked" in ran.err
