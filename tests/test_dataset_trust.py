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


def test_a_log_that_was_cut_short(copy: Path) -> None:
    lines = (copy / LOG).read_bytes().splitlines(keepends=True)
    (copy / LOG).write_bytes(b"".join(lines[:3]))
    views.write_jsonl(rows(copy), copy / "rows.jsonl.gz")
    assert any(f"{LOG}: has 3 rows, and 5 are asked for" in told for told in violations(copy))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{}", "is no manifest: digest is missing or no text"),
        ("[]", "is no manifest: digest is missing or no text"),
        ('{"digest": 1, "name": "x"}', "is no manifest: digest is missing or no text"),
        ("{", "is not JSON"),
        (None, "is missing; log.jsonl belongs to the spec that it names"),
    ],
)
def test_a_manifest_that_is_none(content: str | None, told: str, copy: Path) -> None:
    if content is None:
        (copy / MANIFEST).unlink()
    else:
        (copy / MANIFEST).write_text(content)
    assert [f"{copy / MANIFEST}: {told}"] == list(violations(copy))


def nested(depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = {}
    for _ in range(depth):
        inner = {"x": inner}
    return inner


@pytest.mark.parametrize("command", ["check", "stats", "sample", "merge"])
@pytest.mark.parametrize("what", ["nested", "deep", "nan", "infinity", "surrogate"])
def test_a_line_that_no_json_writer_writes_is_named(what: str, command: str, whole: Path, tmp_path: Path) -> None:
    good, data = rows(whole)[:2]
    instance = dict(data["instance"])
    if what in ("nested", "deep"):
        instance["model"] = nested(300 if what == "nested" else 20_000) if what == "nested" else "DEEP"
    elif what == "surrogate":
        instance["name"] = "a\ud800"
    else:
        instance["tick_us"] = float(what)
    text = json.dumps(data | {"instance": instance}).replace('"DEEP"', '{"x":' * 20_000 + "1" + "}" * 20_000)
    path = tmp_path / "odd.jsonl"
    path.write_text(f"{json.dumps(good)}\n{text}\n")
    output = ["-o", tmp_path / "merged"] if command == "merge" else []
    if command == "check":
        ran = octocp("dataset", "check", path)
        assert ran.code in (1, 2)
        told = ran.out + ran.err
    else:
        told = refused("dataset", command, path, *output)
    assert f"{path}: line 2: " in told
    assert not (tmp_path / "merged").exists()


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
    killed = tmp_path / ".merged.999999999.merging"
    killed.mkdir()
    running = tmp_path / f".merged.{os.getppid()}.merging"
    running.mkdir()
    merging.merge([whole], tmp_path / "merged")
    assert sorted(tmp_path.iterdir()) == sorted([running, tmp_path / "merged"])


# ---- folders ---------------------------------------------------------------------------------


def test_a_set_is_made_in_no_others_folder(whole: Path, tmp_path: Path) -> None:
    spec = spec_file(tmp_path, 5)
    before = sorted(whole.rglob("*"))
    for command in (["merge", whole], ["build", spec]):
        told = refused("dataset", *command, "-o", whole / "deep" / "er")
        assert f"lies in the folder of a data set, {whole}" in told
    assert "not empty" in refused("dataset", "merge", whole, "-o", whole)
    assert sorted(whole.rglob("*")) == before


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
