"""What is done with data sets that exist: check, merge, sample, and judge a heuristic."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import octocp
from octocp.bounds import all_bounds
from octocp.checker import check_plan
from octocp.dataset import parquet
from octocp.dataset.canonical import canonical_hash
from octocp.dataset.draws import Stream
from octocp.dataset.names import LOG, MANIFEST
from octocp.dataset.reading import SHARDS, VIEW, as_row, find, read_anything
from octocp.dataset.rows import PROVEN, Row, distance, features, plan_columns
from octocp.dataset.stats import Distance, summarise
from octocp.dataset.store import Store
from octocp.dataset.views import write_views
from octocp.errors import InputError, OctoCPError
from octocp.heuristics import ALL_HEURISTICS, OCTOPIPE, attempts, best_attempt
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
    contents: dict[str, bytes] = {}
    none = True
    for place, data in read_anything(source):
        none = False
        try:
            row = as_row(data, place)
        except InputError as error:
            yield str(error)
            continue
        contents[row.id] = _content(row)
        where = f"{place}: {row.id}"
        if row.id in places:
            yield f"{where}: is there twice; first at {places[row.id]}"
        elif row.hash in hashes:
            yield f"{where}: is the same problem as {hashes[row.hash]}"
        places[row.id], hashes[row.hash] = place, row.id
        yield from (f"{where}: {text}" for text in row_violations(row))
    if none:
        raise InputError("has no rows", file=str(source))
    path = find(source)
    if path.is_dir() and (path / LOG).is_file():
        yield from _view_violations(path, contents)


def _content(row: Row) -> bytes:
    return sha256(json.dumps(row.data(), sort_keys=True).encode()).digest()


def _view_violations(folder: Path, contents: dict[str, bytes]) -> Iterator[str]:
    """Yield how the rows beside a log differ from the log's."""
    again = "the build's command writes it again"
    views = {folder / VIEW: [folder / VIEW], folder / SHARDS: sorted((folder / SHARDS).glob("*.parquet"))}
    for view, files in views.items():
        if not files or not files[0].is_file() or (view.name == SHARDS and not parquet.available()):
            continue
        found: dict[str, bytes] = {}
        try:
            for file in files:
                for place, data in read_anything(file):
                    row = as_row(data, place)
                    found[row.id] = _content(row)
        except InputError as error:
            yield f"{error}; {again}"
            continue
        differ = sorted(name for name in contents.keys() | found.keys() if contents.get(name) != found.get(name))
        if differ:
            yield f"{view}: differs from {LOG} in {len(differ):,} rows, the first {differ[0]}; {again}"


def row_violations(row: Row) -> Iterator[str]:
    """Yield what is wrong with one row.

    The plan is checked and its value, memory and gap computed anew; so are the hash, the features and, where this
    version made the row, the known schedules. A proof by search is not repeated: of the bound only that it is no larger
    than the argument it names gives, and that what is computed here does not contradict it.
    """
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
    yield from _bound_violations(row, problem)
    yield from _known_violations(row, problem)
    for one in row.heuristics:
        if (one.value is not None) != (one.status == "feasible"):
            yield f"heuristics: {one.method} is {one.status} {'with' if one.value is not None else 'without'} a value"
        if one.value is not None and one.value < (row.lower_bound or 0):
            yield f"heuristics: {one.method} reaches {one.value}, below the bound {row.lower_bound}"
        if one.value is not None and row.status == "infeasible":
            yield f"heuristics: {one.method} has a plan of an infeasible instance"
    known = [(one.value, one.method) for one in row.heuristics if one.value is not None]
    if known and row.status != "infeasible" and (row.value is None or min(known)[0] < row.value):
        plan = "there is no plan" if row.value is None else f"the plan has {row.value}"
        yield f"value: a known schedule is better than the plan: {min(known)[1]} reaches {min(known)[0]}, {plan}"
    check = row.double_check
    if check is not None and row.proven and check.status in PROVEN and check.status != row.status:
        yield f"double_check: is {check.status}; the row is {row.status}"
    if check is not None and check.status == "infeasible" and row.value is not None:
        yield f"double_check: is infeasible; the row has a plan of {row.value}"
    if check is not None and check.status == "optimal" and (check.value is None or check.value != check.lower_bound):
        yield f"double_check: is optimal with value {check.value} and bound {check.lower_bound}"
    if check is not None and check.status == row.status == "optimal" and check.value != row.value:
        yield f"double_check: is optimal with value {check.value}; the row has {row.value}"
    if check is not None and check.value is not None and check.value < (row.lower_bound or 0):
        yield f"double_check: reaches {check.value}, below the bound {row.lower_bound}"
    if check is not None and row.value is not None and (check.lower_bound or 0) > row.value:
        yield f"double_check: proves {check.lower_bound}, above the value {row.value}"


def _bound_violations(row: Row, problem: Problem) -> Iterator[str]:
    """Hold the bound against the analytic ones, which take no time."""
    if row.status == "infeasible":
        return  # some of them are of plans that exist
    known = all_bounds(problem)
    best = known[0]
    if row.value is not None and best.value > row.value:
        yield f"value: is {row.value}, below the bound {best.value} ({best.name})"
    elif row.lower_bound is not None and best.value > row.lower_bound and row.versions.octocp == octocp.__version__:
        yield f"lower_bound: is {row.lower_bound}; {best.name} gives {best.value}"
    for bound in known:
        if bound.name == row.bound_name and row.lower_bound is not None and row.lower_bound > bound.value:
            yield f"lower_bound: is {row.lower_bound} by {bound.name}, which gives {bound.value}"


def _known_violations(row: Row, problem: Problem) -> Iterator[str]:
    """Run the known schedules anew; another version may have had other ones."""
    if row.versions.octocp != octocp.__version__:
        return
    known = {heuristic.name: heuristic for heuristic in ALL_HEURISTICS}
    for one in row.heuristics:
        if one.method == OCTOPIPE.name:
            found = OCTOPIPE.run(problem)
        elif one.method in known:
            found = best_attempt(list(attempts(known[one.method], problem)))
        else:
            yield f"heuristics: {one.method} is no known schedule"
            continue
        value = found.schedule.value if found.status == "feasible" and found.schedule is not None else None
        if (found.status, value) != (one.status, one.value):
            yield f"heuristics: {one.method} is {one.status} {one.value}; run anew, it is {found.status} {value}"


def _plan_violations(row: Row) -> Iterator[str]:
    try:
        plan = row.plan()
    except (ValueError, IndexError) as error:
        text = str(error).splitlines()[0]
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            text = f"{'.'.join(str(step) for step in first['loc'])}: {first['msg']}"
        yield f"orders: cannot be read: {text}"
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
        for place, data in read_anything(source):
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


def outside_sets(output: Path, source: Path) -> None:
    """Refuse a file for a sample that would be among a data set's own.

    Raises
    ------
    InputError
        It is in the folder that is read, or in one that holds a data set.
    """
    path = output.resolve()
    right = "a file outside of data sets for -o"
    if source.is_dir() and source.resolve() in path.parents:
        raise InputError(f"is in the data set that is read, {source}", file=str(output), right=right)
    for place, folder in enumerate(path.parents):
        held = [name for name in (MANIFEST, LOG) if (folder / name).is_file()]
        # Further up, a file of one of these names alone may be anything.
        if len(held) > (place > 0):
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
