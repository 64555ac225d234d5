"""The command line: every command, every exit code, what goes to stdout and what to stderr."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

import octocp as package
from octocp.cli import options
from octocp.cli.main import EXIT_BUG, EXIT_PIPE_CLOSED
from terminal import octocp, refused

TINY = "tiny-two-devices"
# Far too large to close within a test, and with a plan from the heuristics in no time.
HARD = "jamba-100b-p8-m16"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("plans") / "tiny.plan.json"
    ran = octocp("solve", TINY, "-o", file, "-w", 1, "-t", 30, "-q")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    return file


@pytest.fixture
def broken_plan(plan_file: Path) -> Path:
    """A plan whose first op on some device starts a tick late and so runs into what follows."""
    data = json.loads(plan_file.read_text())
    op = next(op for op in data["ops"] if op["kind"] == "B")
    op["start"] += 1
    op["end"] += 1
    file = Path("broken.plan.json")
    file.write_text(json.dumps(data))
    return file


def process(*arguments: str, **changes: Any) -> subprocess.Popen[str]:
    # SIGINT is ignored in what a shell started in the background, pytest perhaps; here it must count.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);from octocp.__main__ import run; run()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **changes},
    )


# ---------------------------------------------------------------------------------------------
# The program as a whole


def test_help_and_version() -> None:
    ran = octocp("--help")
    assert (ran.code, ran.err) == (0, "")
    for command in ("solve", "check", "show", "export", "compare", "bound", "models", "instances", "new"):
        assert f"\n  {command}" in ran.out
        assert octocp(command, "--help").code == 0
    assert octocp().out == ran.out
    assert octocp().code == 0
    assert octocp("--version").out == f"octocp {package.__version__}\n"


def test_help_loads_nothing_heavy() -> None:
    code = """
import sys
from octocp.cli.main import main

def loaded(names):
    return sorted(set(names.split()) & set(sys.modules))

assert main([]) == main(["--help"]) == 0
found = loaded("ortools numpy pydantic rich yaml matplotlib numba octocp.api octocp.schema octocp.bounds")
# Some versions of typer use pydantic themselves to parse options, and so for a command's help.
assert main(["solve", "--help"]) == 0
found += loaded("ortools numpy rich yaml matplotlib numba octocp.api octocp.schema octocp.bounds")
sys.exit(f"loaded: {found}" if found else 0)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate"],
        ["--frobnicate"],
        ["solve"],
        ["solve", TINY, "extra"],
        ["solve", TINY, "--frobnicate"],
        ["solve", TINY, "-t", "0"],
        ["solve", TINY, "-t", "-1"],
        ["solve", TINY, "-t", "nan"],
        ["solve", TINY, "-t", "inf"],
        ["solve", TINY, "-t", "1e300"],
        ["solve", TINY, "-t", "soon"],
        ["solve", TINY, "-t"],
        ["solve", TINY, "-w", "0"],
        ["solve", TINY, "-w", "-1"],
        ["solve", TINY, "-w", "1001"],
        ["solve", TINY, "-w", "9" * 5000],
        ["solve", TINY, "-w", "1.5"],
        ["solve", TINY, "--seed", "-1"],
        ["solve", TINY, "--seed", str(2**31)],
        ["solve", TINY, "--gap", "-0.1"],
        ["solve", TINY, "--gap", "1"],
        ["solve", TINY, "--gap", "nan"],
        ["solve", TINY, "--json", "-o", "-"],
        ["check"],
        ["show"],
        ["show", "p.json", "--width", "5"],
        ["show", "p.json", "--width", "1000000"],
        ["export", "p.json", "--to", "pdf"],
        ["export"],
        ["compare"],
        ["compare", TINY, "-t", "-5"],
        ["compare", TINY, "-w", "0"],
        ["bound"],
        ["bound", "one", "two"],
        ["models", "extra", "more"],
        ["new", "a.yaml", "b.yaml"],
    ],
)
def test_wrong_command_line(arguments: list[str]) -> None:
    assert "--help" in refused(*arguments)
    assert not list(Path.cwd().iterdir())


