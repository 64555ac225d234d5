"""Plans for runtimes: what is written, read back by other means; what is refused; what `check --runtime` finds."""

from __future__ import annotations

import ast
import dataclasses
import enum
import json
import subprocess
import sys
import tomllib
import types
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from handmade import toy_instance, toy_plan
from octocp.costs import build_problem
from octocp.errors import InputError
from octocp.heuristics.interleaved import interleaved
from octocp.report.export import chakra, jaxpp, torch_csv
from octocp.report.export.runtime import RUNTIME_SUFFIXES, runtime_files
from octocp.runtimes.torch_csv import parse, write
from octocp.runtimes.torch_rules import remarks, violations
from octocp.schedule import Layout
from octocp.schema import Plan
from octocp.schema.files import write_plan
from runtime_plans import plan_of, random_plans
from terminal import octocp, refused
from test_importers import blocks, hybrid

VEE = {"partition": (1, 2, 2, 1), "placement": (0, 1, 1, 0)}


def text_of(plan: Plan, form: str, **more: Any) -> str:
    (made,) = runtime_files(plan, form, Path("x"), **more).files.values()
    return made.decode()


def megatron_plan(ranks: int, chunks: int, group: int, *, split: bool = True, early: bool = False) -> Plan:
    """An interleaved plan, its backward fused; `early` hands gradients on after B."""
    stages = ranks * chunks
    instance = blocks(2 * stages - 2, ranks, 4 * ranks)
    training = instance.training.model_copy(update={"split_backward": split})
    instance = instance.model_copy(update={"training": training})
    problem = build_problem(instance)
    placement = tuple(s % ranks for s in range(stages))
    layout = Layout(tuple(range(0, 2 * stages + 1, 2)), placement)
    return plan_of(instance, (2,) * stages, placement, interleaved(problem, layout, group), fused=not early)


# ---- PyTorch ---------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, VEE, {"training__split_backward": False}])
@pytest.mark.parametrize("form", ["torch-csv", "torch-csv-comms"])
def test_our_own_files_break_no_rule(form: str, changes: dict[str, Any]) -> None:
    plan = toy_plan(**changes)
    text = text_of(plan, form)
    table = parse(text)
    assert violations(table) == []
    assert table.has_transfers == (form == "torch-csv-comms")
    assert table.owners() == dict(enumerate(plan.placement))
    assert text.endswith("\n")
    assert "\n\n" not in text
    assert write(table.rows) == text


def test_random_plans_break_no_rule() -> None:
    count = 0
    for _, _, plan in random_plans(range(150)):
        for form in ("torch-csv", "torch-csv-comms"):
            assert violations(parse(text_of(plan, form))) == []
        count += 1
    assert count > 80


def test_transfers_meet_with_nothing_buffered() -> None:
    """Even if every send waited for its receive to be posted, and the other way round, no rank would hang."""
    for _, _, plan in random_plans(range(60)):
        rows = [list(map(str, row)) for row in parse(text_of(plan, "torch-csv-comms")).rows]
        at = [0] * len(rows)
        moved = True
        while moved:
            moved = False
            for rank, row in enumerate(rows):
                while at[rank] < len(row) and "SEND" not in row[at[rank]] and "RECV" not in row[at[rank]]:
                    at[rank] += 1
                    moved = True
            heads = {row[at[rank]]: rank for rank, row in enumerate(rows) if at[rank] < len(row)}
            for head, rank in heads.items():
                other = _other_half(head)
                if other in heads:
                    at[rank] += 1
                    at[heads[other]] += 1
                    moved = True
                    break
        assert at == list(map(len, rows))


def _other_half(head: str) -> str:
    stage, kind, microbatch = head.partition("SEND_") if "SEND" in head else head.partition("RECV_")
    direction, number = microbatch[0], microbatch[1:]
    step = 1 if (kind == "SEND_") == (direction == "F") else -1
    return f"{int(stage) + step}{'RECV_' if kind == 'SEND_' else 'SEND_'}{direction}{number}"


