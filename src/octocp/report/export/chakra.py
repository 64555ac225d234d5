"""MLCommons Chakra execution traces (.et), one per device, for simulators such as ASTRA-sim.

A file is a GlobalMetadata message and then one Node message an op or half of a transfer, each behind its length
(github mlcommons/chakra, schema/protobuf/et_def.proto; attributes as its feeder reads them).
"""

from __future__ import annotations

from octocp.checker.exact import ExactCosts
from octocp.report.export.timeline import Timeline, timeline
from octocp.report.units import nanoseconds
from octocp.runtimes.protobuf import content, delimited, number, numbers
from octocp.schema import Plan, PlanOp

VERSION = "0.0.4"
COMP_NODE, COMM_SEND_NODE, COMM_RECV_NODE = 4, 5, 6
# Fields of Node, and of AttributeProto with its oneof of values.
ID, NAME, TYPE, CTRL_DEPS, DATA_DEPS, START, DURATION, ATTR = 1, 2, 3, 4, 5, 6, 7, 10
ATTR_NAME, INT32, INT64, BOOL = 1, 7, 9, 27

Key = tuple[str, int, int]


def export(plan: Plan) -> list[bytes]:
    """Return the trace of every device.

    Times are whole microseconds, as the format has them: starts and ends are rounded, so that nothing drifts. An op
    follows the one before it on its device (a control dependency) and what it needs (data dependencies): an op of the
    same device, or the receive of a transfer. Sizes of transfers are bytes.
    """
    line = timeline(plan)
    return [_trace(line, device) for device in range(len(line.orders))]


def _microseconds(plan: Plan, ticks: int) -> int:
    return (nanoseconds(plan, ticks) + 500) // 1000


def _trace(line: Timeline, device: int) -> bytes:
    plan, placement = line.plan, line.plan.placement
    costs = ExactCosts(plan)
    nodes: list[bytes] = []
    ids: dict[Key, int] = {}
    previous: int | None = None

    def add(name: str, kind: int, control: list[int], data: list[int], body: bytes) -> int:
        identity = len(nodes)
        nodes.append(
            number(ID, identity)
            + content(NAME, name)
            + number(TYPE, kind)
            + numbers(CTRL_DEPS, control)
            + numbers(DATA_DEPS, data)
            + body
        )
        return identity

    for op in line.orders[device]:
        data = []
        for need in _needs(line, op):
            source = placement[need[1]]
            if source == device:
                data.append(ids[need])
            else:
                message = _message(line, costs, need, op.stage, source, device)
                data.append(add(f"receive {_name(need)}", COMM_RECV_NODE, [], [], message))
        start, end = _microseconds(plan, op.start), _microseconds(plan, op.end)
        body = number(START, start) + number(DURATION, end - start) + _attribute("is_cpu_op", BOOL, 0)
        key = op.kind, op.stage, op.microbatch
        previous = add(_name(key), COMP_NODE, [] if previous is None else [previous], data, body)
        ids[key] = previous
        receiver = _receiver(line, op)
        if receiver is not None and placement[receiver] != device:
            message = _message(line, costs, key, receiver, device, placement[receiver])
            add(f"send {_name(key)}", COMM_SEND_NODE, [], [previous], message)
    return delimited(content(1, VERSION)) + b"".join(map(delimited, nodes))


def _name(key: Key) -> str:
    return f"{key[0]} stage {key[1]} microbatch {key[2]}"


def _needs(line: Timeline, op: PlanOp) -> list[Key]:
    """Return what must have ended, and arrived, before an op."""
    stage, microbatch = op.stage, op.microbatch
    if op.kind == "F":
        return [("F", stage - 1, microbatch)] if stage else []
    if op.kind == "W":
        return [("B", stage, microbatch)]
    own: list[Key] = [("F", stage, microbatch)]
    return [*own, ("B", stage + 1, microbatch)] if stage < line.stages - 1 else own


def _receiver(line: Timeline, op: PlanOp) -> int | None:
    """Return the stage that an op's result goes to."""
    if op.kind == "F":
        return op.stage + 1 if op.stage < line.stages - 1 else None
    return op.stage - 1 if op.kind == "B" and op.stage else None


def _message(line: Timeline, costs: ExactCosts, key: Key, receiver: int, source: int, target: int) -> bytes:
    """Return the attributes of both halves of a transfer; equal tags pair them."""
    kind, stage, microbatch = key
    size = costs.stages[min(stage, receiver)].output * costs.lengths[microbatch] * 10**9
    tag = (microbatch * line.stages + stage) * 2 + (kind != "F")
    return (
        _attribute("is_cpu_op", BOOL, 0)
        + _attribute("comm_src", INT32, source)
        + _attribute("comm_dst", INT32, target)
        + _attribute("comm_tag", INT32, tag)
        + _attribute("comm_size", INT64, round(size))
    )


def _attribute(name: str, field: int, value: int) -> bytes:
    return content(ATTR, content(ATTR_NAME, name) + number(field, value, always=True))


def notes(plan: Plan) -> list[str]:
    """Return what the traces do not say."""
    del plan
    return ["durations are whole microseconds; links are the simulator's own, sizes of transfers are in the traces"]
