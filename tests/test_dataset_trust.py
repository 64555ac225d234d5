"""What `check` finds in rows and files that were changed by hand; `merge` and folders that are not there to be used."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataset_helpers import built, rows, spec_file
from octocp.dataset import merging, parquet, views
from octocp.dataset.checking import PLAN_COLUMNS, violations
from octocp.dataset.store import unwritable
from octocp.errors import InputError
from terminal import octocp, refused

LOG, MANIFEST = "log.jsonl", "manifest.json"
EMPTY = {key: [] if key in ("partition", "placement", "orders", "starts", "ends", "peak_memory_gb") else None
         for key in PLAN_COLUMNS}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "set"
    built(spec_file(folder.parent, 5), folder)
    return folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


@pytest.fixture(scope="module")
def found(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Return what is wrong with the set's first row when columns of it are changed."""
    data = next(row for row in rows(whole) if row["status"] == "optimal")
    path = tmp_path_factory.mktemp("changed") / "rows.jsonl"

    def changed(**columns: Any) -> str:
        path.write_text(json.dumps({**data, **columns}) + "\n")
        return "\n".join(violations(path))

    assert changed() == ""
    changed.data = data  # type: ignore[attr-defined]
    return changed


# ---- rows ------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", [*PLAN_COLUMNS, "lower_bound"])
def test_a_column_of_a_plan_that_is_missing(column: str, found: Callable[..., str]) -> None:
    assert f"{column}: is missing; the row is optimal" in found(**{column: EMPTY.get(column)})


def test_a_plan_of_what_has_none(found: Callable[..., str]) -> None:
    told = found(status="infeasible", reason="so it is said")
    for column in (*PLAN_COLUMNS, "lower_bound"):
        assert f"{column}: is " in told
    assert "has a plan of an infeasible instance" in told
    none = EMPTY | {"status": "unknown", "double_check": None}
    assert "reason: is missing; the row is unknown" in found(**none)
    assert "a known schedule is better than the plan" in found(**none, reason="no plan found")


def test_known_schedules_are_there_once_and_as_they_are(found: Callable[..., str]) -> None:
    known: list[dict[str, Any]] = found.data["heuristics"]  # type: ignore[attr-defined]
    assert f"heuristics: {known[1]['method']} is there 0 times, not once" in found(heuristics=[known[0], *known[2:]])
    assert f"heuristics: {known[1]['method']} is there 2 times, not once" in found(heuristics=[*known, known[1]])
    assert "heuristics: gpipe is there 0 times" in found(heuristics=[])
    has = next(index for index, one in enumerate(known) if one["value"] is not None)
    other = [*known[:has], known[has] | {"rule": "by dice"}, *known[has + 1 :]]
    assert "by dice; run anew, it is feasible" in found(heuristics=other)
    dice = [one | {"rule": "by dice"} if one["value"] is None else one for one in known]
    assert "by dice; run anew, it is " in found(heuristics=dice)


def test_known_schedules_of_another_version_are_there_once(found: Callable[..., str], tmp_path: Path) -> None:
    data = found.data  # type: ignore[attr-defined]
    versions = data["versions"] | {"octocp": "0.0.1"}
    assert found(versions=versions) == ""
    assert "heuristics: is empty" in found(versions=versions, heuristics=[])
    known = data["heuristics"]
    assert f"{known[0]['method']} is there 2 times" in found(versions=versions, heuristics=[known[0], *known])
    (tmp_path / "rows.jsonl").write_text(json.dumps(data | {"versions": versions}) + "\n")
    ran = octocp("dataset", "check", tmp_path / "rows.jsonl")
    assert (ran.code, ran.out) == (0, "Valid: 1 rows.\n")
    assert "1 rows are of another version, so that known schedules of theirs were not run anew" in ran.err


def test_a_violation_is_one_line_whatever_a_row_is_called(found: Callable[..., str], tmp_path: Path) -> None:
    odd = found.data | {"id": "a\nb\x1b[31m", "layers": 9}  # type: ignore[attr-defined]
    (tmp_path / "rows.jsonl").write_text(json.dumps(odd) + "\n")
    (told,) = octocp("dataset", "check", tmp_path / "rows.jsonl").out.splitlines()
    assert told.isprintable()
    assert "layers: is 9" in told


