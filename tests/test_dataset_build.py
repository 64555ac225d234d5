"""Builds that meet what they did not expect: edited logs, strange specs, clusters that are not there or go away."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dataset_helpers import built, rows, spec_file
from octocp.dataset.build import State
from octocp.dataset.executors import Here, LostError
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


@pytest.mark.parametrize("change", [{"peak_memory_gb": [10**30]}, {"seed": "x"}, {"orders": [["\ud800"]]}, {"gap": 2}])
def test_a_value_that_no_row_has_is_named_with_its_line(change: dict[str, Any], copy: Path) -> None:
    edited(copy, change)
    told = refused("dataset", "build", spec_file(copy.parent, 3), "-o", copy, "-j", "1")
    assert f"{copy / LOG}: line 1" in told


def test_a_second_proof_of_an_edited_plan_says_so(copy: Path) -> None:
    number = next(n for n, row in enumerate(rows(copy)) if row["status"] == "optimal")
    lines = (copy / LOG).read_text().splitlines()
    data = json.loads(lines[number])
    lines[number] = json.dumps(data | {"orders": [["F9.9" for _ in order] for order in data["orders"]]})
    (copy / LOG).write_text("\n".join(lines) + "\n")
    with pytest.raises(Exception, match=r"the plan of row .* is not one of its instance") as told:
        built(spec_file(copy.parent, 3), copy, double_check=True)
    assert "octocp dataset check says what is wrong" in str(told.value)


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


@pytest.mark.parametrize("setting", ["timeout_min=0", "timeout_min=x", "mem_gb=0", "cpus_per_task=0"])
def test_no_time_and_no_memory_are_refused(setting: str, tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    told = refused(
        "dataset", "build", spec_file(tmp_path, 1), "-o", tmp_path / "set", "--slurm", f"cluster=local,{setting}"
    )
    key, _, value = setting.partition("=")
    assert f"--slurm: {key} is {value} (a whole number, at least 1)" in told
    assert not (tmp_path / "set").exists()
