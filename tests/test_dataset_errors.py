"""What users get wrong with data sets: one line each, and nothing of theirs is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dataset_helpers import SPEC, built, rows, spec_file
from octocp.dataset import parquet, tasks, views
from octocp.dataset.checking import violations
from octocp.dataset.reading import read_rows
from octocp.dataset.store import LOG, unwritable
from octocp.errors import InputError, NoPlanError
from octocp.schema import Plan
from terminal import octocp, refused


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spec_file(tmp_path_factory.mktemp("spec"), 4)


@pytest.fixture(scope="module")
def whole(spec: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "set"
    built(spec, folder)
    return folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    """A copy of its log and manifest."""
    folder = tmp_path / "copy"
    folder.mkdir()
    for name in (LOG, "manifest.json"):
        (folder / name).write_bytes((whole / name).read_bytes())
    return folder


# ---- samples ---------------------------------------------------------------------------------


def test_a_sample_overwrites_no_data_set(whole: Path, spec: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    for source in (whole, whole / LOG, "groundtruth"):
        for name in (LOG, "rows.jsonl.gz", "new.jsonl"):
            told = refused("dataset", "sample", source, "-n", "2", "-o", whole / name)
            assert f"{whole / name}: is in " in told
            assert "(a file outside of data sets for -o)" in told
    (whole / "sub").mkdir()
    assert "is in a data set's folder" in refused("dataset", "sample", "groundtruth", "-o", whole / "sub" / "x.jsonl")
    (tmp_path / "link").symlink_to(whole)
    assert "is in " in refused("dataset", "sample", "groundtruth", "-o", tmp_path / "link" / LOG)
    (whole / "sub").rmdir()
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before
    assert octocp("dataset", "sample", whole, "-n", "2", "-o", tmp_path / "some.jsonl").code == 0


def test_a_sample_of_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("")
    for what in ("check", "stats", "sample"):
        assert f"{tmp_path / 'none.jsonl'}: has no rows" in refused("dataset", what, tmp_path / "none.jsonl")


# ---- known schedules that are better -----------------------------------------------------------


def payload(row: dict[str, Any]) -> dict[str, Any]:
    keys = ("id", "family", "hash", "instance", "time_limit", "seed")
    return {"task": "solve", "generator": 1, **{key: row[key] for key in keys}}


def test_the_plan_is_the_best_known_schedules_where_the_solve_found_none(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: Any, **__: Any) -> None:
        raise NoPlanError("no plan was found in time")

    monkeypatch.setattr("octocp.api.solve", none)
    for row in rows(whole):
        made = tasks.perform(payload(row))["row"]
        values = [(one["value"], one["method"]) for one in made["heuristics"] if one["value"] is not None]
        assert made["value"] == min(values)[0]
        assert made["found_by"] in {method for value, method in values if value == made["value"]}
        assert made["lower_bound"] <= made["value"]
        assert made["status"] == ("optimal" if made["lower_bound"] == made["value"] else "feasible")
        assert made["bound_name"]


def test_the_plan_is_the_best_known_schedules_where_the_solves_is_worse(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from octocp.decode import to_plan
    from octocp.heuristics import HEURISTICS, attempts

    def known(row: dict[str, Any]) -> set[int]:
        names = {heuristic.name for heuristic in HEURISTICS}
        return {one["value"] for one in row["heuristics"] if one["value"] is not None and one["method"] in names}

    row = next(row for row in rows(whole) if len(known(row)) > 1)
    found: dict[str, Any] = {}

    def poor(instance: Any, **_: Any) -> Any:
        from types import SimpleNamespace

        from octocp.costs import build_problem

        problem = build_problem(instance)
        schedules = [
            one.schedule
            for heuristic in HEURISTICS
            for one in attempts(heuristic, problem)
            if one.status == "feasible" and one.schedule is not None
        ]
        worst = max(schedules, key=lambda one: one.value)
        plan: Plan = to_plan(worst, instance, method="cp-sat", lower_bound=1)
        found["value"] = plan.value
        return SimpleNamespace(plan=plan, status=plan.status)

    monkeypatch.setattr("octocp.api.solve", poor)
    made = tasks.perform(payload(row))["row"]
    best = min(one["value"] for one in made["heuristics"] if one["value"] is not None)
    assert made["value"] == best < found["value"]
    assert (made["status"], made["lower_bound"], made["gap"]) == ("feasible", 1, (best - 1) / best)


def test_check_finds_a_known_schedule_that_is_better(whole: Path, tmp_path: Path) -> None:
    data = rows(whole)[0]
    worse = [{**one, "value": data["value"] - 1} if one["value"] else one for one in data["heuristics"]]
    (tmp_path / "rows.jsonl").write_text(json.dumps({**data, "lower_bound": 0, "heuristics": worse}) + "\n")
    told = "\n".join(violations(tmp_path / "rows.jsonl"))
    assert "value: a known schedule is better than the plan: " in told
    assert f"reaches {data['value'] - 1}, the plan has {data['value']}" in told


# ---- check -----------------------------------------------------------------------------------


def test_check_computes_bounds_and_known_schedules_anew(whole: Path, tmp_path: Path) -> None:
    data = next(row for row in rows(whole) if row["status"] == "optimal")

    def found(**changed: Any) -> str:
        (tmp_path / "rows.jsonl").write_text(json.dumps({**data, **changed}) + "\n")
        return "\n".join(violations(tmp_path / "rows.jsonl"))

    assert found() == ""
    more = [{**one, "value": one["value"] + 5} if one["value"] else one for one in data["heuristics"]]
    assert "run anew, it is feasible" in found(heuristics=more)
    assert "magic is no known schedule" in found(
        heuristics=[{"method": "magic", "status": "feasible", "value": data["value"]}]
    )
    gap = {"status": "feasible", "lower_bound": 1, "gap": (data["value"] - 1) / data["value"]}
    assert "lower_bound: is 1; " in found(**gap)
    check = {"settings": "x", "seconds": 1.0}
    infeasible = {**check, "status": "infeasible"}
    assert "double_check: is infeasible; the row is optimal" in found(double_check=infeasible)
    other = {**check, "status": "optimal", "value": data["value"] + 1, "lower_bound": data["value"] + 1}
    assert f"double_check: is optimal with value {data['value'] + 1}; the row has" in found(double_check=other)
    open_ = {**check, "status": "optimal", "value": data["value"], "lower_bound": 1}
    assert f"double_check: is optimal with value {data['value']} and bound 1" in found(double_check=open_)


def test_a_bound_is_no_larger_than_its_argument_gives(tmp_path: Path) -> None:
    for _, data in read_rows("groundtruth"):
        if data["status"] == "feasible" and data["bound_name"].startswith("work"):
            break
    else:
        pytest.skip("no open row has such a bound")
    bound = data["lower_bound"] + 1
    data |= {"lower_bound": bound, "gap": (data["value"] - bound) / data["value"]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(data) + "\n")
    assert f"lower_bound: is {bound} by " in "\n".join(violations(tmp_path / "rows.jsonl"))


def test_check_compares_what_lies_beside_the_log(spec: Path, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    built(spec, folder)
    assert list(violations(folder)) == []
    kept = [row | ({"seconds": 999.0} if number == 1 else {}) for number, row in enumerate(rows(folder)) if number != 3]
    views.write_jsonl(kept, folder / "rows.jsonl.gz")
    (told,) = violations(folder)
    assert "rows.jsonl.gz: differs from log.jsonl in 2 rows, the first mix-00001; the build's command" in told
    (folder / "rows.jsonl.gz").write_bytes(b"no gzip")
    (told,) = violations(folder)
    assert "cannot be read" in told
    (folder / "rows.jsonl.gz").unlink()
    if parquet.available():
        parquet.write_parquet(kept, folder / "shards" / "part-00000.parquet")
        (told,) = violations(folder)
        assert "shards: differs from log.jsonl in 2 rows" in told


def test_check_tells_of_an_incomplete_last_line(copy: Path) -> None:
    log = (copy / LOG).read_bytes()
    (copy / LOG).write_bytes(log[:-20])
    ran = octocp("dataset", "check", copy)
    assert (ran.code, ran.out) == (0, "Valid: 3 rows.\n")
    assert "log.jsonl: the last line is incomplete and was left out" in ran.err


# ---- rows that are none ------------------------------------------------------------------------


def line(data: Any) -> bytes:
    return json.dumps(data).encode() + b"\n"


def without(key: str) -> Any:
    return lambda row: line({name: value for name, value in row.items() if name != key})


CHECK = "octocp.dataset-check/1"
WRONG: dict[str, Any] = {
    **{f"no {key}": without(key) for key in ("id", "status", "family", "instance", "hash", "seconds")},
    "id": lambda row: line({**row, "id": [1]}),
    "status": lambda row: line({**row, "status": [1]}),
    "value": lambda row: line({**row, "value": "x"}),
    "heuristics": lambda row: line({**row, "heuristics": 5}),
    "seconds": lambda row: line({**row, "seconds": "b"}),
    "nan": lambda row: line({**row, "gap": float("nan")}),
    "nan in a list": lambda row: line({**row, "peak_memory_gb": [float("nan")]}),
    "seed": lambda row: line({**row, "seed": 2**70}),
    "starts": lambda row: line({**row, "starts": [[2**70]]}),
    "deep": lambda _: b"[" * 100_000 + b"]" * 100_000 + b"\n",
    "deep instance": lambda row: line({**row, "instance": 0}).replace(
        b'"instance": 0', b'"instance": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000
    ),
    "digits": lambda _: b'{"a":' + b"9" * 10_000 + b"}\n",
    "list": lambda _: b"[1]\n",
    "foreign": lambda _: line({"format": "other/1"}),
    "second proof of no row": lambda _: line({"format": CHECK}),
    "second proof of a number": lambda row: line({"format": CHECK, "id": row["id"], "check": 5}),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_line_that_is_no_row_is_named(what: str, spec: Path, copy: Path, tmp_path: Path) -> None:
    lines = (copy / LOG).read_bytes().splitlines(keepends=True)
    lines[2] = WRONG[what](json.loads(lines[2]))
    (copy / LOG).write_bytes(b"".join(lines))
    place = f"{copy / LOG}: line 3: "
    assert place in refused("dataset", "build", spec, "-o", copy)
    assert place in refused("dataset", "stats", copy)
    assert place in refused("dataset", "sample", copy, "-o", tmp_path / "some.jsonl")
    assert place in refused("dataset", "merge", copy, "-o", tmp_path / "merged")
    ran = octocp("dataset", "check", copy)
    assert ran.code in (1, 2)
    assert place in ran.out + ran.err
    assert "bug" not in ran.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy"]


def test_a_second_proof_of_what_is_not_there_is_named(spec: Path, copy: Path) -> None:
    check = {"status": "optimal", "settings": "x", "seconds": 1.0}
    with (copy / LOG).open("ab") as file:
        file.write(line({"format": CHECK, "id": "nope", "check": check}))
    told = refused("dataset", "build", spec, "-o", copy)
    assert "log.jsonl: line 5: is a second proof of nope, which has no row" in told


def test_no_temporary_file_is_left(whole: Path, tmp_path: Path) -> None:
    wrong = [{**rows(whole)[0], "gap": float("nan")}]
    with pytest.raises(ValueError, match="not JSON compliant"):
        views.write_jsonl(wrong, tmp_path / "rows.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_the_same_for_parquet(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa = pytest.importorskip("pyarrow.parquet")

    def full(_: Any, file: Any, **__: Any) -> None:
        file.write(b"half")
        raise OSError(28, "Error writing bytes to file. Detail: [errno 28] No space left on device")

    monkeypatch.setattr(pa, "write_table", full)
    with pytest.raises(InputError) as caught:
        parquet.write_parquet(rows(whole), tmp_path / "x.parquet")
    told = "cannot be written: No space left on device (free space; the same command goes on where it was)"
    assert str(caught.value) == f"{tmp_path / 'x.parquet'}: {told}"
    assert list(tmp_path.iterdir()) == []
    assert "free space" in str(unwritable(tmp_path, OSError(28, "x")))


# ---- specs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("source: mix", "source: nope", "families[0].source: 'nope' is no source (profiles, architecture or mix)"),
        ("source: mix", "source: [1]", "families[0].source: [1] is no source (profiles, architecture or mix)"),
        ("    source: mix\n", "", "families[0].source: is required and missing (profiles, architecture or mix)"),
        ("devices: [2, 3]", "devices: []", "families[0].devices: is empty (a list of at least one value)"),
        ("memory: [none, tight]", "memory: []", "families[0].memory: is empty (a list of at least one value)"),
    ],
)
def test_mistakes_in_a_spec_are_worded_for_people(old: str, new: str, told: str, tmp_path: Path) -> None:
    path = spec_file(tmp_path)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    found = refused("dataset", "build", path, "-o", tmp_path / "set")
    assert told in found
    assert f"{path}: line " in found
    assert not (tmp_path / "set").exists()


def test_an_empty_spec_is_told_what_to_be(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    for text in ("", "# nothing\n"):
        path.write_text(text)
        told = refused("dataset", "build", path, "-o", tmp_path / "set")
        assert f"{path}: is empty (a spec; docs/datasets.md shows one with every key)" in told
    path.write_text("format: octocp.dataset/1\nname: x\nfamilies: []\n")
    told = refused("dataset", "build", path, "-o", tmp_path / "set")
    assert "families: is empty (a list of at least one family)" in told


def test_a_spec_that_asks_for_too_much_keeps_no_folder(tmp_path: Path) -> None:
    path = spec_file(tmp_path, 3)
    good = path.read_text()
    narrow = good.replace("layers: [3, 4]", "layers: [3], kinds: [1], heterogeneity: [0]").replace(
        "count: 3", "count: 900"
    )
    path.write_text(narrow.replace("layers: [3], kinds: [1], heterogeneity: [0]", "layers: [1]\n    kinds: [1]"))
    told = refused("dataset", "build", path, "-o", tmp_path / "set", "-q")
    assert told.startswith(f"octocp: {path}: families[0].count (mix): no more than ")
    path.write_text(good)
    assert octocp("dataset", "build", path, "-o", tmp_path / "set", "-q", "-j", "1").code == 0
    path.write_text(SPEC.format(count=4))
    assert "was begun for another spec" in refused("dataset", "build", path, "-o", tmp_path / "set")


# ---- Dask and Slurm ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address", ["foo", "", "tcp://127.0.0.1", "http://x:1", "inproc://a", "tcp://127.0.0.1:99999", "127.0.0.1:8786"]
)
def test_what_is_no_address_is_refused_at_once(address: str, spec: Path, tmp_path: Path) -> None:
    began = time.monotonic()
    told = refused("dataset", "build", spec, "-o", tmp_path / "set", "--dask", address)
    assert "is no scheme://host:port (the address that the scheduler shows, e.g. tcp://10.0.0.1:8786)" in told
    assert time.monotonic() - began < 5


def test_dask_writes_nothing_of_its_own(spec: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    code = "from octocp.dataset import on_dask; on_dask.CONNECT_SECONDS = 2.0; from octocp.__main__ import run; run()"
    command = [sys.executable, "-c", code, "dataset", "build", str(spec), "-o", str(tmp_path / "set")]
    ran = subprocess.run([*command, "--dask", "tcp://127.0.0.1:1"], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr.count("\n") == 1, ran.stderr
    assert "no Dask scheduler answers at tcp://127.0.0.1:1" in ran.stderr


@pytest.mark.filterwarnings("ignore")
def test_what_submitit_refuses_is_one_line(spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    start = ("dataset", "build", spec, "-q", "-o")
    for wrong in ("stderr_to_stdout=abc", "local_other=x"):
        assert "--slurm: submitit refuses: " in refused(*start, tmp_path / "a", "--slurm", f"cluster=local,{wrong}")
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").write_text("")
    told = refused(*start, tmp_path / "file", "--slurm", "cluster=local")
    assert "is no folder" in told
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sbatch", "srun"):
        (tools / name).write_text("#!/bin/sh\necho 'sbatch: error: invalid partition' >&2; exit 1\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    told = refused(*start, tmp_path / "b", "--slurm", "slurm_partition=zz")
    assert "--slurm: a job was refused: " in told
    assert "invalid partition" in told


def test_ctrl_c_ends_local_jobs_without_a_word_of_theirs(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    spec = spec_file(tmp_path, 40)
    folder = tmp_path / "set"
    command = [sys.executable, "-m", "octocp", "dataset", "build", str(spec), "-o", str(folder), "-j", "2"]
    with subprocess.Popen(
        [*command, "--slurm", "cluster=local"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 (no threads here)
    ) as process:
        deadline = time.monotonic() + 100
        while process.poll() is None and not ((folder / LOG).exists() and (folder / LOG).stat().st_size):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert "Traceback" not in told
    assert "Interrupted at rows" in told
    assert _at_work(folder) == []


def _at_work(folder: Path) -> list[str]:
    """The processes that have a folder in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(folder) in text:
            found.append(text)
    return found