def test_transfers_of_a_handmade_plan() -> None:
    plan = toy_plan(training__split_backward=False, microbatches=2)
    assert text_of(plan, "torch-csv-comms") == (
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD\n"
        "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD\n"
    )


def test_microbatches_are_renumbered_by_the_last_stage() -> None:
    plan = toy_plan(microbatches=2)
    swapped = plan.model_copy(
        update={"ops": [op.model_copy(update={"microbatch": 1 - op.microbatch}) for op in plan.ops]}
    )
    assert text_of(swapped, "torch-csv") == text_of(plan, "torch-csv")
    assert "microbatches are renumbered" in torch_csv.notes(swapped)[0]
    assert not any("renumbered" in line for line in torch_csv.notes(plan))


def test_notes_for_pytorch() -> None:
    said = "\n".join(torch_csv.notes(toy_plan(**VEE)))
    assert "stages 1 and 2 share a rank" in said
    assert "never set defer_pp_recv" in said
    tight = toy_plan(cluster__memory_gb=10.5)
    assert any("PyTorch frees a stage's activations at W" in line for line in torch_csv.notes(tight))
    assert torch_csv.notes(toy_plan(training__split_backward=False)) == []


def test_stage_0_has_a_note_where_its_backward_is_apart() -> None:
    def said(**partition: Any) -> list[str]:
        return [line for line in torch_csv.notes(toy_plan(**partition)) if "stage 0" in line]

    assert said()[0].startswith("stage 0 runs 2 whole backwards where the plan has W, because PyTorch's I does nothing")
    # The first layer alone has no B to speak of.
    alone = toy_plan(partition=(1, 5))
    first = [op for op in alone.ops if op.stage == 0]
    assert {op.end - op.start for op in first if op.kind == "B"} == {0}
    assert any(
        b.end != w.start
        for b in first
        for w in first
        if (b.kind, w.kind) == ("B", "W") and b.microbatch == w.microbatch
    )
    assert said(partition=(1, 5)) == []


def test_pytorchs_memory_comes_with_the_sizes_to_plan_with() -> None:
    def memory(plan: Plan) -> list[str]:
        return [line for line in torch_csv.notes(plan) if "activation" in line]

    why = "PyTorch frees a stage's activations at W, the plan frees them at B"
    tight, free = toy_plan(cluster__memory_gb=10.5), toy_plan()
    *devices, hint = memory(tight)
    assert devices
    assert all(line.endswith(f" GB of 10.5 GB: {why}") for line in devices)
    sizes = "weight_activation_gb to activation_gb in the model (0.5 for A, 0.75 for B, 1 for L)"
    assert hint == f"to plan with PyTorch's memory, set {sizes} and solve again"
    # Without a limit, the device that differs most.
    assert len(memory(free)) == 2
    assert f"GB more than planned: {why}" in memory(free)[0]
    # With room enough, nothing is lost.
    assert memory(toy_plan(cluster__memory_gb=100)) == []
    # What the hint says is all there is to do.
    kinds = {
        key: kind.model_copy(update={"weight_activation_gb": kind.activation_gb})
        for key, kind in free.instance.model.kinds.items()
    }
    model = free.instance.model.model_copy(update={"kinds": kinds})
    assert memory(toy_plan(free.instance.model_copy(update={"model": model}))) == []


GOOD = "0F0,0F1,0B0,0B1\n1F0,1I0,1F1,1I1,1W0,1W1\n"
COMMS = (
    "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD\n"
    "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD\n"
)


