"""SimPipe's YAML: what it is given (``partition_layers``, ``placement``), or what it writes of a run.

A configuration has no order: SimPipe's dispatcher makes it. ``pipeline_config.yaml``, which SimPipe writes, has
``partition`` and a row ``(type, microbatch, stage, device, start, end)`` for every op.
"""

from __future__ import annotations

import re
from typing import Any

from octocp.errors import InputError
from octocp.heuristics.base import Heuristic, NotApplicableError
from octocp.heuristics.dispatch import Tables, dispatch
from octocp.heuristics.gpipe import GPIPE
from octocp.heuristics.interleaved import INTERLEAVED
from octocp.heuristics.octopipe.rule import OCTOPIPE_RULE
from octocp.heuristics.one_f_one_b import ONE_F_ONE_B
from octocp.heuristics.zb_h1 import ZB_H1
from octocp.importers.parsed import Parsed, bounds_of, check_layout, layers_for
from octocp.problem import Problem
from octocp.schedule import Layout, Op, Orders
from octocp.schema import Instance
from octocp.schema.messages import place_of
from octocp.schema.reading import Document, parse_yaml, shorten

_ROW = re.compile(
    r"\(\s*([fbw])\s*,\s*(\d{1,6})\s*,\s*(\d{1,6})\s*,\s*(\d{1,6})\s*,\s*([\d.]{1,20})\s*,\s*([\d.]{1,20})\s*\)"
)
DISPATCHERS: dict[str, Heuristic] = {
    "1f1b": ONE_F_ONE_B,
    "bapar": ONE_F_ONE_B,
    "interleaved": INTERLEAVED,
    "afab": GPIPE,
    "gpipe": GPIPE,
    "zbh": ZB_H1,
    "zbh1": ZB_H1,
}


def read_simpipe(problem: Problem, text: str, instance: Instance | None = None) -> Parsed:
    """Read a configuration or a result.

    Raises
    ------
    InputError
        A key is missing or wrong, or what it says does not fit the instance; with the key.
    """
    document = parse_yaml(text)
    if not isinstance(document.data, dict):
        raise InputError("is no mapping", right="a SimPipe configuration, with partition_layers and placement")
    reader = _Reader(document)
    key = "partition_layers" if document.data.get("partition_layers") is not None else "partition"
    counts = reader.whole_numbers(key, "layers per stage, e.g. [13, 13, 13, 13]")
    placement = reader.placement(problem.n_devices, len(counts))
    reader.check_parallel(problem)
    layout = Layout(bounds_of(_with_ends(problem, counts, key, instance, reader)), placement)
    check_layout(problem, layout, f"{reader.place(key)}, placement")
    if document.data.get("scheduling"):
        orders = reader.orders(problem, layout)
        # SimPipe's own times tell nothing of links; a fused backward is one row of type b.
        return Parsed(layout, orders, False, name="")
    return _dispatched(problem, layout, reader)


def _with_ends(problem: Problem, counts: list[int], key: str, instance: Instance | None, reader: _Reader) -> list[int]:
    """Add embedding and head, which SimPipe does not count, to the first and the last stage."""
    layers = layers_for(instance)
    spare = problem.n_layers - sum(counts)
    ends = (
        (int(layers.embedding), int(layers.head)) if layers is not None else {2: (1, 1), 1: (0, 1)}.get(spare, (0, 0))
    )
    if spare != sum(ends):
        between = " between embedding and head" if sum(ends) else ""
        raise InputError(
            f"sums to {sum(counts)} layers; the instance has {problem.n_layers - sum(ends)}{between}",
            place=reader.place(key),
        )
    made = list(counts)
    made[0] += ends[0]
    made[-1] += ends[1]
    if 0 in made:
        raise InputError(f"stage {made.index(0)} has no layer", place=reader.place(key))
    return made


def _dispatched(problem: Problem, layout: Layout, reader: _Reader) -> Parsed:
    name = str(reader.data.get("schedule", "1f1b")).lower()
    split = _bwd_split(reader.data)
    notes = [f"SimPipe's dispatcher ({name}) made the order: the file has none"]
    if name == "octopipe":
        made = dispatch(Tables(problem, layout, admission=False), OCTOPIPE_RULE)
        assert made is not None  # without admission nothing is held back
        if problem.split and split is False:
            raise InputError(
                "the instance splits the backward", place=reader.place("parallel", "bwd_split"), right="bwd_split: true"
            )
        return Parsed(layout, made.orders, False, tuple(notes))
    heuristic = DISPATCHERS.get(name)
    if heuristic is None:
        raise InputError(
            f"{name[:30]!r} is no schedule known here",
            place=reader.place("schedule"),
            right=f"octopipe, {', '.join(DISPATCHERS)}",
        )
    try:
        placements = heuristic.placements(problem)
        if layout.placement not in placements:
            raise InputError(
                f"{name} needs another placement, e.g. {list(placements[0])}", place=reader.place("placement")
            )
        orders = heuristic.orders(problem, layout)
    except NotApplicableError as error:
        raise InputError(f"{name} {error}", place=reader.place("schedule")) from None
    return Parsed(layout, orders, heuristic.fused, tuple(notes))


