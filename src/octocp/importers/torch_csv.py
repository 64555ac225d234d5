"""PyTorch's pipeline CSV: rows to devices, cells to ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from octocp.errors import InputError
from octocp.heuristics.partition import uniform
from octocp.importers.parsed import Parsed, bounds_of, check_layout, whole_backward
from octocp.problem import B, F, Problem, W
from octocp.runtimes.torch_csv import COMPUTE, Action, Table, parse
from octocp.runtimes.torch_rules import violations
from octocp.schedule import Layout, Op


def read_torch_csv(problem: Problem, text: str, partition: Sequence[int] | None = None) -> Parsed:
    """Read a CSV, with or without transfers; those say nothing that the order does not.

    Parameters
    ----------
    partition : sequence of int, optional
        Layers per stage, which the file does not say. By default the instance's, or the same number for every stage.

    Raises
    ------
    InputError
        PyTorch could not run it, or it does not fit the instance; with the cell.
    """
    table = parse(text)
    # Stage 0's I and W are a mistake in a file to run, and clear enough to read.
    broken = [line for line in violations(_without_first_stage_halves(table)) if line]
    if broken:
        rest = f", and {len(broken) - 1} more: octocp check --runtime tells all" if len(broken) > 1 else ""
        raise InputError(f"{broken[0]}{rest}")
    _check_size(problem, table)
    owner = table.owners()
    notes = []
    if any(action.stage == 0 and action.kind == "I" for row in table.rows for action in row):
        notes.append("stage 0's backwards run where their W is, as in PyTorch, whose I does nothing there")
    stages = table.stages
    if partition is None and problem.partition is None:
        notes.append(_partition_note(problem, stages))
    if partition is not None:
        _check_partition(problem, stages, partition)
    bounds = bounds_of(partition) if partition is not None else uniform(problem, stages)
    layout = Layout(bounds, tuple(owner[stage] for stage in range(stages)))
    check_layout(problem, layout, "rows")
    orders: list[list[Op]] = []
    fused: set[tuple[int, int]] = set()
    for row in table.rows:
        ops: list[Op] = []
        for action in row:
            if action.kind in COMPUTE:
                ops += _ops(problem, action, fused)
        orders.append(ops)
    return Parsed(layout, orders, frozenset(fused), tuple(notes))


def _partition_note(problem: Problem, stages: int) -> str:
    bounds = uniform(problem, stages)
    even = [end - begin for begin, end in pairwise(bounds)]
    return (
        f"the file has no partition: {even} is taken, as even as can be. For another, FILE@N,N,... (layers per stage), "
        "or stages.partition: [N, N, ...] in the instance"
    )


def _check_partition(problem: Problem, stages: int, partition: Sequence[int]) -> None:
    if len(partition) != stages or sum(partition) != problem.n_layers or min(partition) < 1:
        right = f"{stages} numbers from 1 on, {problem.n_layers} in all"
        what = f"{list(partition)} does not cut {problem.n_layers} layers into {stages} stages"
        raise InputError(what, place="partition", right=right)


def _without_first_stage_halves(table: Table) -> Table:
    rows = tuple(
        tuple(
            Action(a.stage, "B", a.microbatch, a.row, a.column) if (a.stage, a.kind) == (0, "W") else a
            for a in row
            if (a.stage, a.kind) != (0, "I")
        )
        for row in table.rows
    )
    halves = {(a.kind, a.microbatch) for row in table.rows for a in row if a.stage == 0 and a.kind in "IW"}
    complete = all((("W" if kind == "I" else "I"), microbatch) in halves for kind, microbatch in halves)
    return replace(table, rows=rows) if complete else table


def _check_size(problem: Problem, table: Table) -> None:
    if len(table.rows) != problem.n_devices:
        raise InputError(f"has {len(table.rows)} rows, one for each rank; the instance has {problem.n_devices} devices")
    for row in table.rows:
        for action in row:
            if (action.microbatch or 0) >= problem.n_microbatches:
                right = f"microbatches 0 to {problem.n_microbatches - 1}"
                raise InputError(f"{action.where}: the instance has {problem.n_microbatches} microbatches", right=right)
            if action.kind in ("I", "W") and not problem.split:
                raise InputError(
                    f"{action.where}: the instance does not split the backward", right="B, or split_backward: true"
                )
    if table.microbatches < problem.n_microbatches:
        raise InputError(f"has {table.microbatches} microbatches; the instance has {problem.n_microbatches}")
    if table.stages > problem.n_layers:
        raise InputError(f"has {table.stages} stages; the instance has {problem.n_layers} layers")


def _ops(problem: Problem, action: Action, fused: set[tuple[int, int]]) -> list[Op]:
    stage, microbatch = action.stage, action.microbatch or 0
    if action.kind == "F":
        return [Op(F, stage, microbatch)]
    if action.kind == "B" or (stage == 0 and action.kind == "W"):
        fused.add((stage, microbatch))
        return whole_backward(problem, stage, microbatch)
    if stage == 0:
        return []
    return [Op(B if action.kind == "I" else W, stage, microbatch)]