@pytest.mark.parametrize(
    ("text", "old", "new", "said"),
    [
        (GOOD, "1F0", "1G0", "row 2 (rank 1), column 1: '1G0' is no action"),
        (GOOD, "1F0", "1F0x", "row 2 (rank 1), column 1: '1F0x' is no action"),
        (GOOD, "1F0", "1F", "row 2 (rank 1), column 1: '1F' is no action"),
        (GOOD, "1F0,1I0,1F1,1I1", "1F1,1I1,1F0,1I0", "row 2 (rank 1), column 3 (1F0): comes after 1F1; the last stage"),
        (GOOD, "1W0,1W1\n", "1W0,1W1\n\n", "row 3 (rank 2): is blank, and every line is a rank; delete it"),
        (GOOD, "1W0,1W1\n", "1W0,1W1\n,,\n", "row 3 (rank 2): runs no stage"),
        (GOOD, "1W0,1W1", "1W0,1W1,0F0", "row 2 (rank 1), column 7 (0F0): stage 0 is on rank 0; a stage runs on one"),
        (GOOD, "1W1", "1W1,1W1", "row 2 (rank 1), column 7 (1W1): is there already, in row 2 (rank 1), column 6"),
        (GOOD, ",1W1", "", "row 2 (rank 1), column 4 (1I1): has no 1W1; the gradient of the weights would be lost"),
        (GOOD, "1I1,", "", "row 2 (rank 1), column 5 (1W1): has no 1I1 before it"),
        (GOOD, "1W1", "1W1,1B1", "row 2 (rank 1), column 7 (1B1): runs the whole backward, and so do 1I1 or 1W1"),
        (GOOD, ",0B1", "", "row 1 (rank 0): 0B1 (or 0I1 and 0W1) is missing"),
        (GOOD, "0F1,", "", "row 1 (rank 0): 0F1 is missing"),
        (GOOD, "0B0,0B1", "0I0,0W0,0B1", "row 1 (rank 0), column 3 (0I0): does nothing in stage 0"),
        (GOOD, "1F0,1I0", "1I0,1F0", "row 2 (rank 1), column 1 (1I0): comes before 1F0"),
        (GOOD, "1I1,1W0,1W1", "1W1,1I1,1W0", "row 2 (rank 1), column 4 (1W1): comes before 1I1"),
        (GOOD, "0F0,0F1,0B0", "0F0,0B0,0F1", ""),
        (GOOD, "0F1,0B0,0B1", "0B0,0B1,0F1", "row 1 (rank 0), column 3 (0B1): comes before 0F1"),
        (GOOD, "1F0,1I0,1F1", "1F0,1F1,1I0", ""),
        (GOOD, "1", "3", "stage 1 is on no rank"),
        (COMMS, "0SEND_F0,0F1,0SEND_F1", "0F1,0SEND_F1,0SEND_F0", "row 2 (rank 1), column 1 (1RECV_F0): would receive"),
        (
            COMMS,
            "1RECV_F0,1F0,1RECV_F1",
            "1RECV_F1,1RECV_F0,1F0",
            "column 1 (1RECV_F1): would receive what row 1 (rank 0)",
        ),
        (COMMS, ",0REDUCE_GRAD", "", "row 1 (rank 0), column 8 (0B1): no 0REDUCE_GRAD follows; gradients would not be"),
        (COMMS, "0B1,0REDUCE_GRAD", "0REDUCE_GRAD,0B1", "row 1 (rank 0), column 8 (0REDUCE_GRAD): comes before row 1"),
        (COMMS, "0SEND_F1,", "", "row 2 (rank 1), column 3 (1RECV_F1): has no 0SEND_F1 on rank 0"),
        (COMMS, "1RECV_F1,", "", "row 1 (rank 0), column 4 (0SEND_F1): has no 1RECV_F1 on rank 1"),
        (COMMS, "1RECV_F1,", "", "row 2 (rank 1), column 5 (1F1): has no 1RECV_F1 before it"),
        (COMMS, "0F0,0SEND_F0", "0SEND_F0,0F0", "row 1 (rank 0), column 1 (0SEND_F0): sends before 0F0 has run"),
        (COMMS, "0F1,", "0F1,,", "row 1 (rank 0), column 4: is empty; a file with transfers"),
        (COMMS, "1SEND_B1", "1SEND_B1,1SEND_F1", "row 2 (rank 1), column 9 (1SEND_F1): there is no stage 2 to talk to"),
        (COMMS, "1SEND_B1", "1SEND_B1,0SEND_F1", "column 9 (0SEND_F1): stage 0 is not on this rank"),
    ],
)
def test_broken_files_are_caught_with_the_cell(text: str, old: str, new: str, said: str) -> None:
    assert violations(parse(text)) == []
    assert old in text
    found = violations(parse(text.replace(old, new, 1) if old != "1" else "0F0,0B0\n3F0,3B0\n"))
    if said:
        assert any(said in line for line in found), found
    else:
        assert found == []
    assert not any("\n" in line for line in found)


