"""Schedules of others: grammars, what is wrong and where, and round trips through every format."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from handmade import toy_instance, toy_plan
from octocp.costs import build_problem
from octocp.errors import InputError
from octocp.heuristics.interleaved import interleaved, legal_groups
from octocp.heuristics.one_f_one_b import one_f_one_b
from octocp.importers import Imported, read_schedule
from octocp.importers.megatron import read_megatron
from octocp.importers.simpipe import read_simpipe
from octocp.importers.torch_csv import read_torch_csv
from octocp.problem import B, F, W
from octocp.report.export import torch_csv
from octocp.report.export.runtime import runtime_files
from octocp.report.export.timeline import first_stage_apart, timeline
from octocp.runtimes import megatron, megatron_order
from octocp.runtimes.layers import layers_of
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
from octocp.schedule import Layout, Op
from octocp.schema import Instance
from octocp.schema.files import write_plan
from octocp.timing import time_orders
from runtime_plans import plan_of, random_plans


def blocks(count: int, devices: int, microbatches: int, *, mtp: int = 0, **stages: Any) -> Instance:
    """An instance with an embedding, equal blocks, layers for prediction, and a head."""
    times = {"forward_ms": 1, "backward_input_ms": 1, "backward_weight_ms": 1}
    return Instance.model_validate(
        {
            "format": "octocp.instance/1",
            "name": "blocks",
            "model": {
                "name": "blocks",
                "layers": "E" + "T" * count + "m" * mtp + "L",
                "kinds": {
                    "E": {"name": "embedding", **times},
                    "T": {"name": "transformer", **times},
                    "m": {"name": "mtp", **times},
                    "L": {"name": "head", **times},
                },
            },
            "cluster": {"devices": devices},
            "microbatches": microbatches,
            "stages": {"max_per_device": None, **stages},
            "tick_us": 1000,
        }
    )


def hybrid(symbols: str, devices: int, microbatches: int = 4) -> Instance:
    names = {"E": "embedding", "M": "mamba", "*": "attention", "-": "mlp", "#": "moe", "L": "head"}
    kinds = {key: {"name": name, "forward_ms": 1, "backward_input_ms": 1} for key, name in names.items()}
    return Instance.model_validate(
        {
            "format": "octocp.instance/1",
            "name": "hybrid",
            "model": {"name": "hybrid", "layers": list(symbols), "kinds": kinds},
            "cluster": {"devices": devices},
            "microbatches": microbatches,
            "tick_us": 1000,
        }
    )


def complaint(read: Any, *arguments: Any) -> str:
    with pytest.raises(InputError) as caught:
        read(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


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
    ],
)
def test_layout_corners(text: str, stages: list[str]) -> None:
    assert list(parse_layout(text)[0]) == stages
    assert list(parse_layout(print_layout(stages))[0]) == stages


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Et |tL", "character 3: ' ' is a blank"),
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


# ---- SimPipe ---------------------------------------------------------------------------------

SIMPIPE = """
profiled_data: true
model: {name: x}
parallel:
  pp_size: 2
  micro_batch_num: 4
  bwd_split: true
schedule: octopipe
partition_layers: [1, 1, 1, 1]
placement:
  - [0, 3]
  - [1, 2]
