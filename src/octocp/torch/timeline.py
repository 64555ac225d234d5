"""What ran when: spans of actions, predicted or measured, and the traces that they are read from and written to."""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from octocp.errors import InputError
from octocp.schema import Plan
from octocp.schema.reading import shorten
from octocp.torch.actions import Action

# What torch calls an action in its own traces.
PREFIX = "PP:"
_NAME = re.compile(rf"{PREFIX}([0-9]{{1,9}})([FIWB])([0-9]{{1,9}})\Z")
# Away from the numbers of processes: viewers take a thread whose number is its process's for the main one.
FIRST_THREAD = 100_000
_RIGHT = "Chrome trace JSON, as torch.profiler writes"
# Unpacked; a trace of a step has some megabytes.
MAX_BYTES = 2**30
# Microseconds since any epoch: far beyond any clock, and what is counted from it fits into the ticks of a picture.
MAX_TIME = 5e17
# Kineto marks on the GPU's own clock what a range of the program launched: better than when it was launched.
_CATEGORIES = ("gpu_user_annotation", "user_annotation", "cpu_op", "pipeline")


class Span(NamedTuple):
    """One action on one rank, from `start` to `end` in milliseconds."""

    action: Action
    rank: int
    start: float
    end: float

    @property
    def length(self) -> float:
        """Milliseconds."""
        return self.end - self.start


Timeline = list[Span]
"""The compute actions of one step; 0 is the start of the first."""


def makespan(timeline: Iterable[Span]) -> float:
    """Return the time from the first start to the last end, in milliseconds."""
    spans = list(timeline)
    return max(span.end for span in spans) - min(span.start for span in spans) if spans else 0.0


def from_zero(spans: Iterable[Span]) -> Timeline:
    """Return the spans by rank and start, shifted so that the first starts at 0."""
    found = sorted(spans, key=lambda span: (span.rank, span.start, span.end))
    first = min((span.start for span in found), default=0.0)
    return [span._replace(start=span.start - first, end=span.end - first) for span in found]


