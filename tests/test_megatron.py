"""Megatron: layouts and patterns read and printed, its order, arguments written and read back."""

from __future__ import annotations

import json
import random
import re
from itertools import accumulate
from pathlib import Path

import pytest

from handmade import toy_instance, toy_plan
from octocp.costs import build_problem
from octocp.errors import InputError
from octocp.heuristics.interleaved import interleaved, legal_groups
from octocp.heuristics.one_f_one_b import one_f_one_b
from octocp.heuristics.serial import serial
from octocp.importers import read_schedule
from octocp.importers.megatron import read_megatron
from octocp.problem import F, W
from octocp.report.export.runtime import runtime_files
from octocp.runtimes import megatron_order
from octocp.runtimes.megatron import (
    Arguments,
    check_layout,
    parse_arguments,
    parse_hybrid,
    parse_layout,
    parse_list,
    print_hybrid,
    print_layout,
    print_list,
)
from octocp.runtimes.text import recognise
from octocp.schedule import Layout
from octocp.timing import time_orders
from runtime_plans import VEE, blocks, complaint, hybrid, megatron_plan, plan_of, text_of

# ---- Megatron's layout string ----------------------------------------------------------------

# Layouts of production recipes: ranks, chunks, decoder layers, layers for prediction, decoder layers by stage.
RECIPES = {
    "Et*4|(tttt|)*14tmL": (4, 4, 61, 1, [4] * 15 + [1]),
    "Et*3|(tt|)*29,m|L": (16, 2, 61, 1, [3, *[2] * 29, 0, 0]),
    "Et|(tt|)*30L": (16, 2, 61, 0, [1, *[2] * 30, 0]),
    "Et*2|(t*2|)*34,t*3|(t*2|)*3,tL": (8, 5, 80, 0, [*[2] * 35, 3, 2, 2, 2, 1]),
    "Et*4|(t*7|)*5t*8|tmL": (2, 4, 48, 1, [4, *[7] * 5, 8, 1]),
    "Et*7|t*7|t*7|t*6L": (2, 2, 27, 0, [7, 7, 7, 6]),
    "Et|(t*7|)*6t*3L": (8, 1, 46, 0, [1, *[7] * 6, 3]),
}


@pytest.mark.parametrize("text", RECIPES)
def test_layouts_of_recipes(text: str) -> None:
    ranks, chunks, decoders, mtp, by_stage = RECIPES[text]
    stages, places = parse_layout(text)
    check_layout(Arguments(stages, False, 0, places), ranks)
    assert len(stages) == ranks * chunks
    assert [stage.count("t") for stage in stages] == by_stage
    assert sum(by_stage) == decoders
    printed = print_layout(stages)
    assert parse_layout(printed)[0] == stages
    assert print_layout(parse_layout(printed)[0]) == printed
    assert parse_list(print_list(stages))[0] == stages

    instance = blocks(decoders, ranks, 2 * ranks, mtp=mtp)
    parsed = read_megatron(build_problem(instance), text, instance)
    wanted = [len(stage) for stage in stages if stage]
    assert list(parsed.layout.partition) == wanted
    assert parsed.layout.placement == tuple(k % ranks for k, stage in enumerate(stages) if stage)
    assert parsed.notes == ()
    # Without names, the letters tell what the layers are.
    assert read_megatron(build_problem(instance), text).layout == parsed.layout


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("E||t|L", ["E", "", "t", "L"]),
        ("E|*3tL", ["E", "", "", "tL"]),
        ("E(t|t)*2L", ["Et", "tt", "tL"]),
        ("E(|t)*2,L", ["E", "t", "tL"]),
        ("E,t,,t|,L,", ["Ett", "L"]),
        ("Et*1,2L", ["E" + "t" * 12 + "L"]),  # commas go first
        ("Et*0|t*2L", ["E", "ttL"]),
        ("E(t)*0(tt)*2*3L", ["E" + "t" * 6 + "L"]),
        ("E(|)*2L", ["E", "", "L"]),
        ("Et*00000002|t*0L", ["Ett", "L"]),
        (f"E(t|)*{'0' * 30}2L", ["Et", "t", "L"]),
        (f"Et*{'0' * 5000}|L", ["E", "L"]),
    ],
)
def test_layout_corners(text: str, stages: list[str]) -> None:
    assert list(parse_layout(text)[0]) == stages
    assert list(parse_layout(print_layout(stages))[0]) == stages


