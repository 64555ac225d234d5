"""Plans as PyTorch's CSV: the order of every rank, transfers, notes; read by PyTorch itself where it is installed."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from handmade import toy_plan
from octocp.errors import PlanRejectedError
from octocp.report.export import torch_csv
from octocp.report.export.timeline import Timeline, timeline
from octocp.runtimes.torch_csv import COMPUTE, Action, parse, write
from octocp.runtimes.torch_rules import remarks, violations
from octocp.schema import Plan, PlanOp
from runtime_plans import VEE, random_plans, text_of


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


@pytest.mark.parametrize("fused", [False, True])
def test_ops_of_length_zero_keep_every_precedence(fused: bool) -> None:
    """Most durations zero: what ties by its times is still in an order that can run, and that of its device."""
    count = whole = ties = 0
    for _, _, plan in random_plans(range(300), zeros=True, fused=fused):
        line = timeline(plan)
        for form in ("torch-csv", "torch-csv-comms"):
            table = parse(text_of(plan, form))
            assert violations(table) == []
            assert not any("cross" in line for line in remarks(table))
            for row, order in zip(table.rows, line.orders, strict=True):
                assert _computed(row) == _planned(line, order)
        count += 1
        whole += plan.instance.training.split_backward and bool(line.whole)
        ties += len({op.start for op in plan.ops}) < len(plan.ops) / 2
    assert min(count, whole, ties) > 60


def _computed(row: Sequence[Action]) -> list[tuple[int, str]]:
    return [(action.stage, action.kind) for action in row if action.kind in COMPUTE]


def _planned(line: Timeline, order: Sequence[PlanOp]) -> list[tuple[int, str]]:
    """Return a device's order: whole backwards where their B is, those of stage 0 that are apart where their W is."""
    made = []
    for op in order:
        whole = (op.stage, op.microbatch) in line.whole
        if op.kind == "F":
            made.append((op.stage, "F"))
        elif whole or op.stage == 0:
            if op.kind == ("B" if whole else "W"):
                made.append((op.stage, "B"))
        else:
            made.append((op.stage, "I" if op.kind == "B" else "W"))
    return made


def test_a_file_that_cannot_run_is_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line of defence: whatever put the order together, the runtime's rules hold."""
    plan = toy_plan(microbatches=2)
    good = torch_csv._actions

    for export in (torch_csv.export, torch_csv.export_with_transfers):
        export(plan)
        monkeypatch.setattr(torch_csv, "_actions", lambda line: list(reversed(good(line))))
        with pytest.raises(PlanRejectedError, match=r"the CSV made of a plan cannot run: row \d \(rank \d\), column"):
            export(plan)
        monkeypatch.undo()


def test_transfers_meet_with_nothing_buffered() -> None:
    """Even if every send waited for its receive to be posted, and the other way round, no rank would hang."""
    zeros = random_plans(range(60), zeros=True)
    for _, _, plan in chain(random_plans(range(60)), zeros):
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


# ---- PyTorch's own reading -------------------------------------------------------------------


def _loaded(text: str, form: str, file: Path, stages: int, microbatches: int) -> Any:
    """Load a CSV into PyTorch's runtime, with stages that do nothing; its validation and lowering run."""
    schedules = importlib.import_module("torch.distributed.pipelining.schedules")
    pipeline_stage = importlib.import_module("torch.distributed.pipelining").PipelineStage
    file.write_text(text)
    stage = mock.create_autospec(pipeline_stage, instance=True)
    stage.group_rank, stage.group_size, stage.num_stages, stage.submod = 0, text.count("\n"), stages, None
    schedule = schedules._PipelineScheduleRuntime([stage], microbatches, loss_fn=None, scale_grads=True)
    schedule._load_csv(str(file), format=form)
    return schedule


@pytest.mark.parametrize("zeros", [False, True])
def test_pytorch_reads_our_files_and_we_read_its_own(zeros: bool, tmp_path: Path) -> None:
    """What PyTorch makes of a file without transfers breaks none of the rules, and crosses nowhere."""
    pytest.importorskip("torch")
    count = 0
    for _, problem, plan in random_plans(range(60), zeros=zeros):
        size = len(plan.placement), problem.n_microbatches
        comms = text_of(plan, "torch-csv-comms")
        _loaded(comms, "compute_comms", tmp_path / "comms.csv", *size)
        # Its dry run does not know REDUCE_GRAD.
        plain = re.sub(r",[0-9]+REDUCE_GRAD", "", comms)
        assert _loaded(plain, "compute_comms", tmp_path / "comms.csv", *size)._simulate()
        lowered = _loaded(text_of(plan, "torch-csv"), "compute_only", tmp_path / "own.csv", *size)
        lowered._dump_csv(str(tmp_path / "lowered.csv"), format="compute_comms")
        table = parse((tmp_path / "lowered.csv").read_text())
        assert "UNSHARD" in (tmp_path / "lowered.csv").read_text()
        assert violations(table) == []
        assert not any("cross" in line for line in remarks(table))
        count += 1
    assert count > 25


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff0F0,0B0\n1F0,1B0\n",
        "(0F0;0B0)OVERLAP_F_B\n1F0,1B0\n",
        "0F0,3F0,3B0,0B0\n1F0,1B0,2F0,2B0\n",
    ],
)
def test_pytorch_cannot_load_what_we_say_it_cannot(text: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert violations(parse(text))
    with pytest.raises((AssertionError, RuntimeError)):
        _loaded(text, "compute_only", tmp_path / "bad.csv", 4 if "3F0" in text else 2, 1)
