"""Files of others, broken in every way: one line, never a crash, and JSON that is JSON."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

import tiny
import torch_plans
from octocp.schema.files import write_plan
from octocp.torch.predict import predict
from octocp.torch.timeline import MAX_BYTES, _number, trace_json
from runtime_plans import megatron_plan
from terminal import Ran, octocp, refused

FORMATS = ("torch-csv", "torch-csv-comms", "torchtitan", "megatron", "simpipe")


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return a good trace; mine.plan.json is its plan."""
    monkeypatch.chdir(tmp_path)
    plan = torch_plans.heuristic_plan(tiny.instance(torch_plans.LAYERS, microbatches=2), "zb-h1")
    write_plan(plan, "mine.plan.json")
    good = trace_json(predict(plan))
    Path("good.json").write_bytes(good)
    data: dict[str, Any] = json.loads(good)
    return data


def in_one_line(ran: Ran) -> bool:
    """Tell whether a command did its work, or refused in one line."""
    assert ran.code in (0, 1, 2, 3), ran
    assert "Traceback" not in ran.err
    if ran.code == 2:
        assert sum(line.startswith("octocp: ") for line in ran.err.splitlines()) == 1, ran
    return ran.code == 0


def strict(text: str) -> Any:
    """Parse JSON, which has no NaN."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    return json.loads(text, parse_constant=refuse)


def event_of(data: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return the first action of a trace, and its place."""
    return next((i, event) for i, event in enumerate(data["traceEvents"]) if event["ph"] == "X")


# ---- traces ----------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["ts", "dur"])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("NaN", "nan is no time"),
        ("Infinity", "inf is no time"),
        ("-Infinity", "-inf is no time"),
        ("1e400", "inf is no time"),
        ("9" * 400, "inf is no time"),
        ("9" * 5000, "inf is no time"),
        ("1e18", "1e+18 is no time"),
        ('"soon"', "'soon' is no time"),
        ('"nan"', "'nan' is no time"),
        ("[1]", "[1.0] is no time"),
        ("true", "True is no time"),
        ("null", "is missing"),
    ],
)
def test_times_that_are_none_are_named_with_their_event(
    traced: dict[str, Any], key: str, value: str, said: str
) -> None:
    index, event = event_of(traced)
    event[key] = "HERE"
    Path("bad.json").write_text(json.dumps(traced).replace('"HERE"', value))
    message = refused("calibrate", "mine.plan.json", "bad.json", "--json")
    assert message == (f"octocp: bad.json: traceEvents[{index}].{key}: is not a trace: {said} (a number up to 5e+17)")


def test_a_negative_length_is_none(traced: dict[str, Any]) -> None:
    index, event = event_of(traced)
    event["dur"] = -3
    Path("bad.json").write_text(json.dumps(traced))
    said = f"bad.json: traceEvents[{index}].dur: 0F0 takes -3 (0 microseconds or more)"
    assert said in refused("calibrate", "mine.plan.json", "bad.json")
    event["dur"] = "0"  # a number as text, as some tools write it, and nothing that ran
    Path("bad.json").write_text(json.dumps(traced))
    assert octocp("calibrate", "mine.plan.json", "bad.json").code == 0
    assert _number({"x": "1.5"}, "x", "") == 1.5


@pytest.mark.parametrize(("shift", "base"), [(0, 0), (-5e17, -5e20), (1e17, 5e20)])
def test_extreme_times_still_give_json_and_a_picture(traced: dict[str, Any], shift: float, base: float) -> None:
    actions = [event for event in traced["traceEvents"] if event["ph"] == "X"]
    factor = 4e17 / max(event["ts"] + event["dur"] for event in actions)
    for event in actions:
        event["ts"] = event["ts"] * factor + shift
        event["dur"] *= factor
    traced["baseTimeNanoseconds"] = base
    Path("far.json").write_text(json.dumps(traced))
    ran = octocp("calibrate", "mine.plan.json", "far.json", "--json", "-o", "both.svg")
    assert ran.code == 0, ran
    assert strict(ran.out)["measured_ms"] == pytest.approx(4e14, rel=1e-3)
    assert Path("both.svg").stat().st_size > 0