def test_wrong_values_are_said_once_and_in_words() -> None:
    line = refused("export", "p.json", "--to", "pdf")
    assert line.count("pdf") == 1
    assert "Value error" not in line
    assert "Input should" not in refused("solve", TINY, "-w", "q")


def test_help_leads_on() -> None:
    text = " ".join(octocp("--help").out.split())
    assert "octocp new mine.yaml" in text
    assert "docs/formats.md" in text
    assert "mine.plan.json" in " ".join(octocp("solve", "--help").out.split())


def test_a_bug_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.delenv("OCTOCP_DEBUG", raising=False)
    monkeypatch.setattr("octocp.cli.bound.load", fail)
    ran = octocp("bound", TINY)
    assert ran.code == EXIT_BUG
    assert ran.err.splitlines() == [ran.err.rstrip("\n")]
    assert "RuntimeError: first line second line; this is a bug" in ran.err
    monkeypatch.setenv("OCTOCP_DEBUG", "1")
    assert "Traceback" in octocp("bound", TINY).err


def test_closed_pipe() -> None:
    with process("instances") as run:
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdout.close()
        assert run.wait(60) == EXIT_PIPE_CLOSED
        assert run.stderr.read() == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk(plan_file: Path) -> None:
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "octocp", "check", str(plan_file)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ran.returncode == 2
    assert ran.stderr.splitlines() == ["octocp: standard output: cannot be written: No space left on device"]
    assert "No space left" in refused("export", plan_file, "-o", "/dev/full")


