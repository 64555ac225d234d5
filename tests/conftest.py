"""Tests marked slow run only with --slow; no test runs on stale machine code."""

from __future__ import annotations

from pathlib import Path

import pytest

import octocp


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the slow tests too")


def pytest_configure() -> None:
    """Drop compiled search code that is older than the evaluator, which it inlines.

    Numba's cache looks at the file of the compiled function only, not at what it calls.
    """
    search = Path(octocp.__file__).parent / "search"
    changed = (search / "evaluator.py").stat().st_mtime
    for cached in (search / "__pycache__").glob("moves.*.nb[ic]"):
        if cached.stat().st_mtime < changed:
            cached.unlink(missing_ok=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="slow; run with --slow"))
