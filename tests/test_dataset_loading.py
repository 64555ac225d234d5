"""The lines that docs and cards show for other libraries, on the shipped set; where one is not installed, they skip."""

from __future__ import annotations

import json
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from octocp.dataset.card import card
from octocp.dataset.stats import Stats

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "instances" / "groundtruth"
LINE = re.compile(r"rows = ((\w+)\.\w+\(.*\))")


def shown() -> list[Any]:
    page = (ROOT / "docs" / "datasets.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^<!-- test: load -->\n```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    whole = card(Stats(), {"name": "x"}, parquet=True)
    found = [(ROOT, *match) for match in LINE.findall(block)]
    found += [(FOLDER, *match) for match in LINE.findall(whole) if match[1] != "octocp"]
    assert len(found) == 12
    return [pytest.param(*each, id=f"{each[0].name}-{each[1].partition('(')[0]}-{n}") for n, each in enumerate(found)]


@pytest.mark.parametrize(("folder", "code", "library"), shown())
def test_a_line_that_is_shown_loads_every_row(
    folder: Path, code: str, library: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if find_spec(library) is None or ("parquet" in code and library == "pandas" and find_spec("pyarrow") is None):
        pytest.skip(f"needs {library}")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.chdir(folder)
    rows = eval(code, {library: import_module(library)})
    assert len(rows) == 1490
    instance = rows["instance"][0]
    if "parquet" in code or library == "polars":
        instance = json.loads(instance)
    assert instance["format"] == "octocp.instance/1"
    kind = str(rows["value"].dtype) if library != "datasets" else rows.features["value"].dtype
    assert kind.lower() == ("float64" if library == "pandas" else "int64")
