"""Builds that meet what they did not expect: edited logs, strange specs, clusters that are not there or go away."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataset_helpers import built, rows, spec_file
from octocp.dataset.build import State
from octocp.dataset.executors import Here, LostError, attempt, perform
from octocp.dataset.trust import check_payload
from terminal import refused

LOG = "log.jsonl"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "set"
    built(spec_file(folder.parent, 3), folder)
    return folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def edited(folder: Path, change: dict[str, Any], drop: tuple[str, ...] = ()) -> None:
    """Change the first row of a log as a hand would."""
    first, *others = (folder / LOG).read_text().splitlines()
    data = {key: value for key, value in (json.loads(first) | change).items() if key not in drop}
    (folder / LOG).write_text("\n".join([json.dumps(data), *others]) + "\n")


# ---- logs that were edited ---------------------------------------------------------------------


def test_what_a_hand_left_out_is_there_again(whole: Path, copy: Path) -> None:
    edited(copy, {}, drop=("heuristics", "double_check", "reason", "peak_memory_gb"))
    built(spec_file(copy.parent, 3), copy)
    first = rows(copy)[0]
    assert list(first) == list(rows(whole)[0])
    assert first["heuristics"] == first["peak_memory_gb"] == []


@pytest.mark.parametrize(
    "change", [{"peak_memory_gb": [10**30]}, {"seed": "x"}, {"seed": 2**31}, {"orders": [["\ud800"]]}, {"gap": 2}]
)
def test_a_value_that_no_row_has_is_named_with_its_line(change: dict[str, Any], copy: Path) -> None:
    edited(copy, change)
    told = refused("dataset", "build", spec_file(copy.parent, 3), "-o", copy, "-j", "1")
    assert f"{copy / LOG}: line 1" in told


def each(found: list[list[Any]], value: Any) -> list[list[Any]]:
    return [[value for _ in part] for part in found]


EDITS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "other ops": lambda row: {"orders": each(row["orders"], "F9.9")},
    "ops before the first": lambda row: {"orders": each(row["orders"], "F-1.0")},
    "no ops": lambda row: {"orders": each(row["orders"], "")},
    "other starts": lambda row: {"starts": each(row["starts"], 0)},
    "late": lambda row: {"starts": each(row["starts"], 2**62)},
    "fewer starts": lambda row: {"starts": row["starts"][:1]},
    "other devices": lambda row: {"placement": [999 for _ in row["placement"]]},
    "more stages": lambda _: {"partition": [1] * 50, "placement": [0] * 50},
    "empty stages": lambda row: {"partition": [0 for _ in row["partition"]]},
    "a better value": lambda row: {key: row[key] - 1 for key in ("value", "makespan")},
    "no plan": lambda _: {"value": None, "makespan": None},
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_second_proof_of_an_edited_plan_says_so(edit: str, whole: Path) -> None:
    row = next(row for row in rows(whole) if row["status"] == "optimal")
    done = attempt(perform, check_payload(row | EDITS[edit](row)))
    assert f"the plan of row {row['id']} is not one of its instance: " in done["failure"]
    assert "(octocp dataset check says what else is wrong)" in done["failure"]


def test_a_second_proof_of_an_edited_instance_says_so(whole: Path) -> None:
    row = rows(whole)[0]
    done = attempt(perform, check_payload(row | {"instance": row["instance"] | {"cluster": {"devices": 10**9}}}))
    assert done["failure"].startswith(f"{row['id']}: instance.cluster.devices")


# ---- specs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (r'licence: "MIT\nx: y"', "licence: "),
        (r'licence: ""', "licence: "),
        (r'description: "a \ud800"', "description: has text that is no Unicode"),
    ],
)
def test_text_that_breaks_the_card_is_refused(line: str, told: str, tmp_path: Path) -> None:
    path = spec_file(tmp_path, 3)
    path.write_text(path.read_text().replace("name: small\n", f"name: small\n{line}\n"))
    assert told in refused("dataset", "build", path, "-o", tmp_path / "set")
    assert not (tmp_path / "set").exists()


def test_text_that_breaks_the_card_is_refused_in_models(tmp_path: Path) -> None:
    model = {
        "format": "octocp.model/1",
        "name": "mine",
        "layers": ["A"] * 4,
        "kinds": {"A": {"forward_ms": 1, "backward_input_ms": 1}},
        "provenance": {"kind": "derived", "source": "a \ud800"},
    }
    (tmp_path / "mine.json").write_text(json.dumps(model))
    family = {"name": "f", "source": "profiles", "count": 1, "models": ["mine.json"]}
    spec = {"format": "octocp.dataset/1", "name": "x", "families": [family]}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    told = refused("dataset", "build", tmp_path / "spec.json", "-o", tmp_path / "set")
    assert "families[0].models[0]: mine.json has text that is no Unicode" in told
    assert not (tmp_path / "set").exists()


def test_a_licence_is_text_in_the_head_of_the_card(tmp_path: Path) -> None:
    """`no` is a truth value in YAML."""
    import yaml

    path = spec_file(tmp_path, 1)
    path.write_text(path.read_text().replace("name: small\n", "name: small\nlicence: No\n"))
    built(path, tmp_path / "set")
    head = (tmp_path / "set" / "README.md").read_text().split("---")[1]
    assert yaml.safe_load(head)["license"] == "no"


def test_progress_goes_on_to_the_writing(tmp_path: Path) -> None:
    """After the rows, it does not begin again with what is to be built."""
    steps: list[str] = []

    def note(state: State) -> None:
        if not steps or steps[-1] != state.step:
            steps.append(state.step)

    built(spec_file(tmp_path, 2), tmp_path / "set", Here(), on_state=note)
    assert steps == ["instances", "rows", "writing"]
    from terminal import octocp

    told = octocp("dataset", "build", tmp_path / "spec.yaml", "-o", tmp_path / "set", "-j", "1").err
    assert "2 instances, on" not in told.partition("rows 2/2")[2]


def test_a_folder_of_something_else_stays_as_it_is_by_whatever_path(tmp_path: Path) -> None:
    """`photos/missing/..` is no folder until it is made."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    told = refused("dataset", "build", spec_file(tmp_path, 1), "-o", tmp_path / "photos/missing/../../photos")
    assert "is not empty and holds no data set that was being built: cat.jpg" in told
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.jpg"]


