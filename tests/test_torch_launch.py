"""The processes of `octocp run`: what is progress, who ends whom, Ctrl-C at any time, and torchrun's processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

import tiny
import torch_plans
from octocp.errors import InputError
from octocp.schema import Plan
from octocp.schema.files import write_plan
from octocp.torch import launch
from octocp.torch.actions import Action
from octocp.torch.board import Board, Phase, Post
from octocp.torch.runner import Job
from octocp.torch.sources import Source
from octocp.torch.user_code import words
from terminal import refused

OCTOCP = [sys.executable, "-m", "octocp"]
# Layers whose first and last one note in files which process runs them, and take a while.
USERS = """
import os
import time
from pathlib import Path

import torch
from torch import nn

class Lasting(nn.Linear):
    def forward(self, x):
        Path(f"{os.getpid()}.pid").touch()
        time.sleep(self.seconds)
        return super().forward(x)

def lasting(seconds=0.4):
    layers = [nn.Linear(4, 4) for _ in range(4)]
    for index in (0, 3):
        layers[index] = Lasting(4, 4)
        layers[index].seconds = seconds
    return layers, torch.randn(2, 4)

def hanging():
    return lasting(1000)

class Keeps(nn.Linear):
    def forward(self, x):
        import ctypes
        Path(f"{os.getpid()}.pid").touch()
        ctypes.PyDLL(None).sleep(1000)  # with Python's lock held

def keeping():
    return [Keeps(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), Keeps(4, 4)], torch.randn(2, 4)

def talking():
    print("hello")
    return lasting(0)

class Raises(nn.Linear):
    def forward(self, x):
        raise ValueError("no such luck")

def raising():
    return [*lasting(0)[0][:3], Raises(4, 4)], torch.randn(2, 4)
