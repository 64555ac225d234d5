"""What the pages in docs/ promise: examples load and run, every field is there, every pointer leads somewhere."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from octocp.checker import check_plan
from octocp.cpsat.families import FAMILIES
from octocp.schema import Instance, KindCosts, ModelSpec, Plan, Profile, Provenance
from octocp.schema import instance as instance_schema
from octocp.schema import plan as plan_schema
from octocp.schema.files import load_instance, load_model, load_plan
from terminal import octocp

ROOT = Path(__file__).resolve().parents[1]
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
FORMATS, FORMULATION = PAGES["formats.md"], PAGES["formulation.md"]


def blocks(page: str, test: str) -> list[str]:
    """Return the code blocks that stand right under ``<!-- test: NAME -->``."""
    pattern = rf"^<!-- test: {test} -->\n```\w+\n(.*?)^```"
    return re.findall(pattern, page, flags=re.MULTILINE | re.DOTALL)


# ---- formats.md ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", blocks(FORMATS, "instance"))
def test_instance_examples_load(text: str, tmp_path: Path) -> None:
    (tmp_path / "example.yaml").write_text(text)
    load_instance(tmp_path / "example.yaml")


def test_the_full_instance_shows_every_key_and_its_default(tmp_path: Path) -> None:
    text = blocks(FORMATS, "instance")[0]
    (tmp_path / "full.yaml").write_text(text)
    least = re.sub(r"^(description|profile|training|stages|objective|tick_us|  .*):? .*\n", "", text, flags=re.M)
    least = least.replace("cluster:\n", "cluster: {devices: 4}\n").replace("training:\n", "").replace("stages:\n", "")
    (tmp_path / "least.yaml").write_text(least)
    assert len(least.splitlines()) == 5
    assert load_instance(tmp_path / "full.yaml") == load_instance(tmp_path / "least.yaml")
    for spec in (Instance, instance_schema.Cluster, instance_schema.Training, instance_schema.Stages):
        for key in spec.model_fields:
            assert re.search(rf"^ *{key}:", text, flags=re.MULTILINE), key


@pytest.mark.parametrize("text", blocks(FORMATS, "model"))
def test_model_examples_load(text: str, tmp_path: Path) -> None:
    (tmp_path / "example.yaml").write_text(text)
    model = load_model(tmp_path / "example.yaml")
    assert model.flattened("seq8192").kinds["M"].forward_ms == 5.1
    assert model.flattened().kinds["M"].forward_ms == 2.7


@pytest.mark.parametrize("text", blocks(FORMATS, "plan"))
def test_plan_examples_pass_the_checker(text: str, tmp_path: Path) -> None:
    (tmp_path / "example.plan.json").write_text(text)
    plan = load_plan(tmp_path / "example.plan.json")
    assert check_plan(plan) == []
    data = json.loads(text)
    assert set(data) == set(Plan.model_fields)
    assert set(data["solve"]) == set(plan_schema.SolveInfo.model_fields)
    assert set(data["solve"]["trace"][0]) == set(plan_schema.TracePoint.model_fields)


def test_every_field_is_documented() -> None:
    specs: list[type[BaseModel]] = [ModelSpec, KindCosts, Profile, Provenance, Plan, plan_schema.PlanOp]
    specs += [plan_schema.SolveInfo, plan_schema.TracePoint, instance_schema.Device, instance_schema.Link]
    specs += [instance_schema.LinkByNode]
    for spec in specs:
        for key in spec.model_fields:
            assert re.search(rf"\b{key}\b", FORMATS), f"{spec.__name__}.{key}"


def _documented(command: str) -> set[str]:
    """Return the keys that the table of --json documents lists for a command, nested ones left out."""
    row = re.search(rf"^\| {command} \|[^|]*\|(.*)\|$", FORMATS, flags=re.MULTILINE)
    assert row is not None, command
    return set(re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", row[1])))


def test_json_documents_have_the_keys_that_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "example.plan.json").write_text(blocks(FORMATS, "plan")[0])

    def printed(*arguments: str) -> Any:
        ran = octocp(*arguments, "--json")
        assert ran.code == 0, ran
        return json.loads(ran.out)

    shown = printed("show", "example.plan.json")
    assert set(shown) == _documented("`show`")
    assert set(shown["devices"][0]) == _documented("`show`, each of `devices`")
    solved = printed("solve", "tiny-two-devices", "--workers", "1", "--time-limit", "20")
    assert set(solved) == _documented("`solve`")
    for command in ("bound", "compare"):
        rest = ["--no-solver"] if command == "compare" else []
        for row in printed(command, "tiny-two-devices", *rest):
            assert set(row) == _documented(f"`{command}`")
    for command in ("models", "instances"):
        assert set(printed(command)[0]) == _documented(f"`{command}`")
    counted = printed("dataset", "stats", "groundtruth")
    assert set(counted) == _documented("`dataset stats`")
    assert set(counted["families"]["all"]) == _documented("`dataset stats`, each of `families`")
    assert set(counted["distances"][0]) == _documented("`dataset stats`, each of `distances`")


# ---- python.md -------------------------------------------------------------------------------


def test_python_example(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = blocks(PAGES["python.md"], "python")
    exec(compile(example, "docs/python.md", "exec"), {"__name__": "docs"})
    assert "nothing is faster than" in capsys.readouterr().out


# ---- formulation.md, and all pages -----------------------------------------------------------


def test_the_families_are_those_of_the_model_in_their_order() -> None:
    model = FORMULATION[FORMULATION.index("## 2.") : FORMULATION.index("## 3.")]
    described = re.findall(r"^\*\*([\w-]+)\*\* \(`(\w+)\.(\w+)`\)", model, flags=re.MULTILINE)
    built = [(family.name, family.add.__module__.rpartition(".")[2], family.add.__name__) for family in FAMILIES]
    assert described == built


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", PAGES[name], flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        assert not file or (ROOT / "docs" / file).exists(), target
        assert not anchor or f'<a id="{anchor}"></a>' in PAGES[file or name], target


def test_functions_that_the_formulation_points_to_exist() -> None:
    prefixes = ("octocp", "octocp.cpsat", "octocp.cpsat.families")
    for dotted in re.findall(r"`((?:\w+\.)+\w+)`", FORMULATION):
        module, _, attribute = dotted.removeprefix("octocp.").rpartition(".")
        if not module or dotted.startswith("stages."):
            continue
        found = any(_exists(f"{prefix}.{module}", attribute) for prefix in prefixes)
        assert found or _method(module, attribute), dotted


def _exists(module: str, attribute: str) -> bool:
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError:
        return False
    if hasattr(found, attribute):
        return True
    try:
        importlib.import_module(f"{module}.{attribute}")
    except ModuleNotFoundError:
        return False
    return True


def _method(owner: str, attribute: str) -> bool:
    from octocp.cpsat.build import Build
    from octocp.problem import Problem
    from octocp.progress import Progress
    from octocp.schedule import Layout, Schedule

    classes = {each.__name__: each for each in (Build, Problem, Progress, Layout, Schedule)}
    known = classes.get(owner)
    return known is not None and (hasattr(known, attribute) or attribute in known.__dataclass_fields__)