"""


def test_simpipe_configuration() -> None:
    instance = blocks(4, 2, 4)
    problem = build_problem(instance)
    parsed = read_simpipe(problem, SIMPIPE, instance)
    assert parsed.layout == Layout((0, 2, 3, 4, 6), (0, 1, 1, 0))
    assert parsed.notes == ("SimPipe's dispatcher (octopipe) made the order: the file has none",)
    assert read_simpipe(problem, SIMPIPE).layout == parsed.layout
    time_orders(problem, parsed.layout, parsed.orders)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[1, 1, 1, 1]", "[1, 1, 1, 2]", "line 9: partition_layers: sums to 5 layers; the instance has 4 between"),
        ("[1, 1, 1, 1]", "[1, 1, x, 1]", "line 9: partition_layers[2]: 'x' is no number of layers"),
        ("[1, 1, 1, 1]", "[2, 0, 1, 1]", "line 9: partition_layers: stage 1 has no layer"),
        ("partition_layers: [1, 1, 1, 1]", "", "partition: missing (layers per stage"),
        ("[0, 3]", "[0, 4]", "line 11: placement[0][1]: 4 is no stage (0 to 3)"),
        ("[0, 3]", "[0, 2]", "line 12: placement[1][1]: stage 2 is on device 0 already"),
        ("[0, 3]", "[0]", "line 10: placement: stage 3 is on no device"),
        ("  - [0, 3]\n", "", "line 10: placement: has 1 devices; the instance has 2"),
        ("pp_size: 2", "pp_size: 3", "line 5: parallel.pp_size: is 3; the instance has 2 devices"),
        ("micro_batch_num: 4", "micro_batch_num: 8", "line 6: parallel.micro_batch_num: is 8; the instance has 4"),
        ("octopipe", "magic", "line 8: schedule: 'magic' is no schedule known here (octopipe, 1f1b"),
        ("octopipe", "1f1b", "line 10: placement: 1f1b needs another placement"),
        ("bwd_split: true", "bwd_split: false", "line 7: parallel.bwd_split: the instance splits the backward"),
    ],
)
def test_simpipe_errors_name_the_key(old: str, new: str, said: str) -> None:
    instance = blocks(4, 2, 4)
    assert old in SIMPIPE
    message = complaint(read_simpipe, build_problem(instance), SIMPIPE.replace(old, new), instance)
    if old != "octopipe" or new != "1f1b":
        assert said in message
    else:
        assert "1f1b" in message


def test_simpipe_result_has_an_order() -> None:
    instance = blocks(4, 2, 2)
    problem = build_problem(instance)
    layout = Layout((0, 3, 6), (0, 1))
    schedule = time_orders(problem, layout, one_f_one_b(problem, layout))
    rows = [
        f"- ({'fbw'[op.kind]}, {op.microbatch}, {op.stage}, {device}, {schedule.start[op]}, {schedule.end[op]})"
        for device, order in enumerate(schedule.orders())
        for op in order
    ]
    text = "schedule: 1f1b\npartition: [2, 2]\nplacement: [[0], [1]]\nscheduling:\n" + "\n".join(rows) + "\n"
    parsed = read_simpipe(problem, text, instance)
    assert [list(order) for order in parsed.orders] == schedule.orders()
    assert "scheduling[1]: is there already" in complaint(
        read_simpipe, problem, text.replace(rows[1], rows[0]), instance
    )
    assert "has 11 ops; 12 are needed" in complaint(read_simpipe, problem, text.replace(rows[1] + "\n", ""), instance)
    assert "is no op" in complaint(read_simpipe, problem, text.replace(rows[1], "- (q, 1)"), instance)


# ---- PyTorch's CSV ---------------------------------------------------------------------------

MIXED = "0F0,0F1,2F0,2I0,2F1,2B1,0B0,2W0,0B1\n,1F0,1F1,,1I0,1W0,1B1\n"


def test_torch_csv_with_whole_and_split_backwards() -> None:
    instance = blocks(1, 2, 2)
    problem = build_problem(instance)
    parsed = read_torch_csv(problem, MIXED)
    assert parsed.layout == Layout((0, 1, 2, 3), (0, 1, 0))
    assert parsed.fused == {(2, 1), (0, 0), (0, 1), (1, 1)}
    (note,) = parsed.notes
    assert note.startswith("the file has no partition: [")
    schedule = time_orders(problem, parsed.layout, parsed.orders, fused=parsed.fused)
    # 2B1 hands its gradient on when it has ended: at once with its W, which 2I0 does not wait for.
    assert schedule.start[B, 1, 1] >= schedule.end[W, 2, 1]
    assert schedule.start[B, 1, 0] == schedule.end[B, 2, 0]


def test_torch_csv_stage_0_in_halves_runs_at_w() -> None:
    instance = blocks(0, 2, 2)
    problem = build_problem(instance)
    parsed = read_torch_csv(problem, "0F0,0F1,0I0,0I1,0W0,0W1\n1F0,1B0,1F1,1B1\n")
    assert parsed.orders[0] == [Op(F, 0, 0), Op(F, 0, 1), Op(B, 0, 0), Op(W, 0, 0), Op(B, 0, 1), Op(W, 0, 1)]
    assert "stage 0's backwards run where their W is" in parsed.notes[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0F0,0B0\n1F0,1B0\n2F0,2B0\n", "has 3 rows, one for each rank; the instance has 2 devices"),
        ("0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n", "row 1 (rank 0), column 3 (0F2): the instance has 2"),
        ("0F0,0B0\n1F0,1B0\n", "has 1 microbatches; the instance has 2"),
        ("0F0,0F1,0B0\n1F0,1F1,1B0,1B1\n", "row 1 (rank 0): 0B1 (or 0I1 and 0W1) is missing"),
        ("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,oops\n", "row 2 (rank 1), column 4: 'oops' is no action"),
    ],
)
def test_torch_csv_errors_name_the_cell(text: str, said: str) -> None:
    assert said in complaint(read_torch_csv, build_problem(blocks(1, 2, 2)), text)


def test_torch_csv_of_a_split_backward_needs_a_split_instance() -> None:
    fused = toy_instance(training__split_backward=False)
    text = torch_csv.export(toy_plan()).decode()
    assert "the instance does not split the backward (B, or split_backward: true)" in complaint(
        read_torch_csv, build_problem(fused), text
    )


# ---- round trips -----------------------------------------------------------------------------


def _as_pytorch_runs_it(order: list[Op]) -> list[Op]:
    """Move every B of stage 0 to its W, where PyTorch runs it."""
    kept = [op for op in order if not (op.stage == 0 and op.kind == B and Op(W, 0, op.microbatch) in order)]
    made = []
    for op in kept:
        if op.stage == 0 and op.kind == W:
            made.append(Op(B, 0, op.microbatch))
        made.append(op)
    return made


@pytest.mark.parametrize("form", ["torch-csv", "torch-csv-comms"])
def test_round_trip_through_pytorch(form: str, tmp_path: Path) -> None:
    count = exact = 0
    for _, problem, plan in random_plans(range(120)):
        (text,) = runtime_files(plan, form, tmp_path / "x.csv").files.values()
        parsed = read_torch_csv(problem, text.decode(), plan.partition)
        schedule = time_orders(problem, parsed.layout, parsed.orders, fused=parsed.fused)
        assert (list(parsed.layout.partition), list(parsed.layout.placement)) == (plan.partition, plan.placement)
        if not first_stage_apart(timeline(plan)):
            assert schedule.makespan <= plan.makespan
            exact += 1
        names = {m: n for n, m in enumerate(op.microbatch for op in _of_last_stage(plan))}
        wanted = []
        for device in range(problem.n_devices):
            mine = sorted(
                (op for op in plan.ops if op.device == device),
                key=lambda op: torch_csv.sort_key(len(plan.placement) - 1, op),
            )
            wanted.append(
                _as_pytorch_runs_it([Op("FBW".index(op.kind), op.stage, names[op.microbatch]) for op in mine])
            )
        assert [list(order) for order in parsed.orders] == wanted
        count += 1
    assert count > 60
    assert exact > 20


def _of_last_stage(plan):
    last = len(plan.placement) - 1
    return sorted(
        (op for op in plan.ops if (op.kind, op.stage) == ("F", last)), key=lambda op: (op.start, op.end, op.microbatch)
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


def test_round_trip_through_simpipe(tmp_path: Path) -> None:
    instance = blocks(6, 2, 4)
    plan = plan_of(instance, (2, 1, 2, 3), (0, 1, 1, 0), _dispatched(instance, (2, 1, 2, 3), (0, 1, 1, 0)))
    file = tmp_path / "plan.yaml"
    file.write_bytes(runtime_files(plan, "simpipe", file).files[file])
    read = read_schedule(build_problem(instance), file, instance=instance)
    assert list(read.schedule.layout.partition) == plan.partition
    assert list(read.schedule.layout.placement) == plan.placement
    assert read.schedule.makespan == plan.makespan


def _dispatched(instance, partition, placement):
    from octocp.heuristics.dispatch import Tables, dispatch
    from octocp.heuristics.octopipe.rule import OCTOPIPE_RULE

    layout = Layout((0, *(sum(partition[: s + 1]) for s in range(len(partition)))), placement)
    made = dispatch(Tables(build_problem(instance), layout, admission=False), OCTOPIPE_RULE)
    assert made is not None
    return made.orders


def test_round_trip_through_a_plan(tmp_path: Path) -> None:
    for _, problem, plan in random_plans(range(40)):
        file = tmp_path / "some.plan.json"
        write_plan(plan, file)
        read = read_schedule(problem, file)
        assert read.name == "random"
        assert list(read.schedule.layout.partition) == plan.partition
        assert read.schedule.makespan <= plan.makespan
    other = build_problem(toy_instance(microbatches=5))
    write_plan(toy_plan(), tmp_path / "toy.json")
    assert "instance: has 4 microbatches; the instance has 5" in complaint(read_schedule, other, tmp_path / "toy.json")


def test_formats_are_told_from_the_text() -> None:
    for text, file, form in (
        (MIXED, "x.txt", "torch-csv"),
        (",,0F0\n", "x", "torch-csv"),
        ("(0F1;1B0)OVERLAP_F_B\n", "x", "torch-csv"),
        ("Et|tL\n", "layout", "megatron"),
        ("# note\nM-M|*-E\n", "pattern.txt", "megatron"),
        ("--pipeline-model-parallel-layout Et|tL", "a.sh", "megatron"),
        ('[["embedding"]]', "x.json", "megatron"),
        (SIMPIPE, "x", "simpipe"),
        ('{"format": "octocp.plan/1"}', "x.json", "plan"),
    ):
        assert recognise(text, file) == form, text
    assert "is in no format" in complaint(recognise, "hello world", "x.txt")
    for text in ("# mine\nformat: octocp.instance/1\nname: x\n", '{"name": "x", "format": "octocp.instance/1"}'):
        assert complaint(recognise, text, "x.yaml") == "is an OctoCP instance, not a schedule"
    assert recognise('{"instance": {"format": "octocp.instance/1"}, "format": "octocp.plan/1"}') == "plan"


def test_read_schedule_names_the_file(tmp_path: Path) -> None:
    problem = build_problem(blocks(1, 2, 2))
    file = tmp_path / "mine.csv"
    file.write_text(MIXED)
    read = read_schedule(problem, str(file))
    assert isinstance(read, Imported)
    assert (read.name, read.schedule.layout.placement) == ("mine", (0, 1, 0))
    file.write_text(MIXED.replace("2W0,", ""))
    assert complaint(read_schedule, problem, file).startswith(f"{file}: row 1 (rank 0), column 4 (2I0): has no 2W0")
    assert "no such file" in complaint(read_schedule, problem, tmp_path / "none.csv")


def test_roles_of_layers() -> None:
    model = blocks(3, 2, 2, mtp=1).model
    layers = layers_of(model)
    assert [layers.role(i) for i in range(6)] == ["embedding", "decoder", "decoder", "decoder", "mtp", "loss"]
    assert (layers.blocks, layers.hybrid) == (3, False)
    assert layers_of(hybrid("EM-*L", 2).model).hybrid


def test_numbers_of_any_length_and_endless_strings_are_refused_at_once():
    with pytest.raises(InputError, match="is no l"):
        megatron.parse_list("[[" + "9" * 5000 + "]]")
    with pytest.raises(InputError, match="is no list"):
        megatron.parse_list("[" + "9" * 5000 + "]")
    with pytest.raises(InputError, match="4000000 characters"):
        megatron.parse_layout("(t" * 2_000_000)