def test_ranks_that_wait_for_each_other() -> None:
    text = "0F0,3F0,3B0,0B0\n1F0,1B0,2F0,2B0\n"
    found = violations(parse(text))
    assert found == [
        "row 1 (rank 0), column 2 (3F0): waits for 2F0, which never runs: the ranks wait for each other",
        "row 2 (rank 1), column 2 (1B0): waits for 2B0, which never runs: the ranks wait for each other",
    ]


def test_overlapped_cells_are_read() -> None:
    table = parse("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n")
    assert [str(action) for action in table.rows[0]] == ["0F0", "0F1", "0B0", "0B1"]
    assert table.rows[0][2].where == "row 1 (rank 0), column 2 (0B0)"
    assert violations(table) == []
    assert violations(parse("0F0,(0F1;)OVERLAP_F_B\n"))


def test_hostile_files_are_refused_quickly() -> None:
    assert len(violations(parse("999999F999999\n"))) < 40
    assert "is no action" in violations(parse("9" * 5000 + "F0\n"))[0]
    with pytest.raises(InputError, match="rows, one for each rank"):
        parse("0F0\n" * 5000)
    with pytest.raises(InputError, match="not valid CSV"):
        parse('0F0,"' + "x" * 200_000 + '"\n')
    assert violations(parse("0F0;0B0\n"))


def test_remarks() -> None:
    assert remarks(parse(GOOD)) == []
    said = remarks(parse(text_of(toy_plan(**VEE), "torch-csv")))
    assert [line.split(":")[0] for line in said] == [
        "rank 1 holds the adjacent stages 1 and 2",
        "a rank sends both activations and gradients to one other",
    ]


# ---- TorchTitan ------------------------------------------------------------------------------


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


# ---- Megatron --------------------------------------------------------------------------------


@pytest.mark.parametrize(("chunks", "group"), [(2, 2), (2, 4), (3, 2)])
@pytest.mark.parametrize("split", [True, False])
def test_megatron_arguments(chunks: int, group: int, split: bool) -> None:
    text = text_of(megatron_plan(2, chunks, group, split=split), "megatron")
    lines = text.splitlines()
    assert "--pipeline-model-parallel-size 2" in lines
    assert f"--microbatch-group-size-per-virtual-pipeline-stage {group}" in lines
    layout = {2: "Et|(tt|)*2,tL", 3: "Et|(tt|)*4,tL"}[chunks]
    assert f'--pipeline-model-parallel-layout "{layout}"' in lines
    as_list = json.loads(lines[-1].removeprefix("# "))
    assert as_list[0] == ["embedding", "decoder"]
    assert as_list[-1] == ["decoder", "loss"]