def test_a_row_that_is_too_large_for_the_machine(found: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("octocp.dataset.checking.canonical_hash", full)
    assert "instance: is too large to be looked at on this machine" in found()


def test_devices_are_counted_in_the_instance(found: Callable[..., str]) -> None:
    for devices in (0, 10**9):
        assert f"devices: is {devices}; the instance has" in found(devices=devices)


# ---- files -----------------------------------------------------------------------------------


def test_rows_of_a_view_are_there_once(copy: Path) -> None:
    data = rows(copy)
    views.write_jsonl([*data, data[2]], copy / "rows.jsonl.gz")
    (told,) = violations(copy)
    assert f"rows.jsonl.gz: has 1 rows more than once, the first at {copy}" in told
    assert data[2]["id"] in told
    views.write_jsonl(data, copy / "rows.jsonl.gz")
    assert list(violations(copy)) == []
    if parquet.available():
        shutil.copy(copy / "shards" / "part-00000.parquet", copy / "shards" / "part-00001.parquet")
        (told,) = violations(copy)
        assert f"shards: has {len(data)} rows more than once" in told


def test_shards_that_are_published_without_a_log(copy: Path) -> None:
    pytest.importorskip("pyarrow")
    (copy / MANIFEST).unlink()
    (copy / LOG).unlink()
    assert list(violations(copy)) == []
    shutil.copy(copy / "shards" / "part-00000.parquet", copy / "shards" / "part-00001.parquet")
    (told,) = violations(copy)
    assert "shards: has 5 rows more than once" in told
    (copy / "shards" / "part-00001.parquet").unlink()
    views.write_jsonl(rows(copy)[1:], copy / "rows.jsonl.gz")
    (told,) = violations(copy)
    assert "shards: differs from rows.jsonl.gz in 1 rows" in told


def test_shards_that_cannot_be_read_here_are_told_of(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (copy / "shards").mkdir(exist_ok=True)
    (copy / "shards" / "part-00000.parquet").touch()
    monkeypatch.setattr(parquet, "available", lambda: False)
    ran = octocp("dataset", "check", copy)
    assert ran.out == "Valid: 5 rows.\n"
    assert "shards: was not looked at, since pyarrow is not installed" in ran.err


def test_a_log_that_is_gone(copy: Path) -> None:
    (copy / LOG).unlink()
    assert list(violations(copy)) == [f"{copy / LOG}: is missing; {MANIFEST} belongs to it"]


def test_a_log_that_was_cut_short(copy: Path) -> None:
    lines = (copy / LOG).read_bytes().splitlines(keepends=True)
    (copy / LOG).write_bytes(b"".join(lines[:3]))
    views.write_jsonl(rows(copy), copy / "rows.jsonl.gz")
    assert any(f"{LOG}: has 3 rows, and 5 are asked for" in told for told in violations(copy))
    # Without views it may be a build that was ended.
    (copy / "rows.jsonl.gz").unlink()
    shutil.rmtree(copy / "shards", ignore_errors=True)
    ran = octocp("dataset", "check", copy)
    assert (ran.code, ran.out) == (0, "Valid: 3 rows.\n")
    assert f"{LOG}: has 3 of 5 rows; the build that was ended makes the others" in ran.err


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{}", "is no manifest: digest is missing or no text"),
        ("[]", "is no manifest: digest is missing or no text"),
        ('{"digest": 1, "name": "x"}', "is no manifest: digest is missing or no text"),
        ('{"digest": "x", "name": "x"}', "is no manifest: count is missing or no whole number"),
        ('{"digest": "x", "name": "x", "count": true}', "is no manifest: count is missing or no whole number"),
        ('{"digest": "x", "name": "x\\n", "count": 5}', "is no manifest: name is no line of text"),
        ("{", "is not JSON"),
        ("[" * 5000, "is not JSON"),
        ('"\\ud800"', "is not JSON"),
        (None, "is missing; log.jsonl belongs to the spec that it names"),
    ],
)
def test_a_manifest_that_is_none(content: str | None, told: str, copy: Path) -> None:
    if content is None:
        (copy / MANIFEST).unlink()
    else:
        (copy / MANIFEST).write_text(content)
    assert [f"{copy / MANIFEST}: {told}"] == list(violations(copy))
    if content is not None:
        told = f"{copy / MANIFEST}: {told}"
        before = sorted(copy.iterdir())
        assert f"{told} (a new folder for -o)" in refused("dataset", "build", spec_file(copy.parent, 5), "-o", copy)
        assert told in refused("dataset", "merge", copy, "-o", copy.parent / "merged")
        assert sorted(copy.iterdir()) == before


