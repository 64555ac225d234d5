"""Plans for JaxPP and Chakra: what is written, read back by other means."""

from __future__ import annotations

import ast
import dataclasses
import enum
import sys
import types
from collections import Counter, defaultdict
from itertools import chain
from typing import Any

import pytest

from handmade import toy_plan
from octocp.report.export import chakra, jaxpp
from runtime_plans import VEE, random_plans

# ---- JaxPP -----------------------------------------------------------------------------------


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A small jaxpp: the names that a schedule imports, with the checks of its base class."""
    schedules, kinds = types.ModuleType("jaxpp.schedules"), types.ModuleType("jaxpp.types")
    task_type = enum.Enum("TaskType", ["FWD", "BWD", "BWD_I", "BWD_W"])

    @dataclasses.dataclass(eq=True, frozen=True)
    class Base:
        num_stages: int
        is_partial_bwd: bool = dataclasses.field(default=False, init=False)

        def __post_init__(self) -> None:
            if self.num_stages <= 0:
                raise ValueError("num_stages")

    @dataclasses.dataclass(frozen=True)
    class Task:
        stage_id: int
        mubatch_idx: int
        fwd_or_bwd: Any

        @classmethod
        def make(cls, *arguments: Any) -> Task:
            return cls(*arguments)

    schedules.BaseSchedule, schedules.Task = Base, Task  # type: ignore[attr-defined]
    kinds.MpmdIdx, kinds.TaskType = int, task_type  # type: ignore[attr-defined]
    for name, module in (("jaxpp", types.ModuleType("jaxpp")), ("jaxpp.schedules", schedules), ("jaxpp.types", kinds)):
        monkeypatch.setitem(sys.modules, name, module)
    return task_type


@pytest.mark.parametrize("split", [True, False])
def test_the_jaxpp_class_runs(stand_in: Any, split: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for _, problem, plan in chain(random_plans(range(80)), random_plans(range(80), zeros=True)):
        if plan.instance.training.split_backward != split:
            continue
        source = jaxpp.export(plan).decode()
        ast.parse(source)
        # Dataclasses look their module up.
        module = types.ModuleType("exported")
        monkeypatch.setitem(sys.modules, "exported", module)
        names = module.__dict__
        exec(compile(source, "exported.py", "exec"), names)
        schedule = names["OctoCPSchedule"]()
        assert schedule.is_partial_bwd == split
        assert [schedule.get_mpmd_idx(stage) for stage in range(schedule.num_stages)] == plan.placement
        assert schedule.mpmd_dim == problem.n_devices
        # F, I and W of every stage, but one backward in stage 0; or F and B of every stage.
        stages = len(plan.placement)
        assert schedule.get_num_stages(3 * stages - 1 if split else 2 * stages) == stages
        tasks = schedule.tasks(problem.n_microbatches)
        kinds = (stand_in.FWD, stand_in.BWD_I, stand_in.BWD_W) if split else (stand_in.FWD, stand_in.BWD)
        wanted = {(s, m, kind) for s in range(stages) for m in range(problem.n_microbatches) for kind in kinds}
        given = Counter((t.stage_id, t.mubatch_idx, t.fwd_or_bwd) for row in tasks for t in row)
        assert given == Counter(wanted)
        for rank, row in enumerate(tasks):
            assert {plan.placement[task.stage_id] for task in row} == {rank}
            for one, other in zip(row, row[1:], strict=False):
                if one.stage_id == 0 and one.fwd_or_bwd == stand_in.BWD_I:
                    assert (other.stage_id, other.mubatch_idx, other.fwd_or_bwd) == (0, one.mubatch_idx, stand_in.BWD_W)
        _runs_through(tasks, stand_in)
        with pytest.raises(ValueError, match="microbatches"):
            schedule.tasks(problem.n_microbatches + 1)
        with pytest.raises(ValueError, match="stages"):
            names["OctoCPSchedule"](num_stages=stages + 1)


def _runs_through(tasks: Any, kinds: Any) -> None:
    """Run the ranks against each other: none may wait for ever."""
    done: set[tuple[int, str, int]] = set()
    stages = 1 + max(task.stage_id for row in tasks for task in row)
    at = [0] * len(tasks)

    def ready(task: Any) -> bool:
        s, m = task.stage_id, task.mubatch_idx
        if task.fwd_or_bwd == kinds.FWD:
            return s == 0 or (s - 1, "F", m) in done
        if task.fwd_or_bwd == kinds.BWD_W:
            return (s, "B", m) in done
        return (s, "F", m) in done and (s == stages - 1 or (s + 1, "B", m) in done)

    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(tasks):
            while at[rank] < len(row) and ready(row[at[rank]]):
                task = row[at[rank]]
                name = {"FWD": "F", "BWD_W": "W"}.get(task.fwd_or_bwd.name, "B")
                done.add((task.stage_id, name, task.mubatch_idx))
                at[rank] += 1
                moved = True
    assert at == [len(row) for row in tasks]


# ---- Chakra ----------------------------------------------------------------------------------


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at


def _fields(data: bytes) -> dict[int, list[Any]]:
    """Decode a message: values by field number."""
    found: dict[int, list[Any]] = defaultdict(list)
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        if tag & 7 == 0:
            value, at = _varint(data, at)
            found[tag >> 3].append(value)
        else:
            assert tag & 7 == 2
            length, at = _varint(data, at)
            found[tag >> 3].append(data[at : at + length])
            at += length
    return found


def _packed(data: list[bytes]) -> list[int]:
    values, at = [], 0
    for each in data:
        while at < len(each):
            value, at = _varint(each, at)
            values.append(value)
    return values


@dataclasses.dataclass
class Node:
    name: str
    kind: int
    control: list[int]
    data: list[int]
    start: int
    duration: int
    attributes: dict[str, int]


def _nodes(trace: bytes) -> list[Node]:
    messages, at = [], 0
    while at < len(trace):
        length, at = _varint(trace, at)
        messages.append(trace[at : at + length])
        at += length
    assert _fields(messages[0]) == {1: [b"0.0.4"]}
    nodes = []
    for number, message in enumerate(messages[1:]):
        fields = _fields(message)
        assert set(fields) <= {1, 2, 3, 4, 5, 6, 7, 10}
        assert fields.get(1, [0]) == [number]
        attributes = {}
        for attribute in map(_fields, fields[10]):
            (name,) = attribute.pop(1)
            ((field, (value,)),) = attribute.items()
            # int32 7, int64 9, bool 27, as the feeder reads them.
            assert field == {"is_cpu_op": 27, "comm_size": 9}.get(name.decode(), 7)
            attributes[name.decode()] = value
        start, duration = (fields.get(key, [0])[0] for key in (6, 7))
        nodes.append(
            Node(
                fields[2][0].decode(), fields[3][0], _packed(fields[4]), _packed(fields[5]), start, duration, attributes
            )
        )
    return nodes


@pytest.mark.parametrize(
    "changes",
    [{}, VEE, {"training__split_backward": False}, {"tick_us": 333.3, "training__op_overhead_us": 100.0}],
)
def test_chakra_traces_read_back(changes: dict[str, Any]) -> None:
    plan = toy_plan(**changes)
    traces = [_nodes(trace) for trace in chakra.export(plan)]
    ops = {(op.kind, op.stage, op.microbatch): op for op in plan.ops}
    seen = set()
    halves: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
    for device, nodes in enumerate(traces):
        previous = None
        for number, node in enumerate(nodes):
            assert all(need < number for need in node.control + node.data)
            assert node.attributes["is_cpu_op"] == 0
            if node.kind == 4:
                words = node.name.split()
                key = (words[0], int(words[2]), int(words[4]))
                op = ops[key]
                seen.add(key)
                assert op.device == device
                assert node.start == round(op.start * plan.tick_us)
                assert node.start + node.duration == round(op.end * plan.tick_us)
                assert node.control == ([] if previous is None else [previous])
                assert all(nodes[need].kind in (4, 6) for need in node.data)
                previous = number
            else:
                assert (node.duration, node.start) == (0, 0)
                pair = node.attributes["comm_src"], node.attributes["comm_dst"], node.attributes["comm_tag"]
                assert pair[0 if node.kind == 5 else 1] == device
                halves[pair].append((node.kind, node.attributes["comm_size"]))
                assert [nodes[need].kind for need in node.data] == ([4] if node.kind == 5 else [])
    assert seen == set(ops)
    cuts = [stage for stage in range(len(plan.placement) - 1) if plan.placement[stage] != plan.placement[stage + 1]]
    assert len(halves) == 2 * len(cuts) * 4
    kinds = plan.instance.model.layer_kinds()
    sizes = {plan.instance.model.kinds[kinds[sum(plan.partition[: cut + 1]) - 1]].output_mb for cut in cuts}
    for both in halves.values():
        (one, size), (other, same) = sorted(both)
        assert (one, other, size) == (5, 6, same)
        assert size / 1e6 in sizes


def test_chakra_waits_only_for_what_is_before_it() -> None:
    """Ops of length zero too: a node may only name nodes that come first in its trace."""
    count = 0
    for _, problem, plan in random_plans(range(60), zeros=True):
        traces = [_nodes(trace) for trace in chakra.export(plan)]
        assert sum(node.kind == 4 for nodes in traces for node in nodes) == len(plan.ops)
        assert len(traces) == problem.n_devices
        for nodes in traces:
            assert all(need < number for number, node in enumerate(nodes) for need in node.control + node.data)
        count += 1
    assert count > 30


def test_varints() -> None:
    from octocp.runtimes.protobuf import number, varint

    for value in (0, 1, 127, 128, 300, 2**32, 2**63, 2**64 - 1):
        assert _varint(varint(value), 0) == (value, len(varint(value)))
    assert varint(300) == b"\xac\x02"
    assert len(varint(-1)) == 10
    assert number(1, 0) == b""
    assert number(1, 0, always=True) == b"\x08\x00"