def test_megatron_refuses_other_orders_and_placements() -> None:
    free = toy_plan()
    with pytest.raises(InputError, match="ops: Megatron's backward is fused; the plan runs W of stage") as caught:
        runtime_files(free, "megatron", Path("x"))
    assert "--layout-only" in str(caught.value)
    assert "--pipeline-model-parallel-layout" in text_of(free, "megatron", layout_only=True)
    with pytest.raises(InputError, match="placement: Megatron has stage 2 on rank 0; the plan has it on 1"):
        runtime_files(toy_plan(**VEE), "megatron", Path("x"))
    with pytest.raises(InputError, match="the same number of stages on every rank; 3 on 2 is not"):
        runtime_files(toy_plan(partition=(2, 2, 2), placement=(0, 1, 0)), "megatron", Path("x"))
    with pytest.raises(InputError, match="Megatron's order is fixed; on device 0 its op 2 is F") as caught:
        runtime_files(toy_plan(training__split_backward=False, in_flight=1), "megatron", Path("x"))
    early = runtime_files(megatron_plan(2, 2, 2, early=True), "megatron", Path("x"))
    assert "Megatron hands a gradient on when its W has ended" in early.notes[0]
    with pytest.raises(InputError, match="--layout-only is for --to megatron"):
        runtime_files(free, "simpipe", Path("x"), layout_only=True)


def test_megatron_hybrid_pattern() -> None:
    instance = hybrid("EM-*#L", 2)
    instance = instance.model_copy(update={"training": instance.training.model_copy(update={"split_backward": False})})
    from octocp.heuristics.one_f_one_b import one_f_one_b

    layout = Layout((0, 3, 6), (0, 1))
    plan = plan_of(instance, (3, 3), (0, 1), one_f_one_b(build_problem(instance), layout))
    assert '--hybrid-layer-pattern "M-|*E"' in text_of(plan, "megatron")
    alone = plan_of(instance, (1, 5), (0, 1), one_f_one_b(build_problem(instance), Layout((0, 1, 6), (0, 1))))
    with pytest.raises(InputError, match="partition: stage 0 holds the embedding alone"):
        runtime_files(alone, "megatron", Path("x"))


def test_megatron_adds_what_the_model_leaves_out() -> None:
    instance = toy_instance(
        model={"name": "bare", "layers": "TTTT", "kinds": {"T": {"forward_ms": 1, "backward_input_ms": 1}}},
        training={"split_backward": False},
    )
    plan = toy_plan(instance, (2, 2), (0, 1))
    assert '--pipeline-model-parallel-layout "Ett|ttL"' in text_of(plan, "megatron", layout_only=True)


# ---- SimPipe ---------------------------------------------------------------------------------


def test_simpipe_yaml() -> None:
    plan = toy_plan(**{**VEE, "partition": (2, 1, 1, 2)})
    read = yaml.safe_load(text_of(plan, "simpipe"))
    assert read["partition_layers"] == [1, 1, 1, 1]
    assert read["placement"] == [[0, 3], [1, 2]]
    assert read["parallel"] == {"pp_size": 2, "micro_batch_num": 4, "bwd_split": True}
    assert read["tuning"] == {"auto_tune": False}
    with pytest.raises(InputError, match="partition: stage 0 holds no layer but the embedding"):
        runtime_files(toy_plan(**VEE), "simpipe", Path("x"))


