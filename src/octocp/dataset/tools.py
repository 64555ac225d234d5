"""What is done with data sets that exist: check, merge, sample, and judge a heuristic."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octocp.checker import check_plan
from octocp.dataset.canonical import canonical_hash
from octocp.dataset.draws import Stream
from octocp.dataset.reading import as_row, find, read_rows
from octocp.dataset.rows import Row, distance, features, plan_columns
from octocp.dataset.stats import Distance, summarise
from octocp.dataset.store import MANIFEST, Store
from octocp.dataset.views import write_views
from octocp.errors import InputError, OctoCPError
from octocp.problem import Problem
from octocp.schedule import Schedule

# ---- check -----------------------------------------------------------------------------------


def violations(source: str | Path) -> Iterator[str]:
    """Yield everything that is wrong with a data set, a line each.

    Raises
    ------
    InputError
        It cannot be read.
    """
    places: dict[str, str] = {}
    hashes: dict[str, str] = {}
    for place, data in read_rows(source):
        try:
            row = as_row(data, place)
        except InputError as error:
            yield str(error)
            continue
        where = f"{place}: {row.id}"
        if row.id in places:
            yield f"{where}: is there twice; first at {places[row.id]}"
        elif row.hash in hashes:
            yield f"{where}: is the same problem as {hashes[row.hash]}"
        places[row.id], hashes[row.hash] = place, row.id
        yield from (f"{where}: {text}" for text in row_violations(row))


def row_violations(row: Row) -> Iterator[str]:
    """Yield what is wrong with one row: everything is computed anew from its instance."""
    try:
        problem = row.problem()
    except OctoCPError as error:
        yield f"instance: {error}"
        return
    if canonical_hash(problem) != row.hash:
        yield f"hash: is {row.hash}; the instance's is {canonical_hash(problem)}"
    if features(row.instance, problem) != row.features:
        yield "features: are not those of the instance"
    shape = {
        "layers": problem.n_layers,
        "devices": problem.n_devices,
        "microbatches": problem.n_microbatches,
        "objective": problem.objective,
        "tick_us": row.instance.tick_us,
    }
    for key, value in shape.items():
        if getattr(row, key) != value:
            yield f"{key}: is {getattr(row, key)}; the instance has {value}"
    if (row.value is not None) != (row.status in ("optimal", "feasible")):
        yield f"status: is {row.status} {'with' if row.value is not None else 'without'} a value"
    yield from _plan_violations(row)
    for one in row.heuristics:
        if (one.value is not None) != (one.status == "feasible"):
            yield f"heuristics: {one.method} is {one.status} {'with' if one.value is not None else 'without'} a value"
        if one.value is not None and one.value < (row.lower_bound or 0):
            yield f"heuristics: {one.method} reaches {one.value}, below the bound {row.lower_bound}"
        if one.value is not None and row.status == "infeasible":
            yield f"heuristics: {one.method} has a plan of an infeasible instance"
    check = row.double_check
    if check is not None and check.value is not None and check.value < (row.lower_bound or 0):
        yield f"double_check: reaches {check.value}, below the bound {row.lower_bound}"
    if check is not None and row.value is not None and (check.lower_bound or 0) > row.value:
        yield f"double_check: proves {check.lower_bound}, above the value {row.value}"


def _plan_violations(row: Row) -> Iterator[str]:
    try:
        plan = row.plan()
    except (ValueError, IndexError) as error:
        yield f"orders: cannot be read: {str(error).splitlines()[0]}"
        return
    if plan is None:
        return
    found = check_plan(plan)
    yield from (f"plan: {text}" for text in found)
    if found:
        return
    for key, value in plan_columns(plan, row.devices).items():
        if key not in ("bound_name", "found_by") and getattr(row, key) != value:
            yield f"{key}: is {getattr(row, key)}; the plan has {value}"
    if (row.status == "optimal") != (row.value == row.lower_bound):
        yield f"status: is {row.status} with value {row.value} and bound {row.lower_bound}"


# ---- merge and sample ------------------------------------------------------------------------


def merge(sources: Sequence[str | Path], folder: Path) -> tuple[int, int, list[str]]:
    """Put data sets together in a new folder; of equal problems the row that knows most is kept.

    Returns
    -------
    int, int, list of str
        Rows, rows left out as duplicates, notes.

    Raises
    ------
    InputError
        A source cannot be read, two of them contradict each other, or the folder is in use or not empty.
    """
    kept: dict[str, dict[str, Any]] = {}
    dropped = 0
    names: set[str] = set()
    for source in sources:
        for place, data in read_rows(source):
            row = as_row(data, place).data()
            known = kept.get(row["hash"])
            if known is not None:
                _agree(known, row, place)
                dropped += 1
                if _knows(row) <= _knows(known):
                    continue
                row = {**row, "id": known["id"]}
            elif row["id"] in names:
                row = {**row, "id": f"{row['id']}-{row['hash'][:8]}"}
            names.add(row["id"])
            kept[row["hash"]] = row
    if not kept:
        raise InputError("there is no row in what is to be merged")
    manifest = {"name": folder.name or "merged", "digest": "merged", "generator": 0, "count": len(kept)}
    specs = [_spec(source) for source in sources]
    if len(specs) == 1 and specs[0]:
        manifest |= specs[0]
    if (folder / MANIFEST).exists():
        raise InputError("holds a data set already", file=str(folder), right="a new folder for -o")
    with Store(folder, {**manifest, "digest": "merged"}) as store:
        for row in kept.values():
            store.add_row(row)
        _, notes = write_views(folder, manifest, lambda: (store.row(name) for name in store.rows))
    return len(kept), dropped, notes


def _spec(source: str | Path) -> dict[str, Any]:
    path = find(source) / MANIFEST
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return {key: data[key] for key in ("name", "spec") if key in data}
    except (OSError, ValueError, TypeError):
        return {}


def _knows(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what ranks rows of one problem: a proof, a second proof, a better value, a better bound."""
    check = row["double_check"]
    return (
        row["status"] in ("optimal", "infeasible"),
        check is not None and check["status"] == row["status"],
        -(row["value"] if row["value"] is not None else 2**63),
        row["lower_bound"] or 0,
    )


def _agree(one: dict[str, Any], other: dict[str, Any], place: str) -> None:
    """Raise where two rows of one problem contradict each other."""
    wrong = (one["status"] == "infeasible" and other["value"] is not None) or (
        other["status"] == "infeasible" and one["value"] is not None
    )
    # Equal problems may differ by a factor in time, so values are held against bounds in milliseconds.
    for first, second in ((one, other), (other, one)):
        if first["value"] is not None and second["lower_bound"] is not None and first["tick_us"] == second["tick_us"]:
            same = _ticks(first) == _ticks(second)
            wrong = wrong or (same and first["value"] < second["lower_bound"])
    if wrong:
        told = f"{one['status']} {one['value']} and {other['status']} {other['value']}"
        raise InputError(f"contradicts {one['id']}, which is the same problem: {told}", file=place, place=other["id"])


def _ticks(row: dict[str, Any]) -> Any:
    problem = Row.model_validate(row).problem()
    return sum(map(sum, problem.layer_ticks))


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


# ---- judge -----------------------------------------------------------------------------------


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