def test_random_layouts_are_printed_and_read_back() -> None:
    """Empty stages, long runs and equal stages in a row: one form, with the same stages."""
    short = 0
    for seed in range(500):
        draw = random.Random(seed)
        middle: list[str] = []
        while len(middle) < draw.randint(0, 9):
            middle += ["t" * draw.choice([0, 0, 1, 2, 3, 12])] * draw.choice([1, 1, 2, 5])
        last = "t" * draw.randint(0, 4) + "m" * draw.choice([0, 0, 1, 3]) + "L"
        stages = ("E" + "t" * draw.randint(0, 4), *middle, last)
        text = print_layout(stages)
        assert parse_layout(text)[0] == parse_list(print_list(stages))[0] == stages
        assert recognise(text, "layout.txt") == "megatron"
        # A comma anywhere means nothing.
        at = draw.randint(0, len(text))
        assert parse_layout(text[:at] + "," + text[at:])[0] == stages
        short += "(" in text
    assert short > 100


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Et |tL", "character 3: ' ' is a blank"),
        ("E|t * 2|L", "character 4: ' ' is a blank"),
        ("E(t|(t|)*2)*2L", r"character 5: '\(' is no part of a group"),
        ("E(t|)*L", r"character 2: '\(' is no part of a group"),
        ("Et)L", r"character 3: '\)' is no part of a group"),
        ("E*", r"character 2: '\*' repeats nothing"),
        ("Et|((t)*2|)*3L", r"character 5: '\(' is no part of a group"),
        ("Et|(tt|)L", r"character 4: '\(' is no part of a group"),
        ("Et|()*3tL", r"character 4: '\(' is no part of a group"),
        ("Et*2*3L", r"character 5: '\*' repeats nothing"),
        ("Et2L", "character 3: '2' repeats nothing"),
        ("Ex|tL", "character 2: 'x' is no layer; the letters are E"),
        ("E" + "t*99999999", "unrolls to more than"),
        ("E(t*9999|)*9999L", "unrolls to more than"),
    ],
)
def test_layouts_that_are_none_name_the_character(text: str, said: str) -> None:
    assert re.search(said, complaint(parse_layout, text))


@pytest.mark.parametrize(
    ("text", "ranks", "said"),
    [
        ("tE|tL", 2, "character 1: 't' comes first; the embedding E must"),
        ("Et|t", 2, "character 4: 't' comes last; the loss L must"),
        ("Et|EtL", 2, "character 4: a second embedding E"),
        ("EtL|tL", 2, "character 3: a loss L before the end"),
        ("Et|mtL", 2, "character 5: a decoder layer t after m"),
        ("Et|t|m|mL", 2, "character 8: m in a second stage; all are in one, stage 2"),
        ("Et|m||L", 2, "character 4: m in stage 1, which is not the last chunk of rank 1"),
        ("Et|t|tL", 2, "has 3 stages on 2 ranks"),
        ("|", 2, "has no layer"),
    ],
)
def test_what_megatron_refuses(text: str, ranks: int, said: str) -> None:
    stages, places = parse_layout(text)
    assert said in complaint(check_layout, Arguments(stages, False, 0, places), ranks)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[["embedding"], ["decoder", "oops"]]', "[1][1]: 'oops' is no layer"),
        ('[["embedding"], "decoder"]', "[1]: is no list"),
        ('[["embedding"', "line 1, column 14"),
        ("[]", "has no stage"),
        ("[" * 100_000, "nested too deep"),
    ],
)
def test_lists_that_are_none(text: str, said: str) -> None:
    assert said in complaint(parse_list, text)


def test_arguments_are_read_from_a_command_line() -> None:
    text = (
        "# a comment with --pipeline-model-parallel-size 7\n"
        "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et|(t|)*6,L' \\\n"
        "--microbatch-group-size-per-virtual-pipeline-stage=8\n"
    )
    read = parse_arguments(text)
    assert (read.ranks, read.group, len(read.stages), read.hybrid) == (4, 8, 8, False)
    assert parse_arguments("--hybrid-layer-pattern M--*|M-\n").stages == ("M--*", "M-")
    assert parse_arguments('"Et|tL"').stages == ("Et", "tL")
    assert parse_arguments("[['embedding'], ['decoder', ' Loss ']]").stages == ("E", "tL")
    assert "is no number" in complaint(parse_arguments, "--pipeline-model-parallel-size x --hybrid-layer-pattern M|M")
    assert "has no --pipeline-model-parallel-layout" in complaint(parse_arguments, "--pipeline-model-parallel-size 4")
    # A wrong letter makes neither a pattern of a layout nor the other way round.
    assert "character 2: 'x' is no layer; the letters are E" in complaint(parse_arguments, "Ex|tL")
    assert "character 3: 't' is no layer of a hybrid model" in complaint(parse_arguments, "M-t|M*")
    for bare in ("--hybrid-layer-pattern", "--hybrid-layer-pattern=", "--pipeline-model-parallel-layout \n"):
        assert bare.rstrip(" =\n") + ": has no value" in complaint(parse_arguments, bare)


