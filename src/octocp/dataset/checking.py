"""Whether a data set is what it says: every row computed anew, and its files held against each other."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from pydantic import ValidationError

import octocp
from octocp.bounds import all_bounds
from octocp.checker import check_plan
from octocp.dataset import parquet
from octocp.dataset.canonical import canonical_hash
from octocp.dataset.manifest import read_manifest
from octocp.dataset.names import LOG, MANIFEST, SHARDS, VIEW
from octocp.dataset.reading import as_row, find, incomplete_line, read_anything
from octocp.dataset.rows import PROVEN, Row, features, plan_columns
from octocp.errors import InputError, OctoCPError
from octocp.heuristics import ALL_HEURISTICS, OCTOPIPE, attempts, best_attempt
from octocp.problem import Problem

# What a row has of a plan, and has not where it has none. The bound is apart: it needs no plan.
PLAN_COLUMNS = (
    "value", "makespan", "span", "gap", "partition", "placement", "orders", "starts", "ends", "peak_memory_gb",
)  # fmt: skip


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
        try:
            yield from (f"{where}: {text}" for text in row_violations(row))
        except MemoryError:
            yield f"{where}: instance: is too large to be looked at on this machine"
    if none:
        raise InputError("has no rows", file=str(source))
    path = find(source)
    if path.is_dir():
        if any((path / name).exists() for name in (LOG, MANIFEST)):
            yield from _manifest_violations(path, len(contents))
        yield from _view_violations(path, contents)


def remarks(source: str | Path) -> tuple[int, list[str]]:
    """Count the rows of a data set that `violations` has read, and return what it did not look at or is not there yet.

    Raises
    ------
    InputError
        It cannot be read.
    """
    rows = others = 0
    for _, data in read_anything(source):
        rows += 1
        versions = data.get("versions")
        version = versions.get("octocp") if isinstance(versions, dict) else None
        others += isinstance(version, str) and version != octocp.__version__
    path = find(source)
    found = [told] if (told := incomplete_line(source)) else []
    with suppress(InputError):  # which is a violation
        count = read_manifest(path)["count"] if (path / LOG).is_file() else rows
        if rows < count and not (path / VIEW).is_file():
            found.append(f"{path / LOG}: has {rows:,} of {count:,} rows; the build that was ended makes the others")
    if others:
        found.append(f"{others:,} rows are of another version, so that known schedules of theirs were not run anew")
    if list((path / SHARDS).glob("*.parquet")) and not parquet.available():
        found.append(f'{path / SHARDS}: was not looked at, since pyarrow is not installed (pip install "octocp[data]")')
    return rows, found


def _content(row: Row) -> bytes:
    return sha256(json.dumps(row.data(), sort_keys=True).encode()).digest()


def _manifest_violations(folder: Path, rows: int) -> Iterator[str]:
    """Yield what is wrong with a folder's manifest, and whether rows are missing that it promises."""
    if not (folder / LOG).is_file():
        yield f"{folder / LOG}: is missing; {MANIFEST} belongs to it"
        return
    try:
        count = read_manifest(folder)["count"]
    except InputError as error:
        yield str(error)
        return
    # One that is through has its views; `remarks` tells of one that is not.
    if rows > count or (rows < count and (folder / VIEW).is_file()):
        yield f"{folder / LOG}: has {rows:,} rows, and {count:,} are asked for; the build's command makes the others"


def _view_violations(folder: Path, contents: dict[str, bytes]) -> Iterator[str]:
    """Yield how rows beside those that were read, the log's or else ``rows.jsonl.gz``'s, differ from these.

    Each has to be there once.
    """
    read = next((name for name in (LOG, VIEW) if (folder / name).is_file()), SHARDS)
    again = "the build's command writes it again" if read == LOG else "both are to have the same rows"
    views = {folder / VIEW: [folder / VIEW], folder / SHARDS: sorted((folder / SHARDS).glob("*.parquet"))}
    for view, files in views.items():
        if not files or not files[0].is_file() or view.name == read:
            continue
        if view.name == SHARDS and not parquet.available():
            continue
        found: dict[str, bytes] = {}
        twice: list[str] = []
        try:
            for file in files:
                for place, data in read_anything(file):
                    row = as_row(data, place)
                    if row.id in found:
                        twice.append(f"{place}: {row.id}")
                    found[row.id] = _content(row)
        except InputError as error:
            yield f"{error}; {again}"
            continue
        differ = sorted(name for name in contents.keys() | found.keys() if contents.get(name) != found.get(name))
        if twice:
            yield f"{view}: has {len(twice):,} rows more than once, the first at {twice[0]}; {again}"
        if differ:
            yield f"{view}: differs from {read} in {len(differ):,} rows, the first {differ[0]}; {again}"


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
    if row.status == "infeasible" and row.lower_bound is not None:
        yield f"lower_bound: is {row.lower_bound}; the row is infeasible"
    if row.status not in ("optimal", "feasible") and not row.reason:
        yield f"reason: is missing; the row is {row.status}"
    yield from plan_violations(row)
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
    """Run the known schedules anew; another version may have had other ones, but it had some, each once."""
    known = {heuristic.name: heuristic for heuristic in ALL_HEURISTICS}
    told = Counter(one.method for one in row.heuristics)
    same = row.versions.octocp == octocp.__version__
    for method in dict.fromkeys((*((*known, OCTOPIPE.name) if same else ()), *told)):
        if told[method] != 1:
            yield f"heuristics: {method} is there {told[method]} times, not once"
    if not told and not same:
        yield "heuristics: is empty"
    for one in row.heuristics if same else ():
        if one.method == OCTOPIPE.name:
            runs = [OCTOPIPE.run(problem)]
        elif one.method in known:
            runs = list(attempts(known[one.method], problem))
        else:
            yield f"heuristics: {one.method} is no known schedule"
            continue
        found = best_attempt(runs)
        value = found.schedule.value if found.status == "feasible" and found.schedule is not None else None
        if (found.status, value, found.rule) != (one.status, one.value, one.rule):
            anew = f"{found.status} {value} {found.rule}"
            yield f"heuristics: {one.method} is {one.status} {one.value} {one.rule}; run anew, it is {anew}"


def plan_violations(row: Row) -> Iterator[str]:
    """Yield what is wrong with the columns of a row's plan, or with its having any."""
    has_plan = row.status in ("optimal", "feasible")
    for key in PLAN_COLUMNS:
        there = getattr(row, key) not in (None, [])
        if there != has_plan:
            yield f"{key}: is {'there' if there else 'missing'}; the row is {row.status}"
    if has_plan and row.lower_bound is None:
        yield f"lower_bound: is missing; the row is {row.status}"
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
    for key, value in plan_columns(plan, len(row.instance.cluster.device_list())).items():
        if key not in ("bound_name", "found_by") and getattr(row, key) != value:
            yield f"{key}: is {getattr(row, key)}; the plan has {value}"
    if (row.status == "optimal") != (row.value == row.lower_bound):
        yield f"status: is {row.status} with value {row.value} and bound {row.lower_bound}"
