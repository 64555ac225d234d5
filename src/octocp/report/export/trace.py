"""Chrome trace JSON, for ui.perfetto.dev: a thread per device, memory counters, arrows for transfers."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from octocp.checker import memory_timeline
from octocp.report.units import device_names, milliseconds, nanoseconds, printable, stage_layers
from octocp.schema import Plan, PlanOp

PROCESS = 1
# Away from the process id: viewers take a thread whose id equals it for the main thread.
FIRST_THREAD = 100
CATEGORIES = {"F": "forward", "B": "backward", "W": "weight"}

Event = dict[str, Any]


def export(plan: Plan) -> bytes:
    """Return the plan as a trace.

    Times are microseconds on a grid of whole nanoseconds, so that slices that touch in the plan
    touch in the trace and never overlap by a rounding error.
    """
    events = [*_names(plan), *_slices(plan), *_flows(plan), *_counters(plan)]
    document = {
        "displayTimeUnit": "ms",
        "otherData": {
            "instance": plan.instance.name,
            "method": plan.method,
            "status": plan.status,
            "makespan_ms": milliseconds(plan, plan.makespan),
            "lower_bound_ms": milliseconds(plan, plan.lower_bound),
            "tick_us": plan.tick_us,
        },
        "traceEvents": events,
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def _microseconds(nanosecond: int) -> float:
    return nanosecond / 1000


def _thread(device: int) -> int:
    return FIRST_THREAD + device


def _names(plan: Plan) -> list[Event]:
    title = f"{printable(plan.instance.name)} ({printable(plan.method)})"
    events: list[Event] = [{"ph": "M", "name": "process_name", "pid": PROCESS, "args": {"name": title}}]
    for device, name in enumerate(device_names(plan)):
        thread = {"ph": "M", "pid": PROCESS, "tid": _thread(device)}
        events.append({**thread, "name": "thread_name", "args": {"name": name}})
        events.append({**thread, "name": "thread_sort_index", "args": {"sort_index": device}})
    return events


def _slices(plan: Plan) -> list[Event]:
    layers = stage_layers(plan)
    events: list[Event] = []
    for op in sorted(plan.ops, key=lambda op: (op.device, op.start, op.end)):
        start, end = nanoseconds(plan, op.start), nanoseconds(plan, op.end)
        args: dict[str, Any] = {"stage": op.stage, "microbatch": op.microbatch}
        if op.stage < len(layers):
            args["layers"] = "{}-{}".format(*layers[op.stage])
        args |= {"start_tick": op.start, "end_tick": op.end}
        events.append(
            {
                # Perfetto colours by name without its digits: one colour per kind.
                "name": f"{op.kind} {op.microbatch}",
                "cat": CATEGORIES[op.kind],
                "ph": "X",
                "pid": PROCESS,
                "tid": _thread(op.device),
                "ts": _microseconds(start),
                "dur": _microseconds(max(end - start, 0)),
                "args": args,
            }
        )
    return events


def _flows(plan: Plan) -> list[Event]:
    """Draw an arrow for every transfer between devices, from the producer's end to the consumer's start.

    An op of length zero has no inside that an arrow could be tied to, and gets none.
    """
    ops = {(op.kind, op.stage, op.microbatch): op for op in plan.ops if op.end > op.start}
    events: list[Event] = []
    for (kind, stage, microbatch), source in ops.items():
        step = {"F": 1, "B": -1}.get(kind)
        target = ops.get((kind, stage + step, microbatch)) if step else None
        if target is not None and target.device != source.device:
            name = "activation" if kind == "F" else "gradient"
            events += _arrow(plan, name, len(events) // 2, source, target)
    return events


def _arrow(plan: Plan, name: str, number: int, source: PlanOp, target: PlanOp) -> list[Event]:
    common = {"name": name, "cat": "transfer", "id": number, "pid": PROCESS}
    # Strictly inside both slices where they are longer than a nanosecond: at an end that two
    # slices share, a viewer is free to tie the arrow to either.
    leaves = max(nanoseconds(plan, source.end) - 1, nanoseconds(plan, source.start))
    arrives = min(nanoseconds(plan, target.start) + 1, nanoseconds(plan, target.end) - 1)
    return [
        {**common, "ph": "s", "tid": _thread(source.device), "ts": _microseconds(leaves)},
        {**common, "ph": "f", "bp": "e", "tid": _thread(target.device), "ts": _microseconds(arrives)},
    ]


def _counters(plan: Plan) -> list[Event]:
    names = device_names(plan)
    events: list[Event] = []
    for device, steps in enumerate(memory_timeline(plan)):
        changes = steps[:1] + [step for before, step in pairwise(steps) if step[1] != before[1]]
        events += [
            {
                "name": f"memory of {names[device]}",
                "ph": "C",
                "pid": PROCESS,
                "ts": _microseconds(nanoseconds(plan, time)),
                "args": {"GB": float(use)},
            }
            for time, use in changes
        ]
    return events
