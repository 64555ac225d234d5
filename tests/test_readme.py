"""What the README promises, run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from terminal import octocp

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_python_example(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = blocks("python")
    exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out.startswith("Optimal: makespan 2750 ticks")


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tour of the command line, in its order and on its files."""
    monkeypatch.chdir(tmp_path)
    commands = [line.partition("#")[0].split() for line in blocks("sh")[1].splitlines()]
    assert {command[1] for command in commands} == {
        *("instances", "new", "solve", "show", "explain", "try", "export", "compare", "bound", "check"),
    }
    for name, *arguments in commands:
        assert name == "octocp"
        ran = octocp(*arguments)
        assert ran.code == 0, (arguments, ran)
    assert {path.name for path in tmp_path.iterdir()} == {"mine.yaml", "mine.plan.json", "mine.svg"}


def test_scripts_and_links_exist() -> None:
    for line in blocks("sh")[0].splitlines():
        script = ROOT / line.partition("#")[0].strip()
        assert script.stat().st_mode & 0o111, script
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target