def median_step(steps: Sequence[Timeline]) -> Timeline:
    """Return the step whose makespan is the median (the shorter of two)."""
    return sorted(steps, key=makespan)[(len(steps) - 1) // 2]


def producers(action: Action, stages: int) -> list[tuple[int, tuple[str, ...], int]]:
    """Return what an action waits for on other stages: (stage, kinds that may give it, microbatch)."""
    stage, kind, microbatch = action
    if kind == "F" and stage:
        return [(stage - 1, ("F",), microbatch)]
    if kind in ("I", "B") and stage < stages - 1:
        return [(stage + 1, ("I", "B"), microbatch)]
    return []


def trace_json(timeline: Timeline) -> bytes:
    """Render a timeline as a Chrome trace with torch's own names: a process per rank; times in microseconds.

    Thread numbers are those of one list in a viewer, whatever their process. Starts and ends are whole nanoseconds, so
    that no two actions of a rank overlap by a rounding.
    """
    events: list[dict[str, Any]] = []
    for rank in sorted({span.rank for span in timeline}):
        thread = {"ph": "M", "pid": rank, "tid": FIRST_THREAD + rank}
        events.append({**thread, "name": "process_name", "args": {"name": f"rank {rank}"}})
        events.append({**thread, "name": "thread_name", "args": {"name": "actions"}})
    for span in timeline:
        start, end = round(span.start * 1e6), round(span.end * 1e6)
        event = {"ph": "X", "cat": "pipeline", "name": f"{PREFIX}{span.action}", "pid": span.rank}
        times = {"ts": start / 1000, "dur": max(end - start, 0) / 1000}
        events.append({**event, "tid": FIRST_THREAD + span.rank, **times})
    return (json.dumps({"traceEvents": events}, indent=0, allow_nan=False) + "\n").encode()


def read_traces(paths: Sequence[Path], plan: Plan) -> list[Timeline]:
    """Read a run of a plan from traces of torch.profiler, one file per rank or all in one.

    In torch's traces, a span includes the time that the action waits for its input. It is cut off here: an
    action starts no earlier than what it waits for has ended on the other rank (ranks need a common clock), and no
    earlier than the action before it on its own.

    Returns
    -------
    list of Timeline
        One per recorded step.

    Raises
    ------
    InputError
        A file is no trace, or the steps are not those of the plan.
    """
    found: dict[Action, list[tuple[float, float]]] = defaultdict(list)
    for path in paths:
        for action, spans in _one_file(path).items():
            found[action] += spans
    if not found:
        raise InputError(
            f"no {PREFIX} spans", file=str(paths[0]), right="a trace that torch.profiler recorded around schedule.step"
        )
    stages = len(plan.partition)
    unknown = next((action for action in found if action.stage >= stages), None)
    if unknown is not None:
        right = "traces of a run of this plan"
        raise InputError(f"{PREFIX}{unknown}: the plan has {stages} stages", file=str(paths[0]), right=right)
    count = max(len(spans) for spans in found.values())
    for action, spans in found.items():
        if len(spans) != count:
            right = "whole steps, and the traces of all ranks"
            raise InputError(f"{PREFIX}{action} {len(spans)} times, other actions {count} times", right=right)
        spans.sort()
    steps = []
    for index in range(count):
        step = [Span(action, plan.placement[action.stage], *times[index]) for action, times in found.items()]
        steps.append(without_waiting(from_zero(step), stages))
    return steps


def without_waiting(timeline: Timeline, stages: int) -> Timeline:
    """Cut the wait for inputs off the head of every span."""
    ends = {span.action: span.end for span in timeline}
    made, free = [], dict.fromkeys((span.rank for span in timeline), 0.0)
    for span in timeline:
        ready = [free[span.rank]]
        for stage, kinds, microbatch in producers(span.action, stages):
            ready += [ends[key] for kind in kinds if (key := Action(stage, kind, microbatch)) in ends]
        free[span.rank] = span.end
        made.append(span._replace(start=min(max(span.start, *ready), span.end)))
    return from_zero(made)


def _one_file(path: Path) -> dict[Action, list[tuple[float, float]]]:
    """Return the compute actions of one trace, in milliseconds since the epoch of its clock."""
    data = _document(path)
    try:
        return _actions(data)
    except InputError as error:
        raise error.in_file(str(path)) from None


def _document(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        # One byte more than is read shows that there is more.
        with gzip.open(path) if packed else path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"is a broken gzip file: {error}", file=str(path), right="the trace, written again") from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", file=str(path)) from None
    if len(raw) > MAX_BYTES:
        raise InputError(f"has more than {MAX_BYTES} bytes", file=str(path), right="a trace of a few steps")
    try:
        # A number of any length is read as a float: what is out of range is infinite, and refused in its place.
        return json.loads(raw, parse_int=float)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InputError(f"is not a trace: {error.msg}", file=str(path), place=where, right=_RIGHT) from None
    except (ValueError, RecursionError):
        raise InputError("is not a trace", file=str(path), right=_RIGHT) from None


def _actions(data: Any) -> dict[Action, list[tuple[float, float]]]:
    events = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(events, list):
        raise InputError("is not a trace: it has no list of events", right=_RIGHT)
    base = 0.0
    if isinstance(data, dict):
        base = _number(data, "baseTimeNanoseconds", "", 0.0, most=1000 * MAX_TIME) / 1e6
    by_category: dict[str, dict[Action, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for index, event in enumerate(events):
        place = f"traceEvents[{index}]"
        if not isinstance(event, dict):
            raise InputError("is not a trace: an event is no mapping", place=place, right=_RIGHT)
        if event.get("ph") == "X" and (named := _NAME.match(str(event.get("name", "")))):
            action = Action(int(named[1]), named[2], int(named[3]))
            start = base + _number(event, "ts", place) / 1000
            length = _number(event, "dur", place) / 1000
            if length < 0:
                raise InputError(
                    f"{action} takes {length * 1000:g}", place=f"{place}.dur", right="0 microseconds or more"
                )
            by_category[str(event.get("cat", ""))][action].append((start, start + length))
    order = sorted(by_category, key=lambda name: _CATEGORIES.index(name) if name in _CATEGORIES else len(_CATEGORIES))
    return dict(by_category[order[0]]) if order else {}


def _number(
    mapping: dict[str, Any], key: str, place: str, default: float | None = None, most: float = MAX_TIME
) -> float:
    """Return a time of a trace, which some tools write as text."""
    value = mapping.get(key, default)
    try:
        number = float(value) if isinstance(value, float | str) else math.nan
    except ValueError:
        number = math.nan
    if not abs(number) <= most:
        problem = "is missing" if value is None else f"{shorten(value)} is no time"
        place = f"{place}.{key}" if place else key
        raise InputError(f"is not a trace: {problem}", place=place, right=f"a number up to {most:g}")
    return number


__all__ = [
    "Span",
    "Timeline",
    "from_zero",
    "makespan",
    "median_step",
    "producers",
    "read_traces",
    "trace_json",
    "without_waiting",
]