def test_hybrid_patterns() -> None:
    assert parse_hybrid("M-M|*-E/M/M") == (("M-M", "*-E"), tuple(map(tuple, _places("M-M|*-E"))), 2)
    assert print_hybrid(("M-M", "*-E")) == "M-M|*-E"
    assert "character 3: 'x' is no layer" in complaint(parse_hybrid, "M-x|M")
    assert "character 5: differs from the first depth" in complaint(parse_hybrid, "M/M/-")
    assert "character 4: ' ' is no layer" in complaint(parse_hybrid, "M|- M")
    for nothing in ('--hybrid-layer-pattern ""', "--hybrid-layer-pattern |", "--hybrid-layer-pattern /M"):
        assert "the pattern has no layer" in complaint(check_layout, parse_arguments(nothing), 1)

    instance = hybrid("EM-M*-#L", 2)
    problem = build_problem(instance)
    parsed = read_megatron(problem, "M-M|*-E", instance)
    assert parsed.layout == Layout((0, 4, 8), (0, 1))
    assert "character 5: 'M' is mamba; layer 4 of the instance is attention" in complaint(
        read_megatron, problem, "M-M|M-E", instance
    )
    assert "has 5 layers" in complaint(read_megatron, problem, "M-M|*-", instance)


def _places(text: str) -> list[list[str]]:
    found: list[list[str]] = [[]]
    for index, character in enumerate(text):
        if character == "|":
            found.append([])
        else:
            found[-1].append(f"character {index + 1}")
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_megatrons_order_is_that_of_the_heuristics(ranks: int, chunks: int) -> None:
    for microbatches in range(1, 11):
        instance = blocks(ranks * chunks, ranks, microbatches)
        problem = build_problem(instance)
        stages = ranks * chunks
        layout = Layout((*range(stages), problem.n_layers), tuple(s % ranks for s in range(stages)))
        if chunks == 1:
            groups, wanted = [ranks], [one_f_one_b(problem, layout)]
        else:
            groups = legal_groups(ranks, microbatches)
            assert groups == megatron_order.group_sizes(ranks, chunks, microbatches)
            wanted = [interleaved(problem, layout, group) for group in groups]
        for group, orders in zip(groups, wanted, strict=True):
            steps = megatron_order.orders(ranks, chunks, microbatches, group)
            without_w = [[("FB"[op.kind], op.stage, op.microbatch) for op in row if op.kind != W] for row in orders]
            assert steps == without_w


def test_an_empty_stage_is_dropped_with_a_note() -> None:
    instance = blocks(4, 2, 4)
    parsed = read_megatron(build_problem(instance), "Ett||t|tL", instance)
    assert parsed.layout == Layout((0, 3, 4, 6), (0, 0, 1))
    assert parsed.notes == ("stage 1 without layers dropped: in Megatron, what passes through takes one transfer more",)
    # The order is Megatron's over all four stages.
    steps = megatron_order.orders(2, 2, 4, 2)
    assert [op.stage for op in parsed.orders[1] if op.kind == F] == [2] * 4
    assert len(parsed.orders[1]) == 3 * sum(kind == "F" and stage == 3 for kind, stage, _ in steps[1])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Ett|tttL", "character 7: has 5 decoder layers (t); the instance has 4"),
        ("Et|ttL", "has 3 decoder layers (t); the instance has 4"),
        ("Ettm|ttL", "decoder layer t after m"),
        ("--pipeline-model-parallel-size 4\n--pipeline-model-parallel-layout Et|t|t|tL", "is 4; there are 2 devices"),
        (
            "--pipeline-model-parallel-layout Et|t|t|tL --microbatch-group-size-per-virtual-pipeline-stage 3",
            "leaves 1 of 4 microbatches over",
        ),
        (
            "--pipeline-model-parallel-layout Et|t|t|tL --microbatch-group-size-per-virtual-pipeline-stage 5",
            "is 5, with 2 ranks and 4 microbatches (2 to 4)",
        ),
        (
            "--pipeline-model-parallel-layout Et|t|t|tL --microbatch-group-size-per-vp-stage 3",
            "--microbatch-group-size-per-virtual-pipeline-stage: is 3, which leaves 1 of 4 microbatches over (none or "
            "at least 2 left over, e.g. 4)",
        ),
    ],
)
def test_layouts_that_do_not_fit(text: str, said: str) -> None:
    instance = blocks(4, 2, 4)
    assert said in complaint(read_megatron, build_problem(instance), text, instance)