# ---- JaxPP -----------------------------------------------------------------------------------


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A small jaxpp: the names that a schedule imports, with the checks of its base class."""
    schedules, kinds = types.ModuleType("jaxpp.schedules"), types.ModuleType("jaxpp.types")
    task_type = enum.Enum("TaskType", ["FWD", "BWD", "BWD_I", "BWD_W"])

    @dataclasses.dataclass(eq=True, frozen=True)
    class Base:
        num_stages: int
        is_partial_bwd: bool = dataclasses.field(default=False, init=False)

        def __post_init__(self) -> None:
            if self.num_stages <= 0:
                raise ValueError("num_stages")

    @dataclasses.dataclass(frozen=True)
    class Task:
        stage_id: int
        mubatch_idx: int
        fwd_or_bwd: Any

        @classmethod
        def make(cls, *arguments: Any) -> Task:
            return cls(*arguments)

    schedules.BaseSchedule, schedules.Task = Base, Task  # type: ignore[attr-defined]
    kinds.MpmdIdx, kinds.TaskType = int, task_type  # type: ignore[attr-defined]
    for name, module in (("jaxpp", types.ModuleType("jaxpp")), ("jaxpp.schedules", schedules), ("jaxpp.types", kinds)):
        monkeypatch.setitem(sys.modules, name, module)
    return task_type


@pytest.mark.parametrize("split", [True, False])
def test_the_jaxpp_class_runs(stand_in: Any, split: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for _, problem, plan in random_plans(range(80)):
        if plan.instance.training.split_backward != split:
            continue
        source = jaxpp.export(plan).decode()
        ast.parse(source)
        # Dataclasses look their module up.
        module = types.ModuleType("exported")
        monkeypatch.setitem(sys.modules, "exported", module)
        names = module.__dict__
        exec(compile(source, "exported.py", "exec"), names)
        schedule = names["OctoCPSchedule"]()
        assert schedule.is_partial_bwd == split
        assert [schedule.get_mpmd_idx(stage) for stage in range(schedule.num_stages)] == plan.placement
        assert schedule.mpmd_dim == problem.n_devices
        # F, I and W of every stage, but one backward in stage 0; or F and B of every stage.
        stages = len(plan.placement)
        assert schedule.get_num_stages(3 * stages - 1 if split else 2 * stages) == stages
        tasks = schedule.tasks(problem.n_microbatches)
        kinds = (stand_in.FWD, stand_in.BWD_I, stand_in.BWD_W) if split else (stand_in.FWD, stand_in.BWD)
        wanted = {(s, m, kind) for s in range(stages) for m in range(problem.n_microbatches) for kind in kinds}
        given = Counter((t.stage_id, t.mubatch_idx, t.fwd_or_bwd) for row in tasks for t in row)
        assert given == Counter(wanted)
        for rank, row in enumerate(tasks):
            assert {plan.placement[task.stage_id] for task in row} == {rank}
            for one, other in zip(row, row[1:], strict=False):
                if one.stage_id == 0 and one.fwd_or_bwd == stand_in.BWD_I:
                    assert (other.stage_id, other.mubatch_idx, other.fwd_or_bwd) == (0, one.mubatch_idx, stand_in.BWD_W)
        _runs_through(tasks, stand_in)
        with pytest.raises(ValueError, match="microbatches"):
            schedule.tasks(problem.n_microbatches + 1)
        with pytest.raises(ValueError, match="stages"):
            names["OctoCPSchedule"](num_stages=stages + 1)


def _runs_through(tasks: Any, kinds: Any) -> None:
    """Run the ranks against each other: none may wait for ever."""
    done: set[tuple[int, str, int]] = set()
    stages = 1 + max(task.stage_id for row in tasks for task in row)
    at = [0] * len(tasks)

    def ready(task: Any) -> bool:
        s, m = task.stage_id, task.mubatch_idx
        if task.fwd_or_bwd == kinds.FWD:
            return s == 0 or (s - 1, "F", m) in done
        if task.fwd_or_bwd == kinds.BWD_W:
            return (s, "B", m) in done
        return (s, "F", m) in done and (s == stages - 1 or (s + 1, "B", m) in done)

    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(tasks):
            while at[rank] < len(row) and ready(row[at[rank]]):
                task = row[at[rank]]
                name = {"FWD": "F", "BWD_W": "W"}.get(task.fwd_or_bwd.name, "B")
                done.add((task.stage_id, name, task.mubatch_idx))
                at[rank] += 1
                moved = True
    assert at == [len(row) for row in tasks]


# ---- Chakra ----------------------------------------------------------------------------------


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at


def _fields(data: bytes) -> dict[int, list[Any]]:
    """Decode a message: values by field number."""
    found: dict[int, list[Any]] = defaultdict(list)
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        if tag & 7 == 0:
            value, at = _varint(data, at)
            found[tag >> 3].append(value)
        else:
            assert tag & 7 == 2
            length, at = _varint(data, at)
            found[tag >> 3].append(data[at : at + length])
            at += length
    return found


def _packed(data: list[bytes]) -> list[int]:
    values, at = [], 0
    for each in data:
        while at < len(each):
            value, at = _varint(each, at)
            values.append(value)
    return values


@dataclasses.dataclass
class Node:
    name: str
    kind: int
    control: list[int]
    data: list[int]
    start: int
    duration: int
    attributes: dict[str, int]


def _nodes(trace: bytes) -> list[Node]:
    messages, at = [], 0
    while at < len(trace):
        length, at = _varint(trace, at)
        messages.append(trace[at : at + length])
        at += length
    assert _fields(messages[0]) == {1: [b"0.0.4"]}
    nodes = []
    for number, message in enumerate(messages[1:]):
        fields = _fields(message)
        assert set(fields) <= {1, 2, 3, 4, 5, 6, 7, 10}
        assert fields.get(1, [0]) == [number]
        attributes = {}
        for attribute in map(_fields, fields[10]):
            (name,) = attribute.pop(1)
            ((field, (value,)),) = attribute.items()
            # int32 7, int64 9, bool 27, as the feeder reads them.
            assert field == {"is_cpu_op": 27, "comm_size": 9}.get(name.decode(), 7)
            attributes[name.decode()] = value
        start, duration = (fields.get(key, [0])[0] for key in (6, 7))
        nodes.append(
            Node(
                fields[2][0].decode(), fields[3][0], _packed(fields[4]), _packed(fields[5]), start, duration, attributes
            )
        )
    return nodes


@pytest.mark.parametrize(
    "changes",
    [{}, VEE, {"training__split_backward": False}, {"tick_us": 333.3, "training__op_overhead_us": 100.0}],
)
def test_chakra_traces_read_back(changes: dict[str, Any]) -> None:
    plan = toy_plan(**changes)
    traces = [_nodes(trace) for trace in chakra.export(plan)]
    ops = {(op.kind, op.stage, op.microbatch): op for op in plan.ops}
    seen = set()
    halves: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
    for device, nodes in enumerate(traces):
        previous = None
        for number, node in enumerate(nodes):
            assert all(need < number for need in node.control + node.data)
            assert node.attributes["is_cpu_op"] == 0
            if node.kind == 4:
                words = node.name.split()
                key = (words[0], int(words[2]), int(words[4]))
                op = ops[key]
                seen.add(key)
                assert op.device == device
                assert node.start == round(op.start * plan.tick_us)
                assert node.start + node.duration == round(op.end * plan.tick_us)
                assert node.control == ([] if previous is None else [previous])
                assert all(nodes[need].kind in (4, 6) for need in node.data)
                previous = number
            else:
                assert (node.duration, node.start) == (0, 0)
                pair = node.attributes["comm_src"], node.attributes["comm_dst"], node.attributes["comm_tag"]
                assert pair[0 if node.kind == 5 else 1] == device
                halves[pair].append((node.kind, node.attributes["comm_size"]))
                assert [nodes[need].kind for need in node.data] == ([4] if node.kind == 5 else [])
    assert seen == set(ops)
    cuts = [stage for stage in range(len(plan.placement) - 1) if plan.placement[stage] != plan.placement[stage + 1]]
    assert len(halves) == 2 * len(cuts) * 4
    kinds = plan.instance.model.layer_kinds()
    sizes = {plan.instance.model.kinds[kinds[sum(plan.partition[: cut + 1]) - 1]].output_mb for cut in cuts}
    for both in halves.values():
        (one, size), (other, same) = sorted(both)
        assert (one, other, size) == (5, 6, same)
        assert size / 1e6 in sizes


def test_varints() -> None:
    from octocp.runtimes.protobuf import number, varint

    for value in (0, 1, 127, 128, 300, 2**32, 2**63, 2**64 - 1):
        assert _varint(varint(value), 0) == (value, len(varint(value)))
    assert varint(300) == b"\xac\x02"
    assert len(varint(-1)) == 10
    assert number(1, 0) == b""
    assert number(1, 0, always=True) == b"\x08\x00"


# ---- the command line ------------------------------------------------------------------------


@pytest.fixture
def plan_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_plan(megatron_plan(2, 2, 2, split=False), "mine.plan.json")
    return Path("mine.plan.json")


def test_every_format_is_written_and_told_of(plan_file: Path) -> None:
    for form, suffix in RUNTIME_SUFFIXES.items():
        ran = octocp("export", plan_file, "--to", form)
        assert ran.code == 0, (form, ran)
        assert ran.out == ""
        assert "Written to mine" in ran.err
        if form == "chakra":
            assert Path("mine.0.et").exists()
            assert Path("mine.1.et").exists()
        else:
            assert Path(f"mine{suffix}").stat().st_size > 0
    assert Path("mine.torchtitan.csv").exists()
    for file in ("mine.torch.csv", "mine.torch-comms.csv", "mine.torchtitan.csv", "mine.megatron.txt"):
        ran = octocp("check", "--runtime", file)
        assert ran.code == 0, ran
        assert ran.out.startswith(f"{file}: OK, ")
    assert "--pipeline-model-parallel-layout" in octocp("export", plan_file, "--to", "megatron", "-o", "-").out
    assert "writes 2 files" in refused("export", plan_file, "--to", "chakra", "-o", "-")
    assert "--layout-only is for" in refused("export", plan_file, "--to", "svg", "--layout-only")


def test_what_cannot_run_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_plan(toy_plan(**VEE), "vee.plan.json")
    said = refused("export", "vee.plan.json", "--to", "megatron")
    assert said.startswith("octocp: vee.plan.json: placement: Megatron has stage 2 on rank 0")
    assert not Path("vee.megatron.txt").exists()
    broken = toy_plan()
    write_plan(broken.model_copy(update={"ops": broken.ops[1:]}), "broken.plan.json")
    assert "is not a valid plan" in refused("export", "broken.plan.json", "--to", "torch-csv")


def test_check_runtime_tells_every_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.csv").write_text(GOOD.replace(",1W1", "") + "\n")
    ran = octocp("check", "--runtime", "bad.csv")
    assert ran.code == 1
    assert ran.out.splitlines() == [
        "bad.csv: row 3 (rank 2): is blank, and every line is a rank; delete it",
        "bad.csv: row 2 (rank 1), column 4 (1I1): has no 1W1; the gradient of the weights would be lost",
    ]
    Path("layout.txt").write_text("Et|t L\n")
    ran = octocp("check", "--runtime", "layout.txt")
    assert (ran.code, ran.out) == (1, "layout.txt: character 5: ' ' is a blank; a layout has none\n")
    Path("empty.txt").write_text('--hybrid-layer-pattern ""\n')
    ran = octocp("check", "--runtime", "empty.txt")
    assert (ran.code, ran.err) == (1, "")
    assert ran.out.startswith("empty.txt: the pattern has no layer (a letter for each layer: M (mamba), ")
    assert len(ran.out.splitlines()) == 1
    write_plan(toy_plan(), "toy.plan.json")
    assert octocp("check", "toy.plan.json", "--runtime", "bad.csv").code == 1
    assert "without --runtime" in refused("check", "--runtime", "toy.plan.json")
    assert "Missing argument 'PLAN...'" in refused("check")
    Path("words.txt").write_text("hello\n")
    assert "words.txt: is in no format that can be read here" in refused("check", "--runtime", "words.txt")


def test_help_stays_instant() -> None:
    """Nothing that is slow to import is needed for help, nor for what export and check say about themselves."""
    code = (
        "import sys; from octocp.cli.main import main; main(['export', '--help']); main(['check', '--help']); "
        "slow = {'numpy', 'octocp.schema', 'ortools', 'numba', 'yaml', 'octocp.runtimes', 'octocp.importers'}; "
        "assert not slow & set(sys.modules), slow & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