def _bwd_split(data: dict[str, Any]) -> bool | None:
    parallel = data.get("parallel")
    value = parallel.get("bwd_split") if isinstance(parallel, dict) else None
    return value if isinstance(value, bool) else None


class _Reader:
    """Values of a document by key, and complaints that name the key and its line."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.data: dict[str, Any] = document.data

    def place(self, *path: str | int) -> str:
        return place_of(path, self.document)

    def wrong(self, path: tuple[str | int, ...], problem: str, right: str = "") -> InputError:
        return InputError(problem, place=self.place(*path), right=right)

    def whole_numbers(self, key: str, right: str) -> list[int]:
        value = self.data.get(key)
        if value is None:
            raise InputError("missing", place=key, right=right)
        if not isinstance(value, list) or not value:
            raise self.wrong((key,), f"{shorten(value)} is no list", right)
        for index, each in enumerate(value):
            if not isinstance(each, int) or isinstance(each, bool) or not 0 <= each <= 10_000:
                raise self.wrong((key, index), f"{shorten(each)} is no number of layers", right)
        return value

    def placement(self, devices: int, stages: int) -> tuple[int, ...]:
        """Return the device of each stage; the file has the stages of each device."""
        right = "the stages of every device, e.g. [[0, 3], [1, 2]]"
        rows = self.data.get("placement")
        if rows is None:
            raise InputError("missing", place="placement", right=right)
        if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
            raise self.wrong(("placement",), f"{shorten(rows)} is no list of lists", right)
        if len(rows) != devices:
            raise self.wrong(("placement",), f"has {len(rows)} devices; the instance has {devices}")
        held: dict[int, int] = {}
        for device, row in enumerate(rows):
            for position, stage in enumerate(row):
                path = ("placement", device, position)
                if not isinstance(stage, int) or isinstance(stage, bool) or not 0 <= stage < stages:
                    raise self.wrong(path, f"{shorten(stage)} is no stage", f"0 to {stages - 1}")
                if stage in held:
                    raise self.wrong(path, f"stage {stage} is on device {held[stage]} already")
                held[stage] = device
        missing = next((stage for stage in range(stages) if stage not in held), None)
        if missing is not None:
            raise self.wrong(("placement",), f"stage {missing} is on no device")
        return tuple(held[stage] for stage in range(stages))

    def check_parallel(self, problem: Problem) -> None:
        parallel = self.data.get("parallel")
        if not isinstance(parallel, dict):
            return
        wanted = {
            "pp_size": ("devices", problem.n_devices),
            "micro_batch_num": ("microbatches", problem.n_microbatches),
        }
        for key, (what, number) in wanted.items():
            if key in parallel and parallel[key] != number:
                said = shorten(parallel[key])
                raise self.wrong(("parallel", key), f"is {said}; the instance has {number} {what}")

    def orders(self, problem: Problem, layout: Layout) -> Orders:
        """Return the order of every device from the rows of a run."""
        rows = self.data["scheduling"]
        right = "(f, microbatch, stage, device, start, end), with f, b or w"
        if not isinstance(rows, list):
            raise self.wrong(("scheduling",), f"{shorten(rows)} is no list", right)
        found: list[list[tuple[float, float, int, Op]]] = [[] for _ in range(problem.n_devices)]
        seen: set[Op] = set()
        for index, row in enumerate(rows):
            path = ("scheduling", index)
            match = _ROW.fullmatch(str(row).strip())
            if match is None:
                raise self.wrong(path, f"{shorten(row)} is no op", right)
            op = Op("fbw".index(match[1]), int(match[3]), int(match[2]))
            if op.kind not in problem.kinds:
                raise self.wrong(path, "is a w; the instance does not split the backward")
            if op.stage >= layout.stages or op.microbatch >= problem.n_microbatches:
                raise self.wrong(path, "names a stage or a microbatch that is not there")
            if op in seen:
                raise self.wrong(path, "is there already")
            if int(match[4]) != layout.placement[op.stage]:
                raise self.wrong(path, f"stage {op.stage} is on device {layout.placement[op.stage]}")
            seen.add(op)
            try:
                times = float(match[5]), float(match[6])
            except ValueError:
                raise self.wrong(path, "has a start or an end that is no number") from None
            found[layout.placement[op.stage]].append((*times, op.kind, op))
        expected = len(problem.kinds) * layout.stages * problem.n_microbatches
        if len(seen) != expected:
            raise self.wrong(("scheduling",), f"has {len(seen)} ops; {expected} are needed")
        return [[op for *_, op in sorted(row)] for row in found]
