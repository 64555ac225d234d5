"""The shipped data set: valid, as large as promised, and solved again with the same result."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from octocp import catalog
from octocp.api import solve
from octocp.dataset import Row, load_rows
from octocp.dataset.checking import row_violations
from octocp.dataset.generate import generate
from octocp.dataset.reading import as_row
from octocp.dataset.spec import Architectures, Mixes, Profiles, SolveSettings, Spec, load_models, load_spec
from octocp.dataset.stats import ALL, collect
from octocp.dataset.tools import sample
from octocp.errors import InfeasibleError

ROOT = Path(__file__).resolve().parents[1]
FOLDER = catalog.folder("instances") / "groundtruth"
PAGE = (ROOT / "docs" / "datasets.md").read_text(encoding="utf-8")
SAMPLE = 12
# Those that took the first solve longer are left to --slow.
QUICK_SECONDS = 0.5


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return load_rows("groundtruth")


def examples(test: str) -> list[str]:
    return re.findall(rf"^<!-- test: {test} -->\n```\w+\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


# ---- what is in it ---------------------------------------------------------------------------


def test_it_is_as_large_as_promised(rows: list[Row]) -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 5_000_000
    assert sum(row.status == "optimal" for row in rows) >= 1000
    assert len({row.hash for row in rows}) == len({row.id for row in rows}) == len(rows)
    spec = load_spec(ROOT / "scripts" / "groundtruth.yaml")
    assert {row.family for row in rows} == {family.name for family in spec.families}


def test_its_parquet_holds_the_same_rows(rows: list[Row]) -> None:
    pytest.importorskip("pyarrow")
    (shard,) = (FOLDER / "shards").glob("*.parquet")
    assert load_rows(shard) == rows


def test_its_instances_are_those_of_its_spec(rows: list[Row]) -> None:
    path = ROOT / "scripts" / "groundtruth.yaml"
    spec = load_spec(path)
    drawn = {one.id: one for one in generate(spec, load_models(spec, path))}
    for row in rows:
        assert (row.hash, row.instance) == (drawn[row.id].hash, drawn[row.id].instance.resolved())


def test_every_feature_is_in_it(rows: list[Row]) -> None:
    counts = Counter(name for row in rows if row.status == "optimal" for name in row.features)
    assert len(counts) == 26
    assert min(counts.values()) >= 10, counts


def test_most_proofs_were_repeated(rows: list[Row]) -> None:
    stats = collect(row.data() for row in rows)
    total = stats.families[ALL]
    assert total.confirmed >= 0.9 * total.proven
    # OctoPipe's tuner is the best of what is known, and not optimal.
    assert stats.methods()[0] == "octopipe"


def test_a_sample_passes_every_check(rows: list[Row]) -> None:
    for row in rows[::25]:
        assert list(row_violations(row)) == [], row.id


@pytest.mark.slow
def test_all_of_it_passes_every_check(rows: list[Row]) -> None:
    assert [text for row in rows for text in row_violations(row)] == []


# ---- solved again ----------------------------------------------------------------------------


def again(row: Row, seconds: float) -> None:
    """Solve an instance again: what was proven has to be proven with the same objective, never mind the plan."""
    try:
        result = solve(row.instance, time_limit=seconds, workers=1, seed=1)
    except InfeasibleError:
        assert row.status == "infeasible", row.id
        return
    assert (result.status, result.value) == (row.status, row.value), row.id


def test_a_sample_is_solved_again(rows: list[Row]) -> None:
    quick = [row.data() for row in rows if row.proven and row.seconds < QUICK_SECONDS]
    for data in sample(quick, SAMPLE, 0):
        again(as_row(data, "sample"), 60)


@pytest.mark.slow
def test_all_of_it_is_solved_again(rows: list[Row]) -> None:
    for row in rows:
        if row.proven:
            again(row, 300)


# ---- the page --------------------------------------------------------------------------------


def test_the_example_judges_a_heuristic_in_twenty_lines(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = examples("judge")
    code = [line for line in example.splitlines() if line.strip()]
    assert len(code) <= 22
    exec(compile(example, "docs/datasets.md", "exec"), {"__name__": "docs"})
    told = re.fullmatch(r"(\d+) of (\d+): ([\d.]+) % above the optimum, at worst ([\d.]+) %\n", capsys.readouterr().out)
    assert told is not None
    assert 20 <= int(told[1]) <= int(told[2])
    assert 0 < float(told[3]) < float(told[4])


def test_the_spec_on_the_page_shows_every_key_and_its_default(tmp_path: Path) -> None:
    (text,) = examples("spec")
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    spec = load_spec(path)
    for kind in (Spec, SolveSettings, Profiles, Architectures, Mixes):
        for key in kind.model_fields:
            assert re.search(rf"\b{key}:", text), key
    least = [
        {"name": "from-profiles", "source": "profiles", "count": 20, "models": ["nemotron-nano-v2-9b", "llama-2-7b"]},
        {"name": "from-sizes", "source": "architecture", "count": 20},
        {"name": "random", "source": "mix", "count": 20},
    ]
    assert spec == Spec.model_validate({"format": "octocp.dataset/1", "name": "mine", "families": least})
    assert len(list(generate(spec, load_models(spec, path)))) == 60


def test_the_table_of_distances_is_made(rows: list[Row], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sys.path.insert(0, str(ROOT / "scripts" / "bench"))
    try:
        import groundtruth
    finally:
        sys.path.pop(0)
    stats = collect(row.data() for row in rows)
    table = groundtruth.table(stats)
    assert "| octopipe |" in table
    assert all(f" {name} |" in table for name in stats.families)
    scene = groundtruth.picture(stats)
    assert len(scene.boxes) == len(stats.families) * len(stats.distances)