def test_rules_of_the_instance_hold_for_what_is_read() -> None:
    instance = blocks(4, 2, 4, partition=[2, 4])
    assert "layout: does not fit the instance: the instance fixes another partition" in complaint(
        read_megatron, build_problem(instance), "Ett|ttL", instance
    )


@pytest.mark.parametrize(("ranks", "chunks", "group"), [(2, 1, 2), (2, 2, 2), (2, 2, 4), (3, 2, 3), (2, 3, 4)])
def test_round_trip_through_megatron(ranks: int, chunks: int, group: int, tmp_path: Path) -> None:
    stages = ranks * chunks
    instance = blocks(2 * stages, ranks, 4 * ranks)
    problem = build_problem(instance)
    partition = (2, *[2] * (stages - 2), 4) if stages > 2 else (3, 3)
    partition = (*partition[:-1], problem.n_layers - sum(partition[:-1]))
    placement = tuple(s % ranks for s in range(stages))
    layout = Layout((0, *(sum(partition[: s + 1]) for s in range(stages))), placement)
    orders = one_f_one_b(problem, layout) if chunks == 1 else interleaved(problem, layout, group)
    plan = plan_of(instance, partition, placement, orders, fused=True)
    file = tmp_path / "plan.megatron.txt"
    made = runtime_files(plan, "megatron", file)
    assert made.notes == ()
    file.write_bytes(made.files[file])
    read = read_schedule(problem, file, instance=instance)
    assert read.schedule.layout == layout
    assert (read.schedule.start == time_orders(problem, layout, orders, fused=True).start).all()
    assert read.schedule.makespan == plan.makespan
    assert read.name == "plan"


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


@pytest.mark.parametrize(
    ("ranks", "chunks", "microbatches", "group"),
    [(2, 2, 4, 2), (4, 2, 5, 5), (4, 2, 4, 4), (3, 2, 7, 4), (4, 1, 2, None), (4, 2, 3, None)],
)
def test_what_layout_only_writes_is_read_back(
    ranks: int, chunks: int, microbatches: int, group: int | None, tmp_path: Path
) -> None:
    """The group size is one that Megatron takes for these microbatches, or nothing is written."""
    stages = ranks * chunks
    instance = blocks(stages, ranks, microbatches)
    partition = (2, *[1] * (stages - 2), 2)
    placement = tuple(stage % ranks for stage in range(stages))
    layout = Layout((0, *accumulate(partition)), placement)
    plan = plan_of(instance, partition, placement, serial(build_problem(instance), layout))
    file = tmp_path / "plan.megatron.txt"
    if microbatches < ranks and chunks > 1:
        said = complaint(lambda: runtime_files(plan, "megatron", file, layout_only=True))
        assert said == (
            f"Megatron interleaves only with as many microbatches as ranks or more, not {microbatches} on {ranks} "
            f"(at least {ranks} microbatches, or one stage on every rank)"
        )
        text = "--pipeline-model-parallel-layout Et|t|t|t|t|t|t|tL"
        assert said in complaint(read_megatron, build_problem(instance), text, instance)
        return
    text = text_of(plan, "megatron", layout_only=True)
    assert parse_arguments(text).group == group
    file.write_text(text)
    assert read_schedule(build_problem(instance), file, instance=instance).schedule.layout == layout


def test_megatrons_default_group_is_named_as_such() -> None:
    instance = blocks(8, 4, 5)
    said = complaint(read_megatron, build_problem(instance), "Et|t|t|t|t|t|t|tL", instance)
    assert "is 4 by default, which leaves 1 of 5 microbatches over (none or at least 4 left over, e.g. 5)" in said
