"""What `check --runtime` finds in a file for a runtime, each with its cell."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from handmade import toy_plan
from octocp.errors import InputError
from octocp.runtimes.torch_csv import parse, write
from octocp.runtimes.torch_rules import remarks, violations
from octocp.schema.files import write_plan
from runtime_plans import VEE, megatron_plan, text_of
from terminal import octocp, refused

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
        (COMMS, "1SEND_B1", "1SEND_B1,0SEND_F1", "column 9 (0SEND_F1): stage 0 is not on this rank, it is on rank 0"),
        (COMMS, "0F0,0SEND", "1UNSHARD,0F0,0SEND", "row 1 (rank 0), column 1 (1UNSHARD): stage 1 is not on this rank"),
        (COMMS, "1B1,1SEND", "1B1,0RESHARD,1SEND", "row 2 (rank 1), column 8 (0RESHARD): stage 0 is not on this rank"),
        (COMMS, "0REDUCE_GRAD", "0REDUCE_GRAD,1REDUCE_GRAD", "column 10 (1REDUCE_GRAD): stage 1 is not on this rank"),
        (COMMS, "0F0,0SEND", "7UNSHARD,0F0,0SEND", "column 1 (7UNSHARD): stage 7 is not on this rank, it is on none"),
        (GOOD, "1F0,1I0", "1UNSHARD,1F0,1I0", "row 1 (rank 0), column 3 (0B0): has no 0RECV_B0 before it"),
        (GOOD, "1F0,1I0", "1F0;1I0", "row 2 (rank 1), column 1: '1F0;1I0' holds several actions; commas stand between"),
        (GOOD, "1F0,1I0", "(1F0;1I0)OVERLAP_F_B", "row 2 (rank 1), column 1 (1I0): needs 1F0 of its own cell, whose"),
        (GOOD, "0F0,0F1,0B0", "0F1,(0F0;0B0)OVERLAP_F_B", "row 1 (rank 0), column 2 (0B0): needs 0F0 of its own cell"),
        (GOOD, "1F1,1I1,1W0", "1F1,1W0,1I1", ""),
        (GOOD, "0F1,0B0", "(0F1;0B0)OVERLAP_F_B", ""),
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


def test_parts_of_a_cell_run_at_the_same_time() -> None:
    """PyTorch starts an OVERLAP_F_B once all its parts have their inputs, and finds no order otherwise."""
    # 0B0 waits for 1B0, which waits for 1F1, which waits for 0F1: of the same cell as 0B0.
    text = "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1F1,1B0,1B1\n"
    assert violations(parse(text)) == [
        "row 1 (rank 0), column 2 (0B0): waits for 1B0, which never runs: the ranks wait for each other",
        "row 2 (rank 1), column 2 (1F1): waits for 0F1, which never runs: the ranks wait for each other",
    ]
    assert violations(parse(text.replace("1F1,1B0", "1B0,1F1"))) == []
    assert violations(parse(text.replace("(0F1;0B0)OVERLAP_F_B", "0F1,0B0"))) == []
    # Stages next to each other on one rank, in both directions.
    assert any(
        "column 1 (1F0): needs 0F0 of its own cell" in line
        for line in violations(parse("(0F0;1F0)OVERLAP_F_B,1B0,0B0\n"))
    )
    assert any(
        "column 3 (0B0): needs 1B0 of its own cell" in line
        for line in violations(parse("0F0,1F0,(1B0;0B0)OVERLAP_F_B\n"))
    )


SHARDED = "0UNSHARD,0F0,0F1,0B0,0RESHARD,0UNSHARD,0B1,0RESHARD,0REDUCE_GRAD\n"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("0F0,0F1", "0F0,0UNSHARD,0F1", "column 3 (0UNSHARD): stage 0 is unsharded already"),
        ("0UNSHARD,0F0", "0F0", "column 1 (0F0): has no 0UNSHARD before it"),
        ("0RESHARD,0UNSHARD,0B1", "0RESHARD,0B1", "column 6 (0B1): has no 0UNSHARD before it"),
        ("0UNSHARD,0F0", "0RESHARD,0UNSHARD,0F0", "column 1 (0RESHARD): has no 0UNSHARD before it"),
        ("0UNSHARD,0F0", "0UNSHARD,0RESHARD,0UNSHARD,0F0", "column 2 (0RESHARD): nothing of stage 0 runs between"),
        ("0B1,0RESHARD", "0B1,0RESHARD,0UNSHARD", "column 9 (0UNSHARD): nothing of stage 0 runs after it"),
    ],
)
def test_unshard_and_reshard_are_followed(old: str, new: str, said: str) -> None:
    assert violations(parse(SHARDED)) == []
    assert old in SHARDED
    (found,) = violations(parse(SHARDED.replace(old, new, 1)))
    assert found.startswith(f"row 1 (rank 0), {said}")


def test_transfers_that_cross_are_told_of() -> None:
    """Two sends at once, or two receives: each rank's first transfer waits for the other's second."""
    sends = (
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD\n"
        "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1REDUCE_GRAD\n"
    )
    assert violations(parse(sends)) == []
    (said,) = remarks(parse(sends))
    assert said.startswith("row 1 (rank 0), column 4 (0SEND_F1) and row 2 (rank 1), column 4 (1SEND_B0) cross: ")
    assert "runs with buffered sends (gloo), can hang with NCCL" in said
    receives = (
        "0F0,0SEND_F0,0F1,0RECV_B0,0SEND_F1,0B0,0RECV_B1,0B1,0REDUCE_GRAD\n"
        "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD\n"
    )
    (said,) = remarks(parse(receives))
    assert said.startswith("row 1 (rank 0), column 4 (0RECV_B0) and row 2 (rank 1), column 3 (1RECV_F1) cross: ")
    assert remarks(parse(COMMS)) == []


def test_transfers_that_cross_in_a_ring_are_told_of() -> None:
    """Of three ranks, each sends to the next before it receives from the one before; no two of them cross."""
    good = parse(text_of(megatron_plan(3, 2, 3), "torch-csv-comms"))
    assert remarks(good) == []
    rows = []
    for row in good.rows:
        # Every receive is put off until its op, as if that gained something.
        late = {(a.stage, a.kind[-1], a.microbatch): a for a in row if "RECV" in a.kind}
        made = []
        for action in row:
            if action.kind in ("F", "B", "I"):
                received = late.get((action.stage, "F" if action.kind == "F" else "B", action.microbatch))
                made += [received] if received else []
            if "RECV" not in action.kind:
                made.append(action)
        rows.append(made)
    table = parse(write(rows))
    assert violations(table) == []
    (said,) = remarks(table)
    assert re.match(
        r"row 1 \(rank 0\), column \d+ \(0SEND_F2\), row 2 \(rank 1\), column \d+ \(1SEND_F1\) "
        r"and row 3 \(rank 2\), column \d+ \(2SEND_F0\) cross: ",
        said,
    )


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
    group = "--microbatch-group-size-per-virtual-pipeline-stage"
    Path("group.txt").write_text(
        f"--pipeline-model-parallel-size 2\n--pipeline-model-parallel-layout Et|t|t|tL\n{group} 1\n"
    )
    ran = octocp("check", "--runtime", "group.txt")
    assert (ran.code, ran.out) == (1, f"group.txt: {group}: is 1, with 2 ranks (2 or more)\n")
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


def test_a_byte_order_mark_is_a_part_of_the_first_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text, name in ((GOOD, " (0F0)"), (f",{GOOD}", "")):
        Path("mine.csv").write_text(text, encoding="utf-8-sig")
        ran = octocp("check", "--runtime", "mine.csv")
        assert ran.code == 1
        assert ran.out == (
            f"mine.csv: row 1 (rank 0), column 1{name}: begins with a byte order mark, which PyTorch takes for a part "
            "of the cell; save the file as UTF-8 without one\n"
        )
        Path("mine.csv").write_text(text, encoding="utf-8")
        assert octocp("check", "--runtime", "mine.csv").code == 0


def test_crossing_transfers_are_a_note_and_no_violation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.csv").write_text(COMMS.replace("1RECV_F1,1B0,1SEND_B0", "1B0,1SEND_B0,1RECV_F1"))
    ran = octocp("check", "--runtime", "mine.csv")
    assert ran.code == 0
    assert ran.out.startswith("mine.csv: OK, PyTorch CSV, with transfers")
    (note,) = ran.err.splitlines()
    assert note.startswith(
        "mine.csv: note: row 1 (rank 0), column 4 (0SEND_F1) and row 2 (rank 1), column 4 (1SEND_B0)"
    )


def test_blank_lines_have_advice_that_fits() -> None:
    said = "is blank, and every line is a rank; delete it"
    (one,) = [line for line in violations(parse(GOOD + "\n")) if "blank" in line]
    assert one == f"row 3 (rank 2): {said}"
    found = violations(parse("0F0,0B0\n\n1F0,1B0\n\n\n"))
    assert f"row 2 (rank 1): {said}, or write there what rank 1 runs" in found
    assert {f"row 4 (rank 3): {said}", f"row 5 (rank 4): {said}"} <= set(found)
    # A row that only cannot be read is not blank.
    assert not any("blank" in line for line in violations(parse("0F0;0B0\n1F0;1B0\n")))
