"""Schedules of others: grammars, what is wrong and where, and round trips through every format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from handmade import toy_instance, toy_plan
from octocp.costs import build_problem
from octocp.errors import InputError
from octocp.heuristics.one_f_one_b import one_f_one_b
from octocp.importers import Imported, read_schedule
from octocp.importers.simpipe import read_simpipe
from octocp.importers.torch_csv import read_torch_csv
from octocp.problem import B, F, W
from octocp.report.export import torch_csv
from octocp.report.export.runtime import runtime_files
from octocp.report.export.timeline import first_stage_apart, timeline
from octocp.runtimes import megatron
from octocp.runtimes.layers import layers_of
from octocp.runtimes.text import recognise
from octocp.schedule import Layout, Op
from octocp.schema.files import load_plan, write_plan
from octocp.timing import time_orders
from runtime_plans import blocks, complaint, hybrid, plan_of, random_plans
from terminal import octocp, refused

# ---- SimPipe ---------------------------------------------------------------------------------

TITAN = """
[parallelism]
module_fqns_per_model_part = [["tok_embeddings"], ["layers.0", "norm", "output"]]
"""
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
    assert recognise(TITAN, "x") == recognise("", "x.toml") == "torchtitan"
    assert recognise("0F0;0B0\n", "x.csv") == recognise("oops\n1F0\n", "x.csv") == "torch-csv"
    assert recognise("Ex|tL\n", "layout.txt") == "megatron"
    assert "is in no format" in complaint(recognise, "hello world", "x.txt")
    assert "TorchTitan's TOML" in complaint(recognise, '{"a": 1}', "x.json")
    for text in ("# mine\nformat: octocp.instance/1\nname: x\n", '{"name": "x", "format": "octocp.instance/1"}'):
        assert complaint(recognise, text, "x.yaml") == "is an OctoCP instance, not a schedule"
    assert recognise('{"instance": {"format": "octocp.instance/1"}, "format": "octocp.plan/1"}') == "plan"


@pytest.mark.parametrize(
    ("text", "file", "said"),
    [
        (
            "a,b\n1,2\n",
            "x.csv",
            "is no PyTorch pipelining CSV: its first cell is 'a' (a row for each rank, of cells such as",
        ),
        (
            "device,stage,microbatch,kind,start\n",
            "x.csv",
            "is OctoCP's table of ops, for spreadsheets (octocp export PLAN",
        ),
        (
            '{"traceEvents": []}',
            "x.json",
            "is a Chrome trace: what ran when, and no schedule to read (the CSV of the run;",
        ),
        ('[{"ph": "X", "name": "PP:0F0"}]', "x.json", "is a Chrome trace"),
        ("", "x.csv", "is empty (a plan, a PyTorch pipelining CSV, a Megatron layout"),
        ("\n\n", "x.csv", "is empty (a plan, a PyTorch pipelining CSV, a Megatron layout"),
        ("\0", "x.csv", "is not text: it holds NUL bytes (a plan, a PyTorch pipelining CSV"),
    ],
)
def test_what_is_no_schedule_has_a_hint_that_helps(text: str, file: str, said: str, tmp_path: Path) -> None:
    """Not on instances, which is what the reader of text files is mostly for."""
    (tmp_path / file).write_text(text)
    problem = build_problem(blocks(1, 2, 2))
    for message in (
        complaint(read_schedule, problem, tmp_path / file),
        refused("check", "--runtime", tmp_path / file).removeprefix("octocp: "),
    ):
        assert message.startswith(f"{tmp_path / file}: {said}")
        assert "octocp new" not in message


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


# ---- the command -----------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(toy_instance().model_dump_json())
    return tmp_path


def test_an_import_keeps_away_from_what_solve_wrote(folder: Path) -> None:
    """The plan of mine.yaml is mine.plan.json, and files of several formats have one each."""
    plan = toy_plan()
    write_plan(plan, "mine.plan.json")
    before = Path("mine.plan.json").read_bytes()
    for form in ("torch-csv", "simpipe"):
        assert octocp("export", "mine.plan.json", "--to", form).code == 0
    Path("mine.csv").write_bytes(Path("mine.torch.csv").read_bytes())
    for file in ("mine.torch.csv@3,3", "mine.simpipe.yaml", "mine.csv@3,3", "mine.plan.json"):
        ran = octocp("import", file, "mine.yaml")
        assert ran.code == 0, ran
        name = file.partition("@")[0].removesuffix(".json").removesuffix(".plan").removesuffix(".csv")
        written = f"{name.removesuffix('.yaml')}.imported.plan.json"
        assert ran.err.splitlines()[-1] == f"Written to {written}."
        assert load_plan(written).solve.found_by == f"imported from {file.partition('@')[0]}"
    assert len(list(folder.glob("*.imported.plan.json"))) == 3
    assert Path("mine.plan.json").read_bytes() == before
    assert "is the input itself" in refused("import", "mine.plan.json", "mine.yaml", "-o", "mine.plan.json")


def test_an_import_says_how_good_it_can_be(folder: Path) -> None:
    write_plan(toy_plan(), "mine.plan.json")
    ran = octocp("import", "mine.plan.json", "mine.yaml", "-o", "out.plan.json")
    plan = load_plan("out.plan.json")
    best = json.loads(octocp("bound", "mine.yaml", "--json").out)[0]
    assert (plan.lower_bound, plan.solve.bound_name) == (best["value"], best["name"])
    assert plan.lower_bound < plan.makespan
    assert f"makespan {plan.makespan:.6g} ms ({plan.makespan} ticks), lower bound {best['value_ms']:.6g} ms" in ran.out
    assert ran.err.splitlines()[0] == (
        f"note: the lower bound ({best['name']}) holds for every plan of the instance: the best one is at most "
        f"{100 * plan.gap:.1f} % shorter; octocp solve mine.yaml looks for it"
    )
    # Where the bound is reached, there is nothing to look for.
    alone = toy_instance(cluster__devices=1)
    Path("alone.yaml").write_text(alone.model_dump_json())
    write_plan(toy_plan(alone, (6,), (0,)), "alone.plan.json")
    ran = octocp("import", "alone.plan.json", "alone.yaml", "-o", "out.plan.json")
    assert ran.err.splitlines()[0] == "note: no plan of this instance has a smaller makespan"
    assert load_plan("out.plan.json").status == "optimal"


def test_names_that_no_file_can_have_are_refused(folder: Path) -> None:
    for name in ("a" * 300, "a" * 300 + "@1,2", "a\0b"):
        assert "no such file" in refused("import", name, "mine.yaml")
