"""Building data sets: what rows hold, and that nothing that goes wrong loses or doubles any."""

from __future__ import annotations

import fcntl
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import dataset_helpers
from dataset_helpers import MARKS, built, essence, rows, spec_file
from octocp.checker import check_plan
from octocp.dataset import stats
from octocp.dataset.build import IncompleteError
from octocp.dataset.checking import violations
from octocp.dataset.executors import Here, Processes
from octocp.dataset.reading import load_rows
from octocp.dataset.rows import Row
from octocp.dataset.store import LOG, Store
from octocp.dataset.trust import DisagreementError, check_payload, double_check, schedule_of
from octocp.errors import InputError
from octocp.heuristics import ALL_HEURISTICS, OCTOPIPE
from terminal import octocp, refused


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spec_file(tmp_path_factory.mktemp("spec"))


@pytest.fixture(scope="module")
def whole(spec: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set built without disturbance."""
    folder = tmp_path_factory.mktemp("whole") / "set"
    made = built(spec, folder, double_check=True)
    assert (made.rows, made.fresh) == (8, 8 + made.proven)
    assert made.confirmed == made.proven == 8
    return folder


def command(spec: Path, folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "octocp", "dataset", "build", str(spec), "-o", str(folder), *more]


# ---- rows ------------------------------------------------------------------------------------


def test_every_row_is_complete_and_valid(whole: Path) -> None:
    assert list(violations(whole)) == []
    names = [heuristic.name for heuristic in ALL_HEURISTICS] + [OCTOPIPE.name]
    for row in load_rows(whole):
        assert [one.method for one in row.heuristics] == names
        assert row.double_check is not None
        assert row.double_check.confirms(row.status)
        plan = row.plan()
        assert plan is not None
        assert check_plan(plan) == []
        assert (plan.value, plan.status, plan.lower_bound) == (row.value, row.status, row.lower_bound)
        assert schedule_of(row, row.problem()).value == row.value
        assert row.versions.octocp
        assert (row.workers, row.seed, row.time_limit) == (1, 0, 60)
        known = [one.value for one in row.heuristics if one.value is not None]
        assert row.value is not None
        assert all(value >= row.value for value in known)


def test_what_is_built_again_is_the_same(spec: Path, whole: Path, tmp_path: Path) -> None:
    built(spec, tmp_path / "again", Processes(2))
    assert essence(tmp_path / "again") == essence(whole)


def test_all_forms_hold_the_same_rows(whole: Path) -> None:
    expected = load_rows(whole)
    assert load_rows(whole / "rows.jsonl.gz") == expected
    assert [Row.model_validate(row.data()) for row in expected] == expected
    pytest.importorskip("pyarrow")
    assert load_rows(whole / "shards" / "part-00000.parquet") == expected


def test_nothing_is_done_twice(spec: Path, whole: Path) -> None:
    before = (whole / LOG).read_bytes()
    made = built(spec, whole, double_check=True)
    assert (made.rows, made.fresh) == (8, 0)
    assert (whole / LOG).read_bytes() == before


def test_the_card_says_what_is_in_it(whole: Path) -> None:
    text = (whole / "README.md").read_text()
    for told in (
        "# small",
        "| mix | 8 |",
        "| 0 (proven) | ",
        "Apache-2.0",
        "load_rows",
        "| octopipe |",
        "time_limit: 60",
    ):
        assert told in text


# ---- trust -----------------------------------------------------------------------------------


def test_a_wrong_optimum_stops_the_build_with_both_artefacts(spec: Path, tmp_path: Path) -> None:
    with pytest.raises(
        DisagreementError, match=r"two proofs disagree on mix-00001: .*below the proven bound"
    ) as caught:
        built(spec, tmp_path / "set", Here(dataset_helpers.lying), double_check=True)
    assert caught.value.exit_code == 70
    kept = tmp_path / "set" / "disagreements"
    for side in ("first", "second"):
        assert octocp("check", kept / f"mix-00001-{side}.plan.json").code == 0
    assert "mix-00001" in (kept / "mix-00001.txt").read_text()


def test_a_plan_of_what_is_said_to_be_infeasible_is_a_disagreement(whole: Path) -> None:
    data = rows(whole)[0]
    none: dict[str, Any] = dict.fromkeys(("value", "makespan", "span", "lower_bound", "gap"))
    data |= none | {"status": "infeasible", "reason": "so it is said", "double_check": None}
    data |= {key: [] for key in ("partition", "placement", "orders", "starts", "ends", "peak_memory_gb")}
    found = double_check(check_payload(data))
    assert "has a plan of an instance that is said to have none" in found["disagreement"]["what"]


def test_check_finds_whatever_is_changed(whole: Path, tmp_path: Path) -> None:
    data = rows(whole)[0]

    def found(**changed: Any) -> str:
        path = tmp_path / "rows.jsonl"
        path.write_text(json.dumps({**data, **changed}) + "\n")
        return "\n".join(violations(path))

    assert found() == ""
    assert "hash: is" in found(hash="0" * 32)
    assert "layers: is 9" in found(layers=9)
    assert "makespan" in found(makespan=data["makespan"] + 1, value=data["value"] + 1)
    assert "status: is feasible" in found(status="feasible")
    assert "plan: " in found(starts=[[0] * len(starts) for starts in data["starts"]])
    assert "peak_memory_gb" in found(peak_memory_gb=[9.0] * len(data["peak_memory_gb"]))
    assert "below the bound" in found(heuristics=[{"method": "gpipe", "status": "feasible", "value": 1}])
    assert "features" in found(features=["split backward", "magic"])
    assert "unknown" in found(status="unknown")
    assert "orders: cannot be read" in found(orders=[["X"] * len(order) for order in data["orders"]])
    path = tmp_path / "twice.jsonl"
    path.write_text(2 * (json.dumps(data) + "\n"))
    assert "is there twice" in "\n".join(violations(path))
    path.write_text(json.dumps(data) + "\n" + json.dumps(data | {"id": "other"}) + "\n")
    assert "is the same problem as mix-00000" in "\n".join(violations(path))


# ---- crashes ---------------------------------------------------------------------------------


def killed_build(spec: Path, folder: Path, kills: int, most: int) -> int:
    """Begin a build up to so many times, each killed at a random moment; return how often it was at work then.

    The first one is killed at its first row, which tells how long a start takes here; the others are killed any time up
    to twice as long, so that some are still starting and most are at work. With `most` lines in its log it is through.
    """
    moments = random.Random(4)
    log, start = folder / LOG, 0.0
    for kill in range(kills):
        with subprocess.Popen(
            command(spec, folder, "-j", "2", "--double-check"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as process:
            began = time.monotonic()
            if kill == 0:
                while process.poll() is None and not (log.exists() and log.stat().st_size):
                    time.sleep(0.01)
                start = time.monotonic() - began
            else:
                time.sleep(moments.uniform(0.0, 2 * start))
            process.kill()
            assert process.stderr is not None
            assert b"Traceback" not in process.stderr.read()
        if log.exists() and log.read_bytes().count(b"\n") >= most:
            return kill
    return kills


def test_a_build_that_is_killed_goes_on_where_it_was(spec: Path, whole: Path, tmp_path: Path) -> None:
    assert killed_build(spec, tmp_path / "set", 3, 16) >= 1
    built(spec, tmp_path / "set", double_check=True)
    assert essence(tmp_path / "set") == essence(whole)
    assert sum(b"octocp.dataset-row/1" in line for line in (tmp_path / "set" / LOG).read_bytes().splitlines()) == 8


@pytest.mark.slow
def test_twenty_kills_at_random_moments(tmp_path: Path) -> None:
    count, hit, sets = 80, 0, 0
    spec = spec_file(tmp_path, count)
    built(spec, tmp_path / "undisturbed", Processes(2), double_check=True)
    while hit < 20:  # kills that met a build at work; one that was through all the same makes room for another
        folder = tmp_path / f"set-{sets}"
        hit, sets = hit + killed_build(spec, folder, 20 - hit, 2 * count), sets + 1
        built(spec, folder, Processes(2), double_check=True)
        assert essence(folder) == essence(tmp_path / "undisturbed")
        records = [json.loads(line) for line in (folder / LOG).read_bytes().splitlines()]
        for kind in ("row", "check"):
            names = [record["id"] for record in records if record["format"] == f"octocp.dataset-{kind}/1"]
            assert len(names) == len(set(names)) == count
        assert list(violations(folder)) == []


def test_no_process_outlives_a_killed_build(spec: Path, tmp_path: Path) -> None:
    with subprocess.Popen(command(spec, tmp_path / "set", "-j", "2", "-q"), start_new_session=True) as process:
        deadline = time.monotonic() + 60
        while len(group := _group(process.pid)) < 3 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(group) >= 3 or process.poll() is not None
        process.kill()
        process.wait()
    while _group(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert _group(process.pid) == []


def _group(leader: int) -> list[int]:
    """The processes of a session that are not yet gone."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize("torn", [b'{"format":"octocp.dataset-row/1","id":"mix-0', b"\0" * 100, b'{"a": 1}'])
def test_an_incomplete_last_line_is_dropped(torn: bytes, spec: Path, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    built(spec, folder)
    log = (folder / LOG).read_bytes()
    last = log.rstrip(b"\n").rfind(b"\n") + 1
    (folder / LOG).write_bytes(log[:last] + torn)
    made = built(spec, folder)
    assert made.fresh == 1
    assert "a line that a crash left incomplete was dropped" in made.notes[0]
    assert essence(folder) == essence(whole)


def test_a_broken_line_in_the_middle_is_refused(spec: Path, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "manifest.json").write_bytes((whole / "manifest.json").read_bytes())
    lines = (whole / LOG).read_bytes().splitlines(keepends=True)
    (folder / LOG).write_bytes(lines[0] + b"garbage\n" + lines[1])
    with pytest.raises(InputError, match=r"log.jsonl: line 2: is not JSON \(a row a line; without this line the rest"):
        built(spec, folder)
    (folder / LOG).write_bytes(lines[0] + lines[0])
    with pytest.raises(
        InputError, match=r"log.jsonl: line 2: row mix-00000 is there twice \(without one of the two lines\)"
    ):
        built(spec, folder)


def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, 40)
    folder = tmp_path / "set"
    with subprocess.Popen(
        command(spec, folder, "-j", "2"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background jobs, and with them these tests, may ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 (no threads here)
    ) as process:
        while process.poll() is None and not ((folder / LOG).exists() and (folder / LOG).stat().st_size):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert "Interrupted at rows" in told
    assert "the same command goes on from there" in told
    assert "Traceback" not in told
    assert len(rows(folder)) >= 1


# ---- workers that are lost -------------------------------------------------------------------


@pytest.fixture
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "marks"
    folder.mkdir()
    monkeypatch.setenv(MARKS, str(folder))
    return folder


@pytest.mark.usefixtures("marks")
def test_a_worker_that_dies_is_replaced_and_its_task_done_again(spec: Path, whole: Path, tmp_path: Path) -> None:
    built(spec, tmp_path / "set", Processes(2, dataset_helpers.deadly))
    assert essence(tmp_path / "set") == essence(whole)


@pytest.mark.usefixtures("marks")
def test_a_task_that_always_kills_its_worker_is_named(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTOCP_TEST_ALWAYS", "1")
    with pytest.raises(
        IncompleteError, match=r"1 of 8 tasks gave no result, the first mix-00002: its worker died 3 times"
    ):
        built(spec, tmp_path / "set", Processes(2, dataset_helpers.deadly))
    assert len(rows(tmp_path / "set")) == 7
    assert (tmp_path / "set" / "README.md").exists()


def test_a_task_that_fails_is_named_and_tried_again_next_time(spec: Path, whole: Path, tmp_path: Path) -> None:
    with pytest.raises(IncompleteError, match=r"mix-00002: ZeroDivisionError: on purpose"):
        built(spec, tmp_path / "set", Here(dataset_helpers.failing))
    assert built(spec, tmp_path / "set").fresh == 1
    assert essence(tmp_path / "set") == essence(whole)


# ---- Dask and Slurm --------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_a_dask_worker_killed_in_a_task_loses_nothing(spec: Path, whole: Path, marks: Path, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    from octocp.dataset.on_dask import OnDask

    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        executor = OnDask(cluster.scheduler_address, dataset_helpers.marked)
        try:
            assert executor.words == f"2 Dask threads at {cluster.scheduler_address}"
            killed = []

            def kill(_: Any) -> None:
                begun = sorted(marks.iterdir(), key=lambda path: path.stat().st_mtime)
                if len(begun) >= 3 and not killed:
                    killed.append(begun[-1].name)
                    os.kill(int(begun[-1].name.rpartition("-")[2]), signal.SIGKILL)

            built(spec, tmp_path / "set", executor, on_state=kill)
        finally:
            executor.close()
    assert killed
    name = killed[0].rpartition("-")[0]
    assert len(list(marks.glob(f"{name}-*"))) >= 2  # it was in that task, which was begun again elsewhere
    assert essence(tmp_path / "set") == essence(whole)
    assert len(rows(tmp_path / "set")) == 8


@pytest.mark.filterwarnings("ignore")
def test_submitit_runs_a_build(whole: Path, tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    few = spec_file(tmp_path, 3)
    ran = octocp("dataset", "build", few, "-o", tmp_path / "set", "--slurm", "cluster=local", "-j", "2", "-q")
    assert ran.code == 0, ran
    assert essence(tmp_path / "set") == essence(whole)[:3]


@pytest.mark.filterwarnings("ignore")
def test_places_that_are_not_there_are_one_line(spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    pytest.importorskip("submitit")
    monkeypatch.setattr("octocp.dataset.on_dask.CONNECT_SECONDS", 1.0)
    start = ("dataset", "build", spec, "-o", tmp_path / "set")
    assert "no Dask scheduler answers at tcp://127.0.0.1:1: " in refused(*start, "--dask", "tcp://127.0.0.1:1")
    assert "'x' is no setting (KEY=VALUE,KEY=VALUE)" in refused(*start, "--slurm", "x")
    assert "submitit refuses" in refused(*start, "--slurm", "cluster=local,colour=red")
    assert "leave one out" in refused(*start, "--slurm", "cluster=local", "--dask", "tcp://1")


# ---- folders ---------------------------------------------------------------------------------


def test_the_second_process_is_told_who_has_the_folder(spec: Path, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    long = spec_file(tmp_path, 60)
    with subprocess.Popen(command(long, folder, "-j", "1", "-q")) as process:
        while process.poll() is None and not (folder / LOG).exists():
            time.sleep(0.05)
        told = refused("dataset", "build", long, "-o", folder)
        log = (folder / LOG).read_bytes()
        process.kill()
    assert f"{folder}: is in use by process {process.pid} on " in told
    assert all(json.loads(line) for line in log.splitlines()[:-1])
    # Killed, it gives the folder free.
    with (folder / "lock").open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_two_processes_at_once_do_not_corrupt_a_folder(spec: Path, whole: Path, tmp_path: Path) -> None:
    both = [
        subprocess.Popen(command(spec, tmp_path / "set", "-j", "1"), stderr=subprocess.PIPE, text=True, stdout=-3)
        for _ in range(2)
    ]
    told = [process.communicate(timeout=120)[1] for process in both]
    codes = sorted(process.returncode for process in both)
    assert codes in ([0, 2], [0, 0]), told  # the second one, or one that came when the first was done
    if codes == [0, 2]:
        assert any("is in use by process" in text for text in told)
    assert essence(tmp_path / "set") == essence(whole)


def test_another_spec_or_another_folder_is_refused(spec: Path, whole: Path, tmp_path: Path) -> None:
    other = spec_file(tmp_path, 9)
    assert "was begun for another spec" in refused("dataset", "build", other, "-o", whole)
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("precious")
    assert "is not empty and holds no data set" in refused("dataset", "build", spec, "-o", folder)
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]


def test_a_folder_that_cannot_be_written_is_one_line(spec: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "file/set: cannot be written: Not a directory" in refused(
        "dataset", "build", spec, "-o", tmp_path / "file/set"
    )
    assert "cannot be written: " in refused("dataset", "build", spec, "-o", "/proc/octocp")


def test_a_read_only_folder_is_one_line(spec: Path, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    tmp_path.chmod(0o500)
    try:
        told = refused("dataset", "build", spec, "-o", tmp_path / "set")
    finally:
        tmp_path.chmod(0o700)
    assert "cannot be written: Permission denied" in told


def test_a_full_disk_is_one_line_and_loses_nothing(spec: Path, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    limit = 9000  # bytes: a few rows

    def full() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    # Written where a limit on the size of files does not hold what else is written: Python's caches.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        command(spec, folder, "-j", "1", "-q"),
        preexec_fn=full,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2, ran
    assert ran.stderr.count("\n") == 1
    assert "log.jsonl: cannot be written: File too large (free space" in ran.stderr
    before = (folder / LOG).read_bytes()
    assert before.endswith(b"\n")
    assert 1 <= len(before.splitlines()) < 8
    built(spec, folder)
    assert (folder / LOG).read_bytes().startswith(before)
    assert essence(folder) == essence(whole)


def test_a_row_is_cut_off_again_where_the_disk_is_full(whole: Path, tmp_path: Path, monkeypatch: Any) -> None:
    row = rows(whole)[0]
    with Store(tmp_path / "set", {"name": "x", "digest": "x"}) as store:
        store.add_row(row)
        size = (tmp_path / "set" / LOG).stat().st_size
        real = os.write

        def full(file: int, data: Any) -> int:
            if len(data) > 100:
                return real(file, data[:100])
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(InputError, match=r"cannot be written: No space left on device \(free space"):
            store.add_row(row | {"id": "other"})
    assert (tmp_path / "set" / LOG).stat().st_size == size


# ---- stats, merge, sample --------------------------------------------------------------------


def test_stats_count(whole: Path) -> None:
    found = json.loads(octocp("dataset", "stats", whole, "--json").out)
    assert found["families"]["mix"]["rows"] == found["families"]["all"]["rows"] == 8
    tuner = next(one for one in found["distances"] if one["method"] == "octopipe" and one["family"] == "all")
    assert 0 <= tuner["mean"] <= tuner["p95"] <= tuner["worst"]
    assert "octopipe" in octocp("dataset", "stats", whole).out


def test_percentiles_are_nearest_ranks() -> None:
    found = stats.summarise([None, *(share / 100 for share in range(1, 101))])
    assert found is not None
    assert (found.p95, found.worst, found.plans, found.rows) == (0.95, 1.0, 100, 101)
    assert found.mean == pytest.approx(0.505)
    assert stats.summarise([None]) is None


def test_merging_drops_duplicates_and_keeps_what_knows_most(whole: Path, tmp_path: Path) -> None:
    data = rows(whole)
    poor = data[0] | {"double_check": None, "id": "poor"}
    with (tmp_path / "more.jsonl").open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in [poor, *data[1:4]])
    ran = octocp("dataset", "merge", tmp_path / "more.jsonl", whole, "-o", tmp_path / "merged")
    assert (ran.code, ran.out) == (
        0,
        f"8 rows written to {tmp_path / 'merged'}; 4 were of problems that it has already.\n",
    )
    assert list(violations(tmp_path / "merged")) == []
    kept = {row["id"]: row for row in rows(tmp_path / "merged")}
    assert kept["poor"]["double_check"] is not None
    assert "is there already and not empty" in refused("dataset", "merge", whole, "-o", tmp_path / "merged")


def test_merging_what_contradicts_itself_is_refused(whole: Path, tmp_path: Path) -> None:
    data = next(row for row in rows(whole) if row["status"] == "optimal")
    wrong = data | {"value": data["value"] + 9, "makespan": data["makespan"] + 9, "span": data["span"] + 9}
    wrong |= {"lower_bound": data["lower_bound"] + 9}
    (tmp_path / "wrong.jsonl").write_text(json.dumps(wrong) + "\n")
    assert "contradicts" in refused("dataset", "merge", whole, tmp_path / "wrong.jsonl", "-o", tmp_path / "merged")


def test_samples_are_stratified_and_repeat_themselves(whole: Path, tmp_path: Path) -> None:
    first = octocp("dataset", "sample", whole, "-n", "3", "--seed", "1").out
    assert len(first.splitlines()) == 3
    assert octocp("dataset", "sample", whole, "-n", "3", "--seed", "1").out == first
    assert octocp("dataset", "sample", whole, "-n", "4", "-o", tmp_path / "some.jsonl.gz").code == 0
    assert len(rows(tmp_path / "some.jsonl.gz")) == 4
    assert list(violations(tmp_path / "some.jsonl.gz")) == []


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("none.jsonl", None, "no such data set"),
        ("some.txt", "x", "is no data set"),
        ("bad.jsonl", "{]\n", "line 1: is not JSON"),
        ("list.jsonl", "[]\n", "line 1: is not a row"),
        ("bad.jsonl.gz", "not gzip", "cannot be read"),
        ("bad.parquet", "not parquet", "cannot be read"),
    ],
)
def test_what_is_no_data_set_is_one_line(name: str, content: str | None, told: str, tmp_path: Path) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    if content is not None:
        (tmp_path / name).write_text(content)
    for what in ("check", "stats", "sample"):
        assert told in refused("dataset", what, tmp_path / name)


def test_check_says_what_is_wrong_with_exit_code_1(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(rows(whole)[0] | {"layers": 9}) + "\n{}\n")
    ran = octocp("dataset", "check", tmp_path / "rows.jsonl")
    assert ran.code == 1
    assert len(ran.out.splitlines()) == 2
    assert "2 violations in 2 rows" in ran.err
    assert octocp("dataset", "check", whole).out == "Valid: 8 rows.\n"
