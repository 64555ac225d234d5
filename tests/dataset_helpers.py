"""What the tests of data sets share: a spec that is built in a second, and tasks that misbehave on purpose.

Executors run these functions in other processes, which find them by this module's name.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from octocp.dataset.build import Built, build
from octocp.dataset.executors import Executor, Here, perform
from octocp.dataset.reading import read_rows
from octocp.dataset.spec import load_models, load_spec

# The time limit is for machines that are busy: a solve takes a second, and one that is cut short is another row.
SPEC = """
format: octocp.dataset/1
name: small
seed: 3
solve: {{time_limit: 60}}
families:
  - name: mix
    source: mix
    count: {count}
    devices: [2, 3]
    microbatches: [2, 3]
    layers: [3, 4]
    max_per_device: [1]
    split_backward: [true, false]
    objective: [makespan, makespan, span]
    memory: [none, tight]
    links: [none, latency]
    max_ops: 36
"""

# Folder in which `marked` leaves a file per task; the environment reaches every worker.
MARKS = "OCTOCP_TEST_MARKS"
COLUMNS = ("id", "hash", "status", "value", "lower_bound", "objective", "instance", "heuristics")


def spec_file(folder: Path, count: int = 8) -> Path:
    path = folder / "spec.yaml"
    path.write_text(SPEC.format(count=count))
    return path


def built(path: Path, folder: Path, executor: Executor | None = None, **more: Any) -> Built:
    spec = load_spec(path)
    return build(spec, load_models(spec, path), folder, executor or Here(), **more)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [data for _, data in read_rows(folder)]


def essence(folder: Path) -> list[dict[str, Any]]:
    """What has to be the same however a set was built: everything but times and which of equal plans it is."""
    return [{key: row[key] for key in COLUMNS} for row in sorted(rows(folder), key=lambda row: row["id"])]


# ---- tasks -----------------------------------------------------------------------------------


def marked(payload: dict[str, Any]) -> dict[str, Any]:
    """Do a task slowly, and tell which process is at it."""
    (Path(os.environ[MARKS]) / f"{payload['id']}-{os.getpid()}").touch()
    time.sleep(0.4)
    return perform(payload)


def deadly(payload: dict[str, Any]) -> dict[str, Any]:
    """Do a task, but the third one kills its process: the first time, or always."""
    if payload["id"].endswith("2"):
        marks = Path(os.environ[MARKS])
        (marks / f"{len(list(marks.iterdir()))}").touch()
        if os.environ.get("OCTOCP_TEST_ALWAYS") or len(list(marks.iterdir())) == 1:
            os._exit(9)
    return perform(payload)


def failing(payload: dict[str, Any]) -> dict[str, Any]:
    """Fail on the third task, as a bug would."""
    if payload["id"].endswith("2"):
        raise ZeroDivisionError("on purpose")
    return perform(payload)


def lying(payload: dict[str, Any]) -> dict[str, Any]:
    """Do a task, but claim an optimum one tick above the true one, proven."""
    result = perform(payload)
    row = result.get("row")
    if row is not None and row["status"] == "optimal" and row["objective"] == "makespan":
        for starts, ends in zip(row["starts"], row["ends"], strict=True):
            starts[:] = [start + 1 for start in starts]
            ends[:] = [end + 1 for end in ends]
        row |= {key: row[key] + 1 for key in ("value", "makespan", "lower_bound")}
        row["heuristics"] = []
    return result