"""


# Those of a test, ended with it.
LAUNCHERS: list[subprocess.Popen[str]] = []


def plan(microbatches: int = 4) -> Plan:
    return torch_plans.heuristic_plan(tiny.instance([(1, 1, 1)] * 4, microbatches=microbatches), "1f1b")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    LAUNCHERS.clear()
    folder = tmp_path / "a folder, 100%"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    (folder / "slow_layers.py").write_text(USERS)
    write_plan(plan(), folder / "mine.plan.json")
    yield folder
    for launcher in LAUNCHERS:
        launcher.kill()
        launcher.communicate()
    for process in pids(folder):
        assert not alive(process), "outlives its test"


def pids(folder: Path) -> list[int]:
    return [int(path.stem) for path in folder.glob("*.pid")]


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    # A zombie is one that nobody has asked after, as in a container without an init.
    stat = Path(f"/proc/{process}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def started(*arguments: str) -> subprocess.Popen[str]:
    command = [*OCTOCP, "run", "mine.plan.json", *arguments]
    # A session of its own is a terminal's group of processes: Ctrl-C reaches all of them.
    LAUNCHERS.append(
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    )
    return LAUNCHERS[-1]


def running(folder: Path, ranks: int = 2) -> list[int]:
    """Wait until ranks are at work."""
    deadline = time.monotonic() + 120
    while len(pids(folder)) < ranks:
        assert time.monotonic() < deadline
        assert all(launcher.poll() is None for launcher in LAUNCHERS), LAUNCHERS[-1].communicate()
        time.sleep(0.05)
    return pids(folder)


def gone(processes: list[int], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(alive, processes))


# ---- progress --------------------------------------------------------------------------------


def test_a_run_that_goes_on_may_take_longer_than_the_timeout(here: Path) -> None:
    """Two steps of eight slow actions each, of which no more than two run at a time."""
    (outcome,) = launch.launch([Job(plan(), Source("slow_layers:lasting"), check=False)], timeout_s=2.5)
    assert 2 * outcome.wall_ms[0] > 2500


def test_a_run_that_hangs_is_ended_and_says_where(here: Path) -> None:
    with pytest.raises(InputError) as error:
        launch.launch([Job(plan(), Source("slow_layers:hanging"), check=False)], timeout_s=1)
    assert str(error.value).startswith("no rank got any further for 1 s: rank 0 at the beginning of step 1 of 2")
    assert "--timeout" in str(error.value)
    assert gone(running(here, ranks=1))


def test_what_layers_print_is_not_in_the_report(here: Path) -> None:
    process = started("--module", "slow_layers:talking", "--steps", "1", "--json")
    out, told = process.communicate(timeout=100)
    assert json.loads(out)["ran"]["module"] == "slow_layers:talking"
    assert "hello" in told


def test_the_board_tells_where_ranks_are() -> None:
    import multiprocessing

    board = Board(multiprocessing.get_context("spawn"), 6)
    posts = [board.post(rank) for rank in range(6)]
    assert board.where(0) == "starting"
    for post in posts:
        assert not board.all_joined()
        post.at(Phase.building)
    assert board.all_joined()
    seen = board.snapshot()
    posts[0].alive()
    assert board.snapshot() != seen
    posts[0].at(Phase.step, 2, 3)
    assert board.where(0) == "at the beginning of step 2 of 3"
    posts[0].begins(Action(1, "W", 7))
    assert board.where(0) == "computing 1W7 in step 2 of 3"
    posts[0].ends()
    assert board.where(0) == "waiting after 1W7 in step 2 of 3"
    posts[5].at(Phase.step, 1, 3)
    posts[5].begins(Action(0, "F", 0))
    assert board.everywhere().startswith("rank 5 computing 0F0 in step 1 of 3, rank 0 waiting after 1W7")
    assert board.everywhere().endswith("and 2 more")
    Post.unwatched().begins(Action(0, "F", 0))


def test_what_was_raised_is_worded_whatever_it_is() -> None:
    error = RuntimeError("round\nand round")
    error.__cause__ = error
    assert words(error) == "failed: RuntimeError: round and round"
    assert words(SystemExit()) == "called sys.exit()"
    assert words(KeyError()) == "failed: KeyError"
    assert len(words(ValueError("x" * 10_000))) < 600


# ---- who ends whom ---------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="the signals are Linux's")
@pytest.mark.parametrize("layers", ["lasting", "keeping"])
def test_ranks_end_with_a_launcher_that_is_killed(here: Path, monkeypatch: pytest.MonkeyPatch, layers: str) -> None:
    # What is killed can leave its folder.
    (here / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(here / "tmp"))
    process = started("--module", f"slow_layers:{layers}", "--steps", "10000")
    ranks = running(here, ranks=1 if layers == "keeping" else 2)
    process.kill()
    _, told = process.communicate()
    assert gone(ranks)
    assert told == ""


@pytest.mark.parametrize("folder", ["tmp", "x" * 120])
def test_a_launcher_that_is_terminated_ends_its_ranks(here: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    """In the second folder, whose name is too long for a socket, there can be no fork server."""
    (here / folder).mkdir()
    monkeypatch.setenv("TMPDIR", str(here / folder))
    process = started("--module", "slow_layers:lasting", "--steps", "10000", "--trace", "run.json")
    ranks = running(here)
    process.terminate()
    out, told = process.communicate(timeout=60)
    assert (process.returncode, out, told) == (143, "", "octocp: terminated\n")
    assert gone(ranks)
    assert not list((here / folder).glob("octocp-*"))
    assert not list(here.glob("*run.json*"))


@pytest.mark.parametrize("seconds", [1.0, 2.0, 3.5, 6.0])
def test_ctrl_c_is_one_line_at_any_time(here: Path, seconds: float) -> None:
    process = started("--module", "slow_layers:lasting", "--steps", "10000")
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    out, told = process.communicate(timeout=60)
    assert (process.returncode, out, told) == (130, "", "octocp: interrupted\n")
    assert gone(pids(here))


# ---- torchrun --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RANK": "abc"}, "RANK: is 'abc' (a whole number from 0 to 1"),
        ({"RANK": "2"}, "RANK: is 2 (a whole number from 0 to 1"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE: is 0 (a whole number from 1"),
        ({"WORLD_SIZE": "3"}, "torchrun started 3 processes (--nproc-per-node 2"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK: is '-1'"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR: is not set, though RANK is"),
        ({"MASTER_PORT": ""}, "MASTER_PORT: is not set, though RANK is"),
        ({"MASTER_PORT": "many"}, "MASTER_PORT: is 'many' (a whole number from 0 to 65535"),
    ],
)
def test_wrong_variables_are_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
) -> None:
    right = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    for name, value in {**right, **variables}.items():
        monkeypatch.setenv(name, value)
    line = refused("run", "mine.plan.json")
    assert said in line
    assert "without torchrun, unset RANK and WORLD_SIZE" in line


def under_torchrun(*arguments: str) -> tuple[int, str, list[str]]:
    """Run, and return the exit code, stdout, and OctoCP's own lines of stderr."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "octocp", "run"]
    ran = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=200, check=False, env=environment()
    )
    return ran.returncode, ran.stdout, [line for line in ran.stderr.splitlines() if line.startswith("octocp: ")]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def test_torchruns_processes_run_a_plan_and_one_of_them_reports(here: Path) -> None:
    code, out, told = under_torchrun("mine.plan.json", "--steps", "1", "--trace", "run.json")
    assert (code, told) == (0, [])
    assert out.count("gradients equal to those of one process") == 1
    assert (here / "run.json").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.plan.json"], "nowhere.plan.json: no such file"),
        (["mine.plan.json", "--module", "slow_layers:raising"], "layer 3 (raises) failed: ValueError: no such luck"),
    ],
)
def test_one_of_torchruns_processes_says_what_is_wrong(here: Path, arguments: list[str], said: str) -> None:
    code, out, told = under_torchrun(*arguments)
    assert code != 0
    assert out == ""
    assert told == [f"octocp: {said}"]
