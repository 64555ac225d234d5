"""Which partitions and placements fit in memory at all: a small exact model, apart from any order.

Fact. When F of a microbatch on the last stage ends, every plan holds that microbatch's activations of all
stages: a device's peak is at least the static and activation sizes of its layers, whatever the cuts. Where no stage's
weight part exceeds its activation, running one microbatch after the other (`heuristics.serial`) needs no
more. So layers fit if and only if they can be dealt out in stages with these sums within the limits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ortools.sat.python import cp_model

from octocp.cpsat.assignment import activation_is_held, assignment, memory, stage_rules
from octocp.cpsat.build import Build, Linear
from octocp.cpsat.families import partition, placement
from octocp.cpsat.families.symmetry import first_use
from octocp.cpsat.run import new_solver, solve_model
from octocp.heuristics.partition import balanced
from octocp.problem import Problem
from octocp.schedule import Layout

CLOSEST_SECONDS = 3.0


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


def pack(problem: Problem, *, seconds: float, seed: int = 0, balance: bool = False, serial: bool = False) -> Packing:
    """Deal the layers out so that the largest overrun of a memory limit is least.

    Parameters
    ----------
    balance : bool
        Among the layouts that fit, prefer an even load.
    serial : bool
        Count weight parts too, as the serial schedule holds them: when W of a stage runs, the stages below it on the
        device still hold their activations. Not needed by every plan: only the status "fits" says anything.
    """
    if serial:
        found = _least_overrun(problem, seconds=seconds, seed=seed, balance=False, serial=True)
        return found if found.status == "fits" else Packing("unknown")
    if all(cap is None for cap in problem.capacity) and not problem.colocate:
        return Packing("fits", _any_layout(problem))
    if problem.family == "free" and problem.partition is None:
        quick = _pack_runs(problem, seconds=seconds, seed=seed, balance=balance)
        if quick is not None:
            return quick
    return _least_overrun(problem, seconds=seconds, seed=seed, balance=balance)


def _pack_runs(problem: Problem, *, seconds: float, seed: int, balance: bool) -> Packing | None:
    """Give each uncuttable run a device, limits kept: small where cuts and placement are both free.

    Returns None where that does not settle it.
    """
    model = cp_model.CpModel()
    on = assignment(problem, model)
    stage_rules(problem, model, on)
    memory(problem, model, on)
    if balance:
        work = [sum(prefix[end] - prefix[begin] for prefix in problem.prefix_ticks) for begin, end in problem.units]
        most = model.new_int_var(0, sum(work), "largest load")
        for device in range(problem.n_devices):
            model.add(sum(ticks * row[device] for ticks, row in zip(work, on, strict=True)) <= most)
        model.minimize(most)
    solver = new_solver(seconds=seconds, workers=1, seed=seed)
    status = solve_model(model, solver)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        layout = _merged(problem, [[bool(solver.value(literal)) for literal in row].index(True) for row in on])
        return Packing("fits", layout) if layout is not None else None
    if status != cp_model.INFEASIBLE or not activation_is_held(problem):
        return None
    # Proven. Now name the device and the amount, in the best layout that a short search finds.
    model = cp_model.CpModel()
    on = assignment(problem, model)
    stage_rules(problem, model, on)
    over = model.new_int_var(0, sum(sum(problem.stage_memory(*unit)[:2]) for unit in problem.units), "overrun")
    memory(problem, model, on, over)
    model.minimize(over)
    solver = new_solver(seconds=CLOSEST_SECONDS, workers=1, seed=seed)
    status = solve_model(model, solver)
    if status == cp_model.INFEASIBLE:
        return Packing("no layout")
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    layout = _merged(problem, [[bool(solver.value(literal)) for literal in row].index(True) for row in on])
    return None if layout is None else replace(_overrun(problem, layout), status="impossible")


def _merged(problem: Problem, device_of: list[int]) -> Layout | None:
    """Turn a device for each run into stages: neighbours on one device join, unless more stages are asked for."""
    begins = [u for u, device in enumerate(device_of) if u == 0 or device_of[u - 1] != device]
    held = [sum(device_of[u] == device for u in begins) for device in range(problem.n_devices)]
    for u, device in enumerate(device_of):
        if len(begins) < problem.min_stages and u not in begins and held[device] < problem.max_per_device:
            begins.append(u)
            held[device] += 1
    begins.sort()
    layout = Layout((*(problem.units[u][0] for u in begins), problem.n_layers), tuple(device_of[u] for u in begins))
    return layout if layout.violation(problem) is None else None


def _least_overrun(problem: Problem, *, seconds: float, seed: int, balance: bool, serial: bool = False) -> Packing:
    """Minimise the largest overrun of a limit over every partition and placement."""
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
    if serial:
        weights = _shares(build, list(problem.weight_activation[0]))
        for device, cap in enumerate(problem.capacity):
            if cap is None:
                continue
            static = sum(row[device] for row in _shares(build, list(problem.static)))
            held: Linear = 0
            for stage, row in enumerate(_shares(build, list(problem.activation[0]))):
                build.model.add(static + held + weights[stage][device] <= cap + over)
                held += row[device]
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
    found = _overrun(problem, _layout(build, solver))
    if serial and solver.value(over):
        return Packing("unknown")
    # Where F and B of the last stage take no time, its activation may never be held.
    proven = status == cp_model.OPTIMAL and not balance and activation_is_held(problem)
    return replace(found, status="impossible") if proven and found.status != "fits" else found


def _overrun(problem: Problem, layout: Layout) -> Packing:
    """Return a layout as a packing: it fits, or (unproven) names the device most over its limit."""
    needs = least_need(problem, layout)
    limits = [need if cap is None else cap for need, cap in zip(needs, problem.capacity, strict=True)]
    device = max(range(problem.n_devices), key=lambda d: needs[d] - limits[d])
    if needs[device] <= limits[device]:
        return Packing("fits", layout)
    return Packing("unknown", layout, device, needs[device], limits[device])


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