@pytest.mark.parametrize("spec", ["x", [1], {"licence": 5}, {"description": 5}, {"licence": "MIT\nx: y"}])
def test_a_manifest_with_a_spec_that_is_none(spec: Any, copy: Path) -> None:
    manifest = json.loads((copy / MANIFEST).read_text())
    manifest["spec"] = manifest["spec"] | spec if isinstance(spec, dict) else spec
    (copy / MANIFEST).write_text(json.dumps(manifest))
    assert f"{copy / MANIFEST}: spec: " in refused("dataset", "merge", copy, "-o", copy.parent / "merged")
    (told,) = violations(copy)
    assert f"{copy / MANIFEST}: spec: " in told


def nested(depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = {}
    for _ in range(depth):
        inner = {"x": inner}
    return inner


@pytest.mark.parametrize("command", ["check", "stats", "sample", "merge"])
@pytest.mark.parametrize("what", ["nested", "deep", "nan", "infinity", "1e999", "surrogate", "raw surrogate"])
def test_a_line_that_no_json_writer_writes_is_named(what: str, command: str, whole: Path, tmp_path: Path) -> None:
    good, data = rows(whole)[:2]
    instance = dict(data["instance"])
    if what in ("nested", "deep"):
        instance["model"] = nested(300 if what == "nested" else 20_000) if what == "nested" else "DEEP"
    elif "surrogate" in what:
        instance["name"] = "a\ud800"
    else:
        instance["tick_us"] = float(what)
    text = json.dumps(data | {"instance": instance}, ensure_ascii=what != "raw surrogate")
    text = text.replace('"DEEP"', '{"x":' * 20_000 + "1" + "}" * 20_000)
    if what == "1e999":
        text = text.replace("Infinity", what)
    path = tmp_path / "odd.jsonl"
    path.write_text(f"{json.dumps(good)}\n{text}\n", errors="surrogatepass")
    output = ["-o", tmp_path / "merged"] if command == "merge" else []
    if command == "check":
        ran = octocp("dataset", "check", path)
        assert ran.code in (1, 2)
        told = ran.out + ran.err
    else:
        told = refused("dataset", command, path, *output)
    assert f"{path}: line 2: " in told
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize("odd", ["NaN", "1e999", '"\\ud800"'])
def test_an_instance_in_parquet_is_json_too(odd: str, whole: Path, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    data = rows(whole)[0]
    text = json.dumps(data["instance"] | {"description": "ODD"}).replace('"ODD"', odd)
    table = pa.Table.from_pylist([data | {"instance": text}], schema=parquet.schema())
    pq.write_table(table, tmp_path / "odd.parquet")
    for command in (["stats"], ["sample"], ["merge", "-o", tmp_path / "merged"]):
        assert "row 1: mix-00000: instance: has " in refused(
            "dataset", command[0], tmp_path / "odd.parquet", *command[1:]
        )
    assert "instance: has " in "\n".join(violations(tmp_path / "odd.parquet"))


# ---- merge -----------------------------------------------------------------------------------


def test_other_problems_of_the_same_name_are_all_kept(whole: Path, tmp_path: Path) -> None:
    data = rows(whole)
    longest = "x" * 200
    for number, row in enumerate(data):
        (tmp_path / f"{number}.jsonl").write_text(json.dumps(row | {"id": longest}) + "\n")
    sources = [tmp_path / f"{number}.jsonl" for number in range(len(data))]
    taken = data[0] | {"id": f"{'x' * 191}-{data[1]['hash'][:8]}"}
    sources[0].write_text(json.dumps(taken) + "\n")
    octocp("dataset", "merge", *sources, "-o", tmp_path / "merged")
    merged = rows(tmp_path / "merged")
    assert sorted(row["hash"] for row in merged) == sorted(row["hash"] for row in data)
    assert len({row["id"] for row in merged}) == len(data)
    assert list(violations(tmp_path / "merged")) == []


def test_a_hash_that_is_not_the_instances_is_not_merged(whole: Path, tmp_path: Path) -> None:
    data = rows(whole)[0]
    (tmp_path / "wrong.jsonl").write_text(json.dumps(data | {"hash": "0" * 32}) + "\n")
    told = refused("dataset", "merge", tmp_path / "wrong.jsonl", "-o", tmp_path / "merged")
    assert f"{data['id']}: hash: is {'0' * 32} ({data['hash']}, that of the instance)" in told


def test_a_merge_that_fails_leaves_nothing(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise InputError("cannot be written: No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(merging, "write_views", full)
        with pytest.raises(InputError, match="No space left"):
            merging.merge([whole], tmp_path / "merged")
    assert list(tmp_path.iterdir()) == []
    for killed in (999999999, 10**30):
        (tmp_path / f".merged.{killed}.merging").mkdir()
    running = tmp_path / f".merged.{os.getppid()}.merging"
    running.mkdir()
    # Of a process before, which had the same number as this one.
    shutil.copytree(whole, tmp_path / f".merged.{os.getpid()}.merging")
    views.write_jsonl(rows(whole)[:1], tmp_path / "one.jsonl")
    merging.merge([tmp_path / "one.jsonl"], tmp_path / "merged")
    assert sorted(tmp_path.iterdir()) == sorted([running, tmp_path / "merged", tmp_path / "one.jsonl"])
    assert len(rows(tmp_path / "merged")) == 1


def test_what_a_merge_cannot_write_has_the_folders_name(whole: Path, tmp_path: Path, monkeypatch: Any) -> None:
    def full(folder: Path, *_: Any) -> None:
        raise unwritable(folder / "rows.jsonl.gz", OSError(28, "x"))

    monkeypatch.setattr(merging, "write_views", full)
    told = refused("dataset", "merge", whole, "-o", tmp_path / "merged")
    problem = "cannot be written: No space left on device (free space, or another folder for -o)"
    assert f"{tmp_path / 'merged' / 'rows.jsonl.gz'}: {problem}" in told


@pytest.mark.parametrize("name", [".", "x" * 250, "[a]*", "\udcff", "a\nb"])
def test_a_merge_into_a_folder_of_any_name(
    name: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert octocp("dataset", "merge", whole, "-o", name).code == 0
    assert len(rows(Path(name) if name != "." else tmp_path / "here")) == 5
    assert not list(tmp_path.rglob("*.merging"))


# ---- folders ---------------------------------------------------------------------------------


def test_a_set_is_made_in_no_others_folder(whole: Path, tmp_path: Path) -> None:
    spec = spec_file(tmp_path, 5)
    before = sorted(whole.rglob("*"))
    for command in (["merge", whole], ["build", spec]):
        told = refused("dataset", *command, "-o", whole / "deep" / "er")
        assert f"lies in the folder of a data set, {whole}" in told
    assert "not empty" in refused("dataset", "merge", whole, "-o", whole)
    assert sorted(whole.rglob("*")) == before
    published = tmp_path / "published"
    (published / "shards").mkdir(parents=True)
    shutil.copy(whole / "rows.jsonl.gz", published)
    for command in (["merge", whole], ["build", spec]):
        told = refused("dataset", *command, "-o", published / "new")
        assert f"lies in the folder of a data set, {published}" in told
    told = refused("dataset", "sample", whole, "-o", published / "some.jsonl")
    assert f"is in a data set's folder: {published}" in told
    assert sorted(path.name for path in published.iterdir()) == ["rows.jsonl.gz", "shards"]


@pytest.mark.parametrize("more", [(), ("--slurm", "cluster=local")])
def test_a_folder_of_something_else_stays_as_it_is(more: tuple[str, ...], tmp_path: Path) -> None:
    spec = spec_file(tmp_path, 5)
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "cat.jpg").touch()
    assert "is not empty and holds no data set that was being built: cat.jpg" in refused(
        "dataset", "build", spec, "-o", folder, *more
    )
    assert [path.name for path in folder.iterdir()] == ["cat.jpg"]
    (folder / "cat.jpg").rename(folder / MANIFEST)  # of something else
    (folder / MANIFEST).write_text('{"name": "app"}')
    assert f"{folder / MANIFEST}: is no manifest" in refused("dataset", "build", spec, "-o", folder, *more)
    assert [path.name for path in folder.iterdir()] == [MANIFEST]


@pytest.mark.parametrize("more", [(), ("--slurm", "cluster=local")])
def test_a_folder_of_another_spec_stays_as_it_is(more: tuple[str, ...], copy: Path) -> None:
    if more:
        pytest.importorskip("submitit")
    (copy / "lock").unlink()
    before = sorted(copy.iterdir())
    told = refused("dataset", "build", spec_file(copy.parent, 6), "-o", copy, *more)
    assert "was begun for another spec" in told
    assert sorted(copy.iterdir()) == before


def test_links_that_go_round_in_circles(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    assert "cannot be written" in refused("dataset", "build", spec_file(tmp_path, 5), "-o", tmp_path / "one")
    assert "cannot be written" in refused("dataset", "merge", whole, "-o", tmp_path / "one")
    assert "cannot be written" in refused("dataset", "sample", whole, "-o", tmp_path / "one" / "x.jsonl")


def test_a_build_killed_before_its_manifest_was_there(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "lock").touch()
    (folder / f".{MANIFEST}.tmp").write_text("{")
    built(spec_file(tmp_path, 5), folder)
    assert len(rows(folder)) == 5
