"""What is done with the rows of data sets: a sample of them, and a heuristic judged by them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octocp.dataset.draws import Stream
from octocp.dataset.names import LOG, MANIFEST, SHARDS
from octocp.dataset.reading import holds_set
from octocp.dataset.rows import Row, distance
from octocp.dataset.stats import Distance, summarise
from octocp.errors import InputError
from octocp.problem import Problem
from octocp.schedule import Schedule


def outside_sets(output: Path, source: Path) -> None:
    """Refuse a file for a sample that would be among a data set's own.

    Raises
    ------
    InputError
        It is in the folder that is read, or in one that holds a data set.
    """
    path = Path(os.path.realpath(output))
    right = "a file outside of data sets for -o"
    if source.is_dir() and Path(os.path.realpath(source)) in path.parents:
        raise InputError(f"is in the data set that is read, {source}", file=str(output), right=right)
    for place, folder in enumerate(path.parents):
        held = [name for name in (MANIFEST, LOG, SHARDS) if (folder / name).exists()]
        # Further up, a file of one of these names alone may be anything.
        if holds_set(folder) or (place == 0 and held and held != [SHARDS]):
            raise InputError(f"is in a data set's folder: {folder} has {held[0]}", file=str(output), right=right)


def sample(rows: Iterable[dict[str, Any]], count: int, seed: int) -> list[dict[str, Any]]:
    """Return `count` rows, of every family and status as near as can be its share; the same for the same seed."""
    strata: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        strata[row["family"], row["status"]].append(row)
    # Every stratum in a random order, then all of them interleaved by how far each is through.
    ranked = [
        ((place + 0.5) / len(found), key, row["id"], row)
        for key, found in sorted(strata.items())
        for place, row in enumerate(Stream("sample", seed, *key).shuffled(sorted(found, key=lambda row: row["id"])))
    ]
    chosen = [row for *_, row in sorted(ranked, key=lambda item: item[:3])[:count]]
    return sorted(chosen, key=lambda row: (row["family"], row["id"]))


@dataclass(frozen=True)
class Judged:
    """A heuristic against the proven optima.

    Attributes
    ----------
    distances : dict
        By row id, how far above the optimum, as a share of it; None where it has no plan that the instance admits.
    summary : Distance or None
        Mean, 95th percentile and worst; None without any plan.
    """

    distances: dict[str, float | None]
    summary: Distance | None


def judge(rows: Iterable[Row], heuristic: Callable[[Problem], Schedule | None]) -> Judged:
    """Run a heuristic on every row that is proven optimal.

    Parameters
    ----------
    heuristic : callable
        Problem -> schedule, or None where it has none; so is an `octocp.heuristics.NotApplicableError`. A schedule
        that breaks a rule of the instance or a memory limit is none.

    Returns
    -------
    Judged
        Its distances.
    """
    from octocp.decode import checked
    from octocp.heuristics import NotApplicableError

    found: dict[str, float | None] = {}
    for row in rows:
        if row.status != "optimal":
            continue
        problem = row.problem()
        try:
            schedule = heuristic(problem)
        except NotApplicableError:
            schedule = None
        if schedule is not None and (schedule.layout.violation(problem) or schedule.memory_excess()):
            schedule = None
        if schedule is not None:
            checked(schedule, row.instance, method="own", lower_bound=0)
        found[row.id] = None if schedule is None else distance(schedule.value, row.value)
    return Judged(found, summarise(list(found.values())))
