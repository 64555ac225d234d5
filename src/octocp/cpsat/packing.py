"""Which partitions and placements fit in memory at all: a small exact model, apart from any order.

Fact. When F of a microbatch on the last stage ends, every plan holds that microbatch's activations of all
stages: a device's peak is at least the static and activation sizes of its layers, whatever the cuts. Where no stage's
weight part exceeds its activation, running one microbatch after the other (`heuristics.serial`) needs no
more. So layers fit if and only if they can be dealt out in stages with these sums within the limits.
"""

from __future__ import annotations

from dataclasses import dataclass

from ortools.sat.python import cp_model

from octocp.cpsat.build import Build, Linear
from octocp.cpsat.families import partition, placement
from octocp.cpsat.families.symmetry import first_use
from octocp.cpsat.run import new_solver, solve_model
from octocp.heuristics.partition import balanced
from octocp.problem import B, F, Problem
from octocp.schedule import Layout


@dataclass(frozen=True)
class Packing:
    """The layout with the least memory overrun.

    Attributes
    ----------
    status : str
        "fits", "impossible" (proven), "no layout" (proven: the stage rules contradict each other), or "unknown".
    layout : Layout or None
        The best layout found.
    device, need, cap : int
        The device most over its limit in `layout`, in memory units (status "impossible").
    """

    status: str
    layout: Layout | None = None
    device: int = 0
    need: int = 0
    cap: int = 0


def least_need(problem: Problem, layout: Layout) -> list[int]:
    """Return what each device must hold at least under a layout, in memory units."""
    needs = []
    for device in range(problem.n_devices):
        spans = [layout.bounds[stage : stage + 2] for stage in layout.stages_on(device)]
        sizes = [problem.stage_memory(begin, end) for begin, end in spans]
        needs.append(sum(static + activation for static, activation, _ in sizes))
    return needs


def pack(problem: Problem, *, seconds: float, seed: int = 0, balance: bool = False) -> Packing:
    """Deal the layers out so that the largest overrun of a memory limit is least.

    Parameters
    ----------
    balance : bool
        Among the layouts that fit, prefer an even load.
    """
    if all(cap is None for cap in problem.capacity) and not problem.colocate:
        return Packing("fits", _any_layout(problem))
    build = Build(
        problem,
        slots=problem.max_stages,
        least_stages=problem.min_stages,
        horizon=problem.serial_ticks,
        lower=0,
        upper=problem.serial_ticks,
    )
    for family in (partition.cuts, placement.presence, placement.colocate, first_use):
        family(build)
    each = [problem.static[layer] + problem.activation[0][layer] for layer in range(problem.n_layers)]
    work = [sum(row[layer] for row in problem.layer_ticks) for layer in range(problem.n_layers)]
    over = build.model.new_int_var(0, sum(each), "overrun")
    shares = _shares(build, each)
    for device, cap in enumerate(problem.capacity):
        if cap is not None:
            build.model.add(sum(row[device] for row in shares) <= cap + over)
    if balance:
        most = build.model.new_int_var(0, sum(work), "largest load")
        loads = _shares(build, work)
        for device in build.devices:
            build.model.add(sum(row[device] for row in loads) <= most)
        build.model.minimize(over * (sum(work) + 1) + most)
    else:
        build.model.minimize(over)
    solver = new_solver(seconds=seconds, workers=1, seed=seed)
    status = solve_model(build.model, solver)
    if status == cp_model.INFEASIBLE:
        return Packing("no layout")
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Packing("unknown")
    layout = _layout(build, solver)
    needs = least_need(problem, layout)
    excess, device, cap = max(
        (need - cap, device, cap)
        for device, (need, cap) in enumerate(
            zip(
                needs,
                (c if c is not None else need for c, need in zip(problem.capacity, needs, strict=True)),
                strict=True,
            )
        )
    )
    if excess <= 0:
        return Packing("fits", layout)
    # Where F and B of the last stage take no time, its activation may never be held.
    takes_time = any(problem.duration(kind, *problem.units[-1]) for kind in (F, B))
    proven = status == cp_model.OPTIMAL and not balance and takes_time
    return Packing("impossible" if proven else "unknown", layout, device, needs[device], cap)


def _any_layout(problem: Problem) -> Layout:
    """Return a layout that meets the stage rules, where neither memory nor colocation limits the choice."""
    stages = problem.min_stages
    cyclic = tuple(stage % problem.n_devices for stage in range(stages))
    return Layout(balanced(problem, stages), problem.placement_for(stages) or cyclic)


def _shares(build: Build, per_layer: list[int]) -> list[list[Linear]]:
    """Return each stage's size on each device: the size where the stage lies, zero elsewhere."""
    rows: list[list[Linear]] = []
    whole = sum(per_layer)
    for stage in build.stages:
        size = build.over_stage(per_layer, stage)
        row: list[Linear] = []
        for device in build.devices:
            here = build.on[stage][device]
            if isinstance(here, int):
                row.append(size if here else 0)
            elif build.problem.family != "free":
                row.append(size)
            elif isinstance(size, int):
                row.append(size * here)
            else:
                share = build.model.new_int_var(0, whole, "")
                build.model.add(share <= whole * here)
                row.append(share)
        rows.append(row)
        if (
            any(not isinstance(here, int) for here in build.on[stage])
            and not isinstance(size, int)
            and build.problem.family == "free"
        ):
            build.model.add(sum(row) == size)
    return rows


def _layout(build: Build, solver: cp_model.CpSolver) -> Layout:
    def read(expression: Linear) -> int:
        return expression if isinstance(expression, int) else int(solver.value(expression))

    stages = sum(read(active) for active in build.active)
    bounds = (*(read(build.cut[stage]) for stage in range(stages)), build.problem.n_layers)
    placement_ = tuple(next(d for d in build.devices if read(build.on[stage][d])) for stage in range(stages))
    return Layout(bounds, placement_)