def test_gzip_files_that_are_broken_are_named_as_such(traced: dict[str, Any]) -> None:
    packed = gzip.compress(Path("good.json").read_bytes())
    Path("t.json.gz").write_bytes(packed)
    assert octocp("calibrate", "mine.plan.json", "t.json.gz").code == 0
    crc = bytearray(packed)
    crc[-8] ^= 1
    middle = bytearray(packed)
    middle[len(packed) // 2] ^= 0xFF
    for broken in (packed[: len(packed) // 2], packed[:5], packed[:-4], bytes(crc), bytes(middle), packed + b"rest"):
        Path("t.json.gz").write_bytes(broken)
        said = refused("calibrate", "mine.plan.json", "t.json.gz")
        assert said.startswith("octocp: t.json.gz: is a broken gzip file: ")
        assert said.endswith(" (the trace, written again)")


def test_no_more_is_unpacked_than_fits(traced: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from octocp.torch import timeline

    assert MAX_BYTES >= 2**28
    monkeypatch.setattr(timeline, "MAX_BYTES", 1000)
    Path("t.json.gz").write_bytes(gzip.compress(b" " * 1001))
    assert "has more than 1000 bytes (a trace of a few steps)" in refused("calibrate", "mine.plan.json", "t.json.gz")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "traceEvents[0]: is not a trace: an event is no mapping"),
        ("3", "is not a trace: it has no list of events"),
        ('{"traceEvents": {}}', "is not a trace: it has no list of events"),
        ('{"traceEvents": [], "baseTimeNanoseconds": "x"}', "baseTimeNanoseconds: is not a trace: 'x' is no time"),
        ("[" * 200_000, "is not a trace (Chrome trace JSON"),
        ('{"traceEvents": [}', "line 1, column 18: is not a trace: Expecting value"),
        ("\xff", "is not a trace (Chrome trace JSON"),
        ("", "line 1, column 1: is not a trace: Expecting value"),
        ('[{"ph": "X", "name": "PP:' + "9" * 5000 + 'F0"}]', "no PP: spans"),
    ],
)
def test_what_is_no_trace_is_told_apart(traced: dict[str, Any], text: str, said: str) -> None:
    Path("bad.json").write_bytes(text.encode("latin-1"))
    assert f"bad.json: {said}" in refused("calibrate", "mine.plan.json", "bad.json")


def test_written_traces_have_threads_of_their_own_and_slices_that_nest(traced: dict[str, Any]) -> None:
    plan = torch_plans.heuristic_plan(tiny.instance(torch_plans.LAYERS, microbatches=5, devices=3), "v-zb")
    thirds = [s._replace(start=s.start / 3 + 1e-7, end=s.end / 3 + 1e-7) for s in predict(plan)]
    events = json.loads(trace_json(thirds))["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert len({event["tid"] for event in slices}) == len({event["pid"] for event in slices}) == 3
    assert not {event["tid"] for event in slices} & {event["pid"] for event in slices}
    for name in ("process_name", "thread_name"):
        assert len({e["tid"] for e in events if e["name"] == name}) == 3
    for thread in {event["tid"] for event in slices}:
        mine = sorted((e["ts"], e["dur"]) for e in slices if e["tid"] == thread)
        for (start, length), (following, _) in zip(mine, mine[1:], strict=False):
            assert round(1000 * (start + length)) <= round(1000 * following)


# ---- mutations -------------------------------------------------------------------------------

PIECES = [
    *(b"\xef\xbb\xbf", b"\0", b"\xff", b"\r", b"\n\n", b"\t", b" ", b",", b";", b"|", b"(", b")*", b"-", b'"', b"'''"),
    *(b"9" * 400, b"9" * 5000, b"*99999999", b"00000000", b"1e999", b"NaN", b"inf", b"-Infinity", b"-1", b"null"),
    *(b"[[" * 3000, b'{"a":' * 3000, b"{}", b"[]", b"true", b"!!python/object:os", b"&a [*a]", "٣".encode()),
    *(b"(0F0;0B0)OVERLAP_F_B", b"1UNSHARD", b"0REDUCE_GRAD", b"[parallelism]", b"octocp.plan/1"),
]


def mutated(raw: bytes, draw: random.Random) -> bytes:
    """Cut, flip, insert, replace, repeat: one to three times."""
    made = bytearray(raw)
    for _ in range(draw.choice([1, 1, 2, 3])):
        at = draw.randrange(len(made) or 1)
        end = min(len(made), at + draw.choice([1, 2, 5, 40]))
        how = draw.randrange(6)
        if how == 0:
            del made[at:]
        elif how == 1 and made:
            made[at] ^= 1 << draw.randrange(8)
        elif how == 2:
            made[at:at] = draw.choice(PIECES)
        elif how == 3:
            made[at:end] = draw.choice(PIECES)
        elif how == 4:
            made[at:at] = made[at:end] * draw.choice([1, 3, 50])
        elif numbers := list(re.finditer(rb"\d+", bytes(made))):
            place = draw.choice(numbers)
            made[place.start() : place.end()] = draw.choice([*PIECES, b"1", b"2", b"7"])
    return bytes(made)


def test_mutated_schedules_never_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = megatron_plan(2, 2, 2, split=False)
    write_plan(plan, "mine.plan.json")
    Path("instance.json").write_text(plan.instance.model_dump_json())
    for form in FORMATS:
        assert octocp("export", "mine.plan.json", "--to", form).code == 0
    good = sorted(path for path in tmp_path.glob("mine.*"))
    assert len(good) == len(FORMATS) + 2
    fine = 0
    for seed in range(40):
        draw = random.Random(seed)
        name = draw.choice(good).name
        suffix = name.partition(".")[2] if draw.random() < 0.8 else draw.choice(["txt", "csv", "json", "yaml", "toml"])
        file = Path(f"x.{suffix}")
        file.write_bytes(mutated(Path(name).read_bytes(), draw))
        partition = "@2,2,2,2" if suffix.endswith("csv") and draw.random() < 0.5 else ""
        fine += in_one_line(octocp("import", f"{file}{partition}", "instance.json", "-o", "out.plan.json"))
        fine += in_one_line(octocp("check", "--runtime", file))
    assert 5 < fine < 70


def test_mutated_traces_never_crash(traced: dict[str, Any]) -> None:
    raw = Path("good.json").read_bytes()
    fine = 0
    for seed in range(60):
        draw = random.Random(seed)
        if seed % 2:
            data = mutated(raw, draw)
        else:
            changed = json.loads(raw)
            event = draw.choice(changed["traceEvents"])
            event[draw.choice(list(event))] = draw.choice([0, 2.5, "7", -1, 10**400, "X", None, [], {"a": 1}, "PP:0F0"])
            data = json.dumps(changed).encode()
        if seed % 3 == 0:
            data = gzip.compress(data)
            data = mutated(data, draw) if draw.random() < 0.5 else data
        Path("bad.json").write_bytes(data)
        ran = octocp("calibrate", "mine.plan.json", "bad.json", "--json")
        if in_one_line(ran):
            strict(ran.out)
            fine += 1
    assert 5 < fine < 55