def without_stdout(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command line with stdout closed, as `>&-` has it."""
    script = 'exec "$0" -m octocp "$@" >&-'
    words = ["sh", "-c", script, sys.executable, *map(str, arguments)]
    return subprocess.run(words, stderr=subprocess.PIPE, text=True, check=False)


def test_closed_stdout(plan_file: Path) -> None:
    """A result that has nowhere to go is a failure, and `solve` says so before it begins."""
    for arguments in (
        ("solve", TINY, "-o", "-"),
        ("solve", TINY, "--json"),
        ("export", plan_file, "-o", "-"),
        ("show", plan_file),
        ("dataset", "sample", "groundtruth"),
    ):
        ran = without_stdout(*arguments)
        assert ran.returncode == 2, ran
        assert ran.stderr == "octocp: standard output: cannot be written: it is closed\n"
    ran = without_stdout("compare", TINY, "--no-solver", "--plot", "a.svg")
    assert ran.returncode == 2, ran
    assert Path("a.svg").is_file()
    # The plan is in its file, and the verdict is the exit code.
    assert without_stdout("solve", TINY, "-t", 30, "-w", 1, "-q").returncode == 0
    assert octocp("check", f"{TINY}.plan.json").code == 0
    ran = without_stdout("check", plan_file)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_closed_stdout_and_violations(broken_plan: Path) -> None:
    assert without_stdout("check", broken_plan).returncode == 1


def test_ascii_terminal(plan_file: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "octocp", "show", str(plan_file)],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert ran.stdout.isascii()


# ---------------------------------------------------------------------------------------------
# solve


def test_solve() -> None:
    ran = octocp("solve", TINY, "-t", 30, "-w", 1, "--seed", 7)
    assert ran.code == 0
    file = Path(f"{TINY}.plan.json")
    first, second = ran.out.splitlines()
    assert first.startswith("Optimal: makespan 2750 ticks (27.5 ms)")
    assert str(file) in second
    assert f"octocp show {file}" in second
    assert ran.err.startswith(f"{TINY}: 7 layers, 2 devices, 3 microbatches, 2 to 4 stages")
    plan = json.loads(file.read_text())
    assert plan["format"] == "octocp.plan/1"
    assert plan["solve"]["seed"] == 7
    assert plan["solve"]["workers"] == 1
    assert octocp("check", file).code == 0


def test_solve_json() -> None:
    ran = octocp("solve", TINY, "-t", 30, "-w", 1, "--json")
    assert ran.code == 0
    data = json.loads(ran.out)
    assert data["status"] == "optimal"
    assert data["value"] == data["makespan"] == data["lower_bound"] == 2750
    assert data["gap"] == 0
    assert data["interrupted"] is False
    assert len(data["partition"]) == len(data["placement"])
    assert len(data["peak_memory_gb"]) == 2
    assert Path(data["plan"]).is_file()
    assert "Optimal" in ran.err


def test_solve_to_stdout() -> None:
    ran = octocp("solve", TINY, "-t", 30, "-w", 1, "-o", "-")
    assert ran.code == 0
    assert json.loads(ran.out)["format"] == "octocp.plan/1"
    assert "Optimal" in ran.err
    assert not list(Path.cwd().iterdir())


def test_solve_stops_at_the_gap() -> None:
    ran = octocp("solve", TINY, "-t", 30, "-w", 1, "--gap", 0.5, "--json")
    assert ran.code == 0
    assert 0 <= json.loads(ran.out)["gap"] <= 0.5


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("missing/plan.json", "no folder missing"),
        ("folder", "is a folder"),
        ("/proc/plan.json", "cannot be written"),
        ("file/plan.json", "no folder file"),
        ("x" * 300, "cannot be written"),
        ("instance.yaml", "is the input itself"),
        ("a\0b", "null"),
    ],
)
def test_an_output_that_cannot_be_written_is_found_before_solving(
    output: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("folder").mkdir()
    Path("file").touch()
    octocp("new", "instance.yaml")
    before = Path("instance.yaml").read_text()
    monkeypatch.setattr("octocp.api.solve", lambda *_, **__: pytest.fail("it was solved"))
    assert words in refused("solve", "instance.yaml", "-o", output)
    assert Path("instance.yaml").read_text() == before
    assert {path.name for path in Path.cwd().iterdir()} == {"folder", "file", "instance.yaml"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_read_only_folder_and_file() -> None:
    Path("folder").mkdir(mode=0o555)
    assert "Permission denied" in refused("solve", TINY, "-o", "folder/p.json")
    Path("p.json").touch(mode=0o444)
    assert "read-only" in refused("solve", TINY, "-o", "p.json")


def test_an_old_plan_is_replaced_whole() -> None:
    Path("p.json").write_text("old")
    Path("link.json").symlink_to("p.json")
    assert octocp("solve", TINY, "-w", 1, "-o", "link.json", "-q").code == 0
    assert Path("link.json").is_symlink()
    assert octocp("check", "p.json").code == 0
    assert {path.name for path in Path.cwd().iterdir()} == {"p.json", "link.json"}


def test_the_plan_is_named_after_the_file(tmp_path: Path) -> None:
    text = octocp("new", "-").out
    Path("my file.v2.yaml").write_text(text.replace("name: FILE\n", 'name: "../up/ä b"\n'))
    ran = octocp("solve", "my file.v2.yaml", "-w", 1, "--gap", 0.9, "--json")
    assert ran.code == 0, ran
    assert json.loads(ran.out)["plan"] == "my file.v2.plan.json"
    assert Path("my file.v2.plan.json").is_file()
    (tmp_path / "sub").mkdir()
    Path("sub/x.yaml").write_text(text)
    assert octocp("solve", "sub/x.yaml", "-w", 1, "--gap", 0.9, "-q").code == 0
    assert Path("x.plan.json").is_file()


def test_first_lines_tell_the_size() -> None:
    assert octocp("new", "mine.yaml").code == 0
    shape = "mine: 10 layers, 2 devices, 4 microbatches, 2 to 4 stages, at most 2 on a device."
    assert octocp("solve", "mine.yaml", "-w", 1, "--gap", 0.9).err.splitlines()[0] == shape
    assert shape not in octocp("solve", "mine.yaml", "-w", 1, "--gap", 0.9, "-q").err
    assert octocp("bound", "mine.yaml").out.splitlines()[0] == shape
    assert octocp("compare", "mine.yaml", "--no-solver").out.splitlines()[0] == shape
    ran = octocp("bound", "tiny-memory")
    assert ran.out.startswith("tiny-memory: 5 layers, 2 devices, 4 microbatches, 2 stages, linear placement.\n")


def test_solve_tells_the_gain_over_known_schedules() -> None:
    octocp("new", "mine.yaml")
    ran = octocp("solve", "mine.yaml", "-w", 1, "-t", 20)
    assert " % below the best of GPipe, 1F1B, interleaved 1F1B and ZB-H1" in ran.out
    rows = json.loads(octocp("compare", "mine.yaml", "--no-solver", "--json").out)
    known = {"gpipe", "1f1b", "interleaved-1f1b", "zb-h1"}
    rows = [row for row in rows if row["makespan"] and row["method"].removesuffix("-balanced") in known]
    best = min(rows, key=lambda row: row["makespan"])
    data = json.loads(octocp("solve", "mine.yaml", "-w", 1, "--gap", 0.5, "--json").out)
    assert data["best_heuristic_value"] == best["makespan"]
    assert data["best_heuristic"] == best["method"].removesuffix("-balanced")
    # Where none of them fits in memory, nothing is said.
    assert "below" not in octocp("solve", "tiny-memory", "-w", 1, "-t", 20).out
    data = json.loads(octocp("solve", "tiny-memory", "-w", 1, "-t", 20, "--json").out)
    assert data["best_heuristic"] is data["best_heuristic_value"] is None


def test_large_instances_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    from octocp import api

    monkeypatch.setattr(api, "MOST_COMPARED_OPS", 5)
    result = api.solve(api.load_instance(TINY), time_limit=20, workers=1)
    assert result.baseline is result.gain is None
    assert result.sentence().startswith("Optimal: makespan 2750 ticks (27.5 ms); no partition")


def test_save_plan(plan_file: Path) -> None:
    plan = package.load_plan(str(plan_file))
    package.save_plan(plan, "p.json")
    package.save_plan(plan, Path("q.json"))
    assert Path("p.json").read_bytes() == Path("q.json").read_bytes() == plan_file.read_bytes()
    with pytest.raises(package.InputError, match="cannot be written"):
        package.save_plan(plan, "missing/p.json")


def test_hints_name_the_program_as_it_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    from octocp.cli.output import program

    monkeypatch.setattr(sys, "argv", ["/a/pytest"])
    assert program() == "octocp"
    monkeypatch.setattr(sys, "argv", ["some dir/octocp"])
    assert program() == "'some dir/octocp'"
    Path("octocp").write_text("")
    Path("octocp").chmod(0o755)
    monkeypatch.setenv("PATH", str(Path.cwd()))
    monkeypatch.setattr(sys, "argv", [str(Path.cwd() / "octocp")])
    assert program() == "octocp"


INFEASIBLE = {
    "memory": ("memory_gb: 16 ", "memory_gb: 4 ", ["device", "its limit is 4 GB", "GB too much"]),
    "layers": ("devices: 2 ", "devices: 9 ", ["fewer layers than devices", "too few"]),
}


@pytest.mark.parametrize("case", INFEASIBLE)
@pytest.mark.parametrize("command", ["solve", "compare"])
def test_proven_infeasible(case: str, command: str) -> None:
    old, new, words = INFEASIBLE[case]
    octocp("new", "instance.yaml")
    text = Path("instance.yaml").read_text()
    assert old in text
    Path("instance.yaml").write_text(text.replace(old, new))
    ran = octocp(command, "instance.yaml", "-w", 1)
    assert ran.code == 3, ran
    assert ran.out == ""
    last = ran.err.splitlines()[-1]
    assert last.startswith("octocp: instance.yaml: ")
    for word in words:
        assert word in last, last
    assert not Path("instance.plan.json").exists()


def test_no_plan_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from octocp.errors import NoPlanError

    def solve(*_: object, **__: object) -> None:
        raise NoPlanError("no plan found in 0.0 s; proven lower bound 5 ticks")

    monkeypatch.setattr("octocp.api.solve", solve)
    assert "no plan found" in refused("solve", TINY, "-q", code=4)
    assert not list(Path.cwd().iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_solve_keeps_the_best_plan(number: signal.Signals) -> None:
    with process("solve", HARD, "-t", "600", "-w", "1", "-o", "p.json", "--json") as run:
        assert run.stderr is not None
        assert run.stdout is not None
        # The first line that tells of a plan; nothing here depends on how fast that comes.
        told = next(line for line in run.stderr if " plan " in line and "no plan" not in line)
        assert " bound " in told
        time.sleep(0.5)
        run.send_signal(number)
        out, err = run.communicate(timeout=120)
    assert run.returncode == 0, err
    assert "Interrupted" in err
    assert "Traceback" not in err
    assert json.loads(out)["interrupted"] is True
    assert octocp("check", "p.json").code == 0


@pytest.mark.parametrize("module", ["typer", "octocp.cli.main", "octocp.cli.solve", "octocp.errors"])
def test_interrupted_while_it_is_imported(module: str) -> None:
    code = f"""
import runpy, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
runpy.run_module("octocp", run_name="__main__")
"""
    ran = subprocess.run([sys.executable, "-c", code, "solve", TINY], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "octocp: interrupted\n")


def test_the_console_script_is_what_stands_interruptions() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"octocp": "octocp.__main__:run"}


def test_interrupted_before_there_is_anything_to_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("octocp.api.solve", interrupt)
    assert refused("solve", TINY, "-q", code=130) == "octocp: interrupted"


# ---------------------------------------------------------------------------------------------
# check, show, export


def test_check(plan_file: Path, broken_plan: Path) -> None:
    ran = octocp("check", plan_file)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"{plan_file}: OK, makespan 2750 ticks (27.5 ms), lower bound 2750, gap 0.00 %\n"
    ran = octocp("check", plan_file, broken_plan)
    assert (ran.code, ran.err) == (1, "")
    good, *bad = ran.out.splitlines()
    assert "OK" in good
    assert bad
    assert all(line.startswith("broken.plan.json: ") for line in bad)
    assert any("B of stage" in line for line in bad)


def test_check_goes_on_after_an_unreadable_file(plan_file: Path, broken_plan: Path) -> None:
    ran = octocp("check", "missing.json", broken_plan, plan_file)
    assert ran.code == 2
    assert "missing.json: no such file" in ran.err
    assert "OK" in ran.out


def test_show(plan_file: Path) -> None:
    ran = octocp("show", plan_file, "--width", 80)
    assert (ran.code, ran.err) == (0, "")
    assert TINY in ran.out
    assert "\x1b" not in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80
    data = json.loads(octocp("show", plan_file, "--json").out)
    assert data["makespan"] == 2750
    assert len(data["devices"]) == 2


@pytest.mark.parametrize("to", ["trace", "svg", "png", "csv"])
def test_export(plan_file: Path, to: str) -> None:
    if to == "png":
        pytest.importorskip("matplotlib")
    ran = octocp("export", plan_file, "--to", to)
    assert (ran.code, ran.out) == (0, "")
    (file,) = Path.cwd().iterdir()
    assert file.name == {"trace": "tiny.trace.json"}.get(to, f"tiny.{to}")
    assert file.name in ran.err
    content = file.read_bytes()
    if to == "trace":
        assert json.loads(content)["traceEvents"]
    elif to == "csv":
        rows = list(csv.DictReader(content.decode().splitlines()))
        assert len(rows) == len(json.loads(plan_file.read_text())["ops"])
    else:
        assert content.startswith({"png": b"\x89PNG", "svg": b"<"}[to])
    streamed = octocp("export", plan_file, "--to", to, "-o", "-")
    assert (streamed.code, streamed.err) == (0, "")
    assert streamed.raw == content or to == "png"
    assert octocp("export", plan_file, "--to", to, "-o", "other").code == 0
    assert Path("other").is_file()


def test_export_keeps_its_hands_off(plan_file: Path) -> None:
    before = plan_file.read_bytes()
    assert "is the input itself" in refused("export", plan_file, "-o", plan_file)
    assert plan_file.read_bytes() == before
    assert "no folder" in refused("export", plan_file, "-o", "missing/x.svg")


def test_invalid_plans_are_shown_with_a_warning(broken_plan: Path) -> None:
    for command in (["show"], ["show", "--json"], ["export", "-o", "x.svg"]):
        ran = octocp(command[0], broken_plan, *command[1:])
        assert ran.code == 0
        assert "octocp: warning: broken.plan.json is not a valid plan: " in ran.err.splitlines()[0]
    assert Path("x.svg").is_file()


# ---------------------------------------------------------------------------------------------
# compare, bound


def test_compare() -> None:
    ran = octocp("compare", TINY, "-t", 30, "-w", 1)
    assert ran.code == 0
    for method in ("gpipe", "1f1b", "zb-h1", "octopipe", "cp-sat"):
        assert f"\n{method} " in ran.out
    assert "\n  interleaved-1f1b: needs microbatches divisible by devices" in ran.out
    assert "2750" in ran.out


def test_compare_json() -> None:
    ran = octocp("compare", "tiny-memory", "-t", 30, "-w", 1, "--json")
    assert ran.code == 0
    rows = {row["method"]: row for row in json.loads(ran.out)}
    asked = "method status makespan lower_bound bubble peak_memory_gb seconds partition placement reason"
    for row in rows.values():
        assert set(asked.split()) <= set(row)
    assert {"gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "cp-sat"} <= set(rows)
    assert rows["cp-sat"]["status"] == "optimal"
    assert rows["cp-sat"]["makespan"] == rows["cp-sat"]["lower_bound"] == 39
    assert len(rows["cp-sat"]["peak_memory_gb"]) == 2
    assert rows["gpipe"]["status"] == "infeasible"
    assert "GB" in rows["gpipe"]["reason"]
    assert rows["gpipe"]["makespan"] is None
    assert rows["interleaved-1f1b"]["status"] == "not-applicable"
    assert rows["interleaved-1f1b"]["reason"]


def test_compare_without_the_solver() -> None:
    rows = json.loads(octocp("compare", TINY, "--no-solver", "--json").out)
    assert "cp-sat" not in {row["method"] for row in rows}
    assert all(row["lower_bound"] <= 2750 for row in rows)


def test_bound() -> None:
    ran = octocp("bound", TINY)
    assert (ran.code, ran.err) == (0, "")
    found = json.loads(octocp("bound", TINY, "--json").out)
    values = [each["value"] for each in found]
    assert values == sorted(values, reverse=True)
    assert 0 < values[0] <= 2750
    for each in found:
        assert set(each) == {"name", "value", "value_ms", "detail", "explanation"}
        assert each["name"] in ran.out
        assert each["detail"]
        assert each["explanation"] in ran.out
    assert f"below {values[0]} ticks" in ran.out


# ---------------------------------------------------------------------------------------------
# models, instances, new


@pytest.mark.parametrize(("command", "known"), [("models", "nemotron-nano-v2-9b"), ("instances", TINY)])
def test_catalogue(command: str, known: str) -> None:
    ran = octocp(command)
    assert (ran.code, ran.err) == (0, "")
    data = json.loads(octocp(command, "--json").out)
    folders = {"models": 0, "instances": len({each.get("folder") for each in data})}[command]
    assert len(ran.out.splitlines()) == len(data) + folders
    entry = next(each for each in data if each["name"] == known)
    assert entry["layers"] == {"models": 58, "instances": 7}[command]
    for each in data:
        assert each["description"], each
        assert "layers" in each, each
        assert Path(each["path"]).is_file()


def test_catalogue_filter() -> None:
    lines = octocp("instances", "TINY").out.splitlines()
    assert lines[0] == "teaching/"
    assert [line.split()[0] for line in lines[1:]] == ["tiny-memory", TINY, "tiny-uneven-head"]
    assert octocp("instances", "teaching").out.splitlines() == lines
    data = json.loads(octocp("instances", "llama3-8b", "--json").out)
    assert {each["model"] for each in data} == {"llama3-8b"}
    assert [line.split()[0] for line in octocp("models", "jamba").out.splitlines()] == ["jamba-100b", "jamba-20b"]
    assert "no shipped model has 'qqq'" in refused("models", "qqq")
    assert "no shipped instance has 'qqq'" in refused("instances", "qqq", "--json")


def test_models_tell_where_costs_come_from() -> None:
    assert re.search(r"^llama-2-7b +34 layers of 3 kinds +derived ", octocp("models").out, re.MULTILINE)
    assert {each["provenance"] for each in json.loads(octocp("models", "--json").out)} == {"published", "derived"}


@pytest.mark.parametrize("columns", [30, 80, 100, 200])
def test_catalogue_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octocp.cli.catalogue.is_terminal", lambda: True)
    monkeypatch.setattr("octocp.cli.catalogue.width", lambda: columns)
    for command in ("models", "instances"):
        lines = octocp(command).out.splitlines()
        assert max(map(len, lines)) <= columns
        assert any({"models": "OctoPipe's", "instances": "A heavy head on"}[command] in line for line in lines)


def test_compare_says_why_rows_are_missing() -> None:
    ran = octocp("compare", TINY, "--no-solver")
    assert "No row of cp-sat: --no-solver leaves it out." in ran.out
    text = " ".join(ran.out.split())
    (same,) = re.findall("No -balanced row of (.*): the balanced partition is the uniform one.", text)
    assert {"gpipe", "1f1b", "zb-h1"} <= set(same.split(", "))
    assert "interleaved-1f1b" not in same.split(", ")
    # The model has no sizes.
    assert re.search(r"^1f1b .* -  +2 ", ran.out, re.MULTILINE)


def test_new() -> None:
    ran = octocp("new")
    assert (ran.code, ran.out) == (0, "")
    assert "octocp solve instance.yaml" in ran.err
    before = Path("instance.yaml").read_text()
    assert "exists already" in refused("new")
    assert octocp("new", "--force").code == 0
    assert Path("instance.yaml").read_text() == before
    ran = octocp("solve", "instance.yaml", "-w", 1, "-t", 60)
    assert ran.code == 0, ran
    assert octocp("check", "instance.plan.json").code == 0


def test_new_shows_true_defaults() -> None:
    """What the starter has as comments is valid, and the default."""
    text = octocp("new", "-").out
    Path("as-is.yaml").write_text(text)
    lines = []
    for line in text.splitlines():
        bare = line.lstrip().removeprefix("# ")
        is_default = line.lstrip().startswith("# ") and bare.split(":")[0] in {
            "count",
            "partition",
            "placement",
            "colocate",
        }
        lines.append(line.replace("# ", "", 1) if is_default else line)
    Path("defaults.yaml").write_text("\n".join(lines))
    assert len([1 for old, new in zip(text.splitlines(), lines, strict=True) if old != new]) == 4
    assert package.load_instance("as-is.yaml") == package.load_instance("defaults.yaml")


def test_new_refuses() -> None:
    assert "is YAML" in refused("new", "x.json")
    assert "no folder" in refused("new", "missing/x.yaml")
    assert "is a folder" in refused("new", ".", "--force")
    assert not list(Path.cwd().iterdir())


def test_defaults_agree_with_the_python_interface() -> None:
    from octocp import api

    assert options.DEFAULT_TIME_LIMIT == api.DEFAULT_TIME_LIMIT
