"""Changes by hand: what each does, the reason why others cannot be made, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tiny
from octocp.analysis import IllegalMoveError, try_move
from octocp.analysis.moves import MoveCut, MoveLayers, MoveOp, MoveStage, SwapStages, parse
from octocp.api import compare, load_instance, load_plan, save_plan
from octocp.checker import check_plan
from octocp.schedule import Op
from octocp.schema import Plan
from terminal import octocp, refused
from test_explain import plan_of

# ---- the grammar -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "move"),
    [
        ("layer 3->2", MoveLayers(1, 3, 2)),
        ("Layer 3 to 2", MoveLayers(1, 3, 2)),
        ("2 layers 3 -> 0", MoveLayers(2, 3, 0)),
        ("1 layer from stage 3 to stage 2", MoveLayers(1, 3, 2)),
        ("cut 3 -1", MoveCut(3, -1)),
        ("cut 3 +12", MoveCut(3, 12)),
        ("cut 3 2", MoveCut(3, 2)),
        ("stage 5->2", MoveStage(5, 2)),
        ("stage 5 to device 2", MoveStage(5, 2)),
        ("swap 4 5", SwapStages(4, 5)),
        ("swap stages 4 and 5", SwapStages(4, 5)),
        ("F(3,5) before B(3,2)", MoveOp(Op(0, 3, 5), Op(1, 3, 2))),
        ("  w( 3 , 5 )  AFTER  f(3,2)", MoveOp(Op(2, 3, 5), Op(0, 3, 2), before=False)),
    ],
)
def test_changes_are_read(text: str, move: object) -> None:
    assert parse(text) == move
    assert parse(str(move)) == move


@pytest.mark.parametrize(
    "text",
    [
        *("", "layer", "layer 3", "layer 3->", "layer -1->2", "layer 3->1e3", "layer 3->2; layer 2->1"),
        *("cut 3", "cut 3 1.5", "stage 1", "stage 1234567890->1", "swap 1", "dispatch now", "9" * 5000),
        *("F(1) before B(1,2)", "F(1,2) B(1,2)", "X(1,2) before B(1,2)", "\u0663 layers 1->2"),
    ],
)
def test_what_is_no_change_says_what_would_be(text: str) -> None:
    with pytest.raises(IllegalMoveError, match=r"is not a change .*layer 3->2"):
        parse(text)


# ---- what changes do -------------------------------------------------------------------------

FOUR = {"A": {"ms": (2, 2, 2), "activation_gb": 1, "weight_activation_gb": 0.5, "static_gb": 1}}


def two_devices(**more: object) -> Plan:
    """Four equal layers, one on device 0 and three on device 1, and one microbatch after the other: a poor plan."""
    more.setdefault("max_per_device", 2)
    instance = tiny.instance("AAAA", FOUR, devices=2, microbatches=2, **more)
    made = plan_of(
        instance,
        [
            "F(0,0) B(0,0) W(0,0) F(0,1) B(0,1) W(0,1)",
            "F(1,0) B(1,0) W(1,0) F(1,1) B(1,1) W(1,1)",
        ],
    )
    assert made.partition == [1, 3]
    return made


def test_a_layer_moves() -> None:
    # F0 0-2, F1 2-8, B1 8-14, B0 14-16, W0 16-18 beside W1 14-20; F0' 18-20, F1' 20-26, B1' 26-32, W1' 32-38.
    plan = two_devices()
    assert plan.makespan == 38
    for moves in (["layer 1->0"], ["cut 1 +1"], ["cut 1 1"], ["2 layers 1->0", "layer 0->1"]):
        trial = try_move(plan, moves)
        assert trial.plan.partition == [2, 2]
        # Ends: F0 4, F1 8, B1 12, B0 16, W0 20, F0' 24, F1' 28, B1' 32, B0' 36, W0' 40.
        assert trial.plan.makespan == 40
        assert check_plan(trial.plan) == []
    assert try_move(plan, ["layer 1->0"]).change == pytest.approx(2 / 38)
    # With F0' from 4 to 8, device 1 goes on without a pause: W1 16, F1' 20, B1' 24, and on device 0 B0' 28, W0' 32.
    trial = try_move(plan, ["layer 1->0", "F(0,1) before B(0,0)"])
    assert trial.plan.makespan == 32
    assert [str(move) for move in trial.moves] == ["layer 1->0", "F(0,1) before B(0,0)"]
    assert trial.plan.method == "by-hand"
    assert trial.plan.solve.found_by == "changed by hand: layer 1->0, F(0,1) before B(0,0)"


def test_an_op_moves_right_before_or_after_another() -> None:
    plan = two_devices()

    def order(moves: list[str]) -> list[str]:
        ops = [each for each in try_move(plan, moves).plan.ops if each.device == 0]
        return [f"{each.kind}{each.microbatch}" for each in sorted(ops, key=lambda each: each.start)]

    assert order(["F(0,1) before W(0,0)"]) == ["F0", "B0", "F1", "W0", "B1", "W1"]
    assert order(["W(0,0) after B(0,1)"]) == ["F0", "B0", "F1", "B1", "W0", "W1"]
    assert order(["W(0,0) after W(0,1)"]) == ["F0", "B0", "F1", "B1", "W1", "W0"]
    assert order(["F(0,1) before B(0,0)"]) == ["F0", "F1", "B0", "W0", "B1", "W1"]


def test_stages_move_and_swap() -> None:
    plan = two_devices()
    swapped = try_move(plan, ["swap 0 1"])
    assert swapped.plan.placement == [1, 0]
    assert swapped.plan.makespan == plan.makespan
    assert check_plan(swapped.plan) == []
    # Empty in between is fine; what counts is where it ends.
    assert try_move(plan, ["stage 0->1", "stage 1->0"]).plan.placement == [1, 0]


def test_dispatch_makes_a_good_order_from_a_bad_one() -> None:
    plan = two_devices()
    trial = try_move(plan, ["layer 1->0", "dispatch"])
    # Two stages of 4 ticks an op: 24 of work each, and device 1 starts at 4, so no order is below 28.
    assert 28 <= trial.plan.makespan <= 30
    assert trial.plan.makespan == try_move(plan, ["layer 1->0", "dispatch"]).plan.makespan
    tight = two_devices(memory=6)
    assert check_plan(try_move(tight, ["dispatch"]).plan) == []


def test_split_and_fuse_are_each_other_s_opposite() -> None:
    rows = compare(load_instance("nemotron-nano-v2-9b-p4-m8-v1"), solver=False)
    fused = next(row.plan for row in rows if row.method == "1f1b" and row.plan)
    split = try_move(fused, "split").plan
    assert split.makespan < fused.makespan
    assert try_move(split, "fuse").plan.makespan == fused.makespan
    assert "after W already" in illegal(fused, "fuse")
    assert "after B already" in illegal(split, "split")
    assert "W runs with its B" in illegal(fused, "W(1,0) after F(1,4)")
    # With a fused backward, W comes along.
    moved = try_move(fused, ["F(1,4) before B(1,1)"])
    ends = {(op.kind, op.stage, op.microbatch): (op.start, op.end) for op in moved.plan.ops}
    assert all(ends["W", s, m][0] == ends["B", s, m][1] for s in range(4) for m in range(8))


# ---- what cannot be done ---------------------------------------------------------------------


def illegal(plan: Plan, *moves: str) -> str:
    with pytest.raises(IllegalMoveError) as caught:
        try_move(plan, list(moves))
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(moves[0].split(" ", maxsplit=1)[0][:1]) or len(moves) > 1
    return text


@pytest.mark.parametrize(
    ("moves", "reason"),
    [
        (["layer 0->1"], "layer 0->1: stage 0 has 1 layer: none would be left"),
        (["3 layers 1->0"], "3 layers 1->0: stage 1 has 3 layers: none would be left"),
        (["layer 1->1"], "layer 1->1: changes nothing"),
        (["0 layers 1->0"], "changes nothing"),
        (["layer 2->1"], "layer 2->1: there is no stage 2 (0 to 1)"),
        (["cut 0 1"], "cut 0 +1: there is no cut before stage 0 (a stage from 1 to 1)"),
        (["cut 1 0"], "changes nothing"),
        (["cut 1 -1"], "stage 0 has 1 layer: none would be left"),
        (["stage 0->0"], "stage 0->0: stage 0 is on device 0 already"),
        (["stage 0->2"], "there is no device 2 (0 to 1)"),
        (["stage 5->1"], "there is no stage 5 (0 to 1)"),
        (["stage 0->1"], "stage 0->1: device 0 holds no stage"),
        (["swap 0 0"], "are both on device 0"),
        (["swap 0 2"], "there is no stage 2"),
        (["F(0,2) before B(0,0)"], "there is no F(0,2) (stages 0 to 1, microbatches 0 to 1)"),
        (["F(2,0) before B(0,0)"], "there is no F(2,0)"),
        (["F(0,1) before B(1,0)"], "F(0,1) runs on device 0, B(1,0) on device 1"),
        (["F(0,1) before F(0,1)"], "changes nothing"),
        (["F(0,0) before B(0,0)"], "F(0,0) runs right before B(0,0) already"),
        (["W(0,0) after B(0,0)"], "W(0,0) runs right after B(0,0) already"),
        (["B(0,0) before F(0,0)"], "B(0,0) needs F(0,0) and cannot run before it"),
        (["B(0,0) after W(0,0)"], "W(0,0) needs B(0,0) and cannot run before it"),
        (["W(0,0) before F(0,0)"], "ops wait for each other: "),
        (["F(1,1) before F(1,0)"], "ops wait for each other: "),
        (["F(0,1) before B(0,0)", "F(1,1) before F(1,0)"], None),
    ],
)
def test_reasons(moves: list[str], reason: str | None) -> None:
    plan = two_devices()
    if reason is None:
        assert check_plan(try_move(plan, moves).plan) == []
    else:
        assert reason in illegal(plan, *moves)


def test_a_circle_is_told_op_by_op() -> None:
    # Device 1 wants the second microbatch first, device 0 gives it only after the first one's gradient.
    text = illegal(two_devices(), "F(1,1) before F(1,0)")
    assert text.startswith("F(1,1) before F(1,0): ops wait for each other: ")
    assert "F(1,0) (before it on device 1)" in text or "F(1,1) (before it on device 1)" in text
    assert "F(0,1) (its forward)" in text
    assert "B(1,0) (its gradient)" in text


def test_memory_says_how_much_is_missing() -> None:
    # Device 1 holds three layers: static 3 GB, and 3 GB for a microbatch. Both at once: 9 GB.
    plan = two_devices(memory=8)
    text = illegal(plan, "F(0,1) before B(0,0)", "F(1,1) before B(1,0)")
    assert text.endswith("memory: device 1 needs 9 GB; its limit is 8 GB: 1 GB too much")
    assert "F(1,1) before B(1,0)" in text


def test_the_rules_of_the_instance() -> None:
    given = two_devices(partition=[1, 3])
    assert "fixes the partition (stages.partition)" in illegal(given, "layer 1->0")
    assert "fixes the placement (stages.placement: fixed)" in illegal(two_devices(placement=[0, 1]), "swap 0 1")
    assert "fixes the placement (stages.placement: linear)" in illegal(two_devices(placement="linear"), "swap 0 1")
    together = two_devices(keep_together=[[1, 3]])
    text = illegal(together, "layer 1->0")
    assert "the cut before stage 1 would part layers 1 to 3 (stages.keep_together)" in text
    apart = two_devices(colocate=[[2, 3]])
    assert "layers [2, 3] must share a device" in illegal(apart, "2 layers 1->0")
    fused = tiny.instance("AAAA", FOUR, split_backward=False)
    plan = plan_of(fused, ["F(0,0) B(0,0) F(0,1) B(0,1)", "F(1,0) B(1,0) F(1,1) B(1,1)"])
    for change in ("W(0,0) before F(0,1)", "split", "fuse"):
        assert "no W of its own (training.split_backward)" in illegal(plan, change)


def test_max_per_device() -> None:
    rows = compare(load_instance("nemotron-nano-v2-9b-p4-m8-v2"), solver=False)
    plan = next(row.plan for row in rows if row.method == "interleaved-1f1b" and row.plan)
    assert len(plan.partition) == 8
    assert "device 1 holds 3 stages; at most 2 are allowed" in illegal(plan, "stage 0->1")


# ---- the command -----------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_plan(two_devices(), "bad.plan.json")
    return Path("bad.plan.json")


def test_try_on_the_terminal(file: Path) -> None:
    ran = octocp("try", file, "--move", "layer 1->0", "-m", "dispatch", "-o", "new.plan.json")
    assert (ran.code, ran.err) == (0, "Written to new.plan.json.\n")
    assert ran.out.startswith("one layer from stage 1 to stage 0\n")
    assert "at most " in ran.out
    assert "% from optimal" in ran.out
    assert "lower bound:" not in ran.out
    assert "makespan: 38 ms (38 ticks) before, " in ran.out
    assert "bubble: " in ran.out
    assert "partition: [1, 3] before, [2, 2] after" in ran.out
    assert "peak memory: device 0 2 -> " in ran.out
    assert octocp("check", "new.plan.json").code == 0
    assert octocp("show", "new.plan.json").code == 0
    # Nothing is written unless asked for.
    assert octocp("try", file, "--move", "layer 1->0").err == ""
    assert {path.name for path in Path.cwd().iterdir()} == {"bad.plan.json", "new.plan.json"}


def test_try_as_json(file: Path) -> None:
    ran = octocp("try", file, "--move", "layer 1->0", "--json", "-o", "new.plan.json")
    data = json.loads(ran.out)
    assert (data["before"]["value"], data["after"]["value"], data["plan"]) == (38, 40, "new.plan.json")
    assert data["change"] == pytest.approx(2 / 38)
    assert data["moves"] == ["layer 1->0"]
    page = (Path(__file__).resolve().parents[1] / "docs" / "explain.md").read_text()
    for key in [*data, *data["after"]]:
        assert f"`{key}`" in page, key


def test_try_without_a_change_times_anew(file: Path) -> None:
    ran = octocp("try", file)
    assert ran.code == 0
    assert "+0.00 %" in ran.out


def test_try_on_another_instance(file: Path) -> None:
    plan = load_plan(file)
    slower = plan.instance.model_copy(update={"tick_us": 500.0, "name": "finer"})
    Path("sub").mkdir()
    Path("sub/finer.json").write_text(slower.model_dump_json(exclude_none=True))
    ran = octocp("try", file, "sub/finer.json", "--move", "layer 1->0")
    assert f"makespan: 38 ms (38 ticks) on {plan.instance.name}, 38 ms (76 ticks) on finer before, 40 ms" in ran.out
    data = json.loads(octocp("try", file, "sub/finer.json", "--move", "layer 1->0", "--json").out)
    assert [data[key]["value"] for key in ("original", "before", "after")] == [38, 76, 80]
    tight = plan.instance.cluster.model_copy(update={"memory_gb": max(plan.peak_memory_gb) - 0.5})
    Path("sub/tight.json").write_text(
        plan.instance.model_copy(update={"cluster": tight}).model_dump_json(exclude_none=True)
    )
    line = refused("try", file, "sub/tight.json")
    assert line.startswith(f"octocp: {file}: on sub/tight.json: memory: device ")


def test_a_trial_prints_as_the_command_does(file: Path) -> None:
    trial = try_move(file, "layer 1->0")
    assert octocp("try", file, "--move", "layer 1->0").out == f"{trial}\n"
    assert repr(trial).startswith("<Trial: layer 1->0: ")
    with pytest.raises(TypeError, match="this is int"):
        try_move(3, [])  # type: ignore[arg-type]


def test_illegal_changes_are_one_line(file: Path) -> None:
    assert refused("try", file, "--move", "layer 0->1") == "octocp: layer 0->1: stage 0 has 1 layer: none would be left"
    assert "is not a change" in refused("try", file, "--move", "make it fast")
    assert refused("try", file, "--move", "B(0,0) before F(0,0)").endswith("cannot run before it")
    assert "is the input itself" in refused("try", file, "--move", "layer 1->0", "-o", file)
    assert "no folder" in refused("try", file, "--move", "layer 1->0", "-o", "missing/new.json")
    assert "has 58 layers" in refused("try", file, "nemotron-nano-v2-9b-p8-m8", "--move", "layer 1->0")
    assert not Path("missing").exists()


def test_help_has_the_grammar() -> None:
    text = octocp("try", "--help").out
    for words in (
        "layer 3->2",
        "cut 3 -1",
        "stage 5->2",
        "swap 4 5",
        "F(3,5) before B(3,2)",
        "dispatch",
        "split",
        "fuse",
    ):
        assert words in text