def test_a_set_of_another_spec_is_known_by_whatever_path(copy: Path) -> None:
    told = refused("dataset", "build", spec_file(copy.parent, 2), "-o", copy / "missing" / ".." / ".." / copy.name)
    assert "was begun for another spec" in told
    assert not (copy / "missing").exists()


# ---- clusters ----------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["tls", "ucx"])
def test_a_scheme_that_dask_cannot_use_here_is_one_line(scheme: str, tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    command = [sys.executable, "-m", "octocp", "dataset", "build", str(spec_file(tmp_path, 1)), "-o"]
    began = time.monotonic()
    ran = subprocess.run(
        [*command, str(tmp_path / "set"), "--dask", f"{scheme}://127.0.0.1:1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert f"no Dask scheduler answers at {scheme}://127.0.0.1:1" in ran.stderr
    assert time.monotonic() - began < 40


def test_what_takes_a_connection_and_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """E.g. a web server that waits for the rest of a request."""
    pytest.importorskip("distributed")
    from octocp.dataset import on_dask
    from octocp.errors import InputError

    monkeypatch.setattr(on_dask, "CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(on_dask, "GRACE_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(InputError, match=r"no Dask scheduler answers at .*: something is there, and does not"):
            on_dask.OnDask(address)


def test_a_workers_address_is_no_schedulers(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    code = (
        "import asyncio; from distributed import Scheduler, Worker\n"
        "from octocp.dataset import on_dask\n"
        "async def main():\n"
        "    async with Scheduler(host='127.0.0.1', port=0, dashboard=False) as scheduler:\n"
        "        async with Worker(scheduler.address, dashboard=False) as worker:\n"
        "            await on_dask._reach(scheduler.address)\n"
        "            try:\n"
        "                await on_dask._reach(worker.address)\n"
        "            except ConnectionError as error:\n"
        "                print(error)\n"
        "asyncio.run(main())"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ran.stdout == "a Worker does\n", ran.stderr


def test_a_scheduler_that_goes_away_is_no_failure_of_a_row(whole: Path, tmp_path: Path) -> None:
    """Without workers it says that it waits; killed, it says that it is gone; the same command then goes on."""
    pytest.importorskip("distributed")
    from octocp.dataset.on_dask import OnDask

    code = (
        "import asyncio; from distributed import Scheduler\n"
        "async def main():\n"
        "    async with Scheduler(host='127.0.0.1', port=0, dashboard=False) as scheduler:\n"
        "        print(scheduler.address, flush=True)\n"
        "        await asyncio.sleep(300)\n"
        "asyncio.run(main())"
    )
    scheduler = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert scheduler.stdout is not None
    try:
        address = scheduler.stdout.readline().strip()
        on_dask = OnDask(address)
        try:
            assert on_dask.waits == f"The Dask cluster at {address} has no workers; tasks wait until it has."

            def gone(state: State) -> None:
                if state.step == "rows":
                    scheduler.kill()

            with pytest.raises(LostError, match=f"the Dask scheduler at {address} is gone; the same command goes on"):
                built(spec_file(tmp_path, 3), tmp_path / "set", on_dask, on_state=gone)
        finally:
            on_dask.close()
    finally:
        scheduler.kill()
        scheduler.communicate()
    built(spec_file(tmp_path, 3), tmp_path / "set")
    assert [row["value"] for row in rows(tmp_path / "set")] == [row["value"] for row in rows(whole)]


@pytest.mark.parametrize(
    ("setting", "right"),
    [
        *((f"{prefix}timeout_min={value}", "a whole number, 1 to 999999999")
          for prefix in ("", "local_") for value in ("0", "-1", "x", "1.5", "9" * 10)),
        ("mem_gb=0", "a whole number, 1 to 999999999"),
        ("cpus_per_task=0", "a whole number, 1 to 999999999"),
        ("gpus_per_node=-1", "a whole number, 0 to 999999999"),
        ("tasks_per_node=2", "1: a task is one process"),
        ("local_nodes=2", "1: a task is one process"),
    ],
)  # fmt: skip
def test_numbers_that_no_job_can_have_are_refused(setting: str, right: str, tmp_path: Path) -> None:
    told = slurm_refused(f"cluster=local,{setting}", tmp_path)
    key, _, value = setting.partition("=")
    assert f"--slurm: {key} is {value} ({right})" in told


def test_a_number_of_thousands_of_digits_is_one_short_line(tmp_path: Path) -> None:
    told = slurm_refused(f"cluster=local,timeout_min={'9' * 5000}", tmp_path)
    assert "timeout_min is 999" in told
    assert len(told) < 200


@pytest.mark.parametrize("setting", ["local_setup=x", "setup=x"])
def test_what_a_setting_cannot_say_is_refused(setting: str, tmp_path: Path) -> None:
    """Submitit wants a list there, and takes a word for one of letters."""
    key, _, _ = setting.partition("=")
    assert f"--slurm: {key} takes more than a word (without it)" in slurm_refused(f"cluster=local,{setting}", tmp_path)


def slurm_refused(settings: str, folder: Path) -> str:
    """Return why a build with these settings is refused; it leaves nothing."""
    pytest.importorskip("submitit")
    told = refused("dataset", "build", spec_file(folder, 1), "-o", folder / "set", "--slurm", settings)
    assert not (folder / "set").exists()
    return told


def test_whatever_submitit_raises_at_a_job_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    from submitit.local import local

    from octocp.dataset.on_slurm import OnSlurm
    from octocp.errors import InputError

    def fails(*_: Any, **__: Any) -> None:
        raise ValueError("invalid literal\nfor int()")

    monkeypatch.setattr(local, "start_controller", fails)
    executor = OnSlurm(tmp_path / "slurm", {"cluster": "local"}, minutes=1)
    with pytest.raises(InputError, match=r"^--slurm: no job could be submitted: invalid literal$"):
        next(executor.run([{"id": "a"}]))
