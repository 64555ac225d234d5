"""A bound from a small exact model: which device holds each uncuttable run of layers, with no order at all.

Loads are whole runs of layers, so the best even split of the work is often far above the average: the model finds it,
with each device's head and tail, memory and the stage rules. It relaxes every plan: a plan's stages give each run a
device; a device's wait before its lowest run, its load, and what follows its last F or B hold as in
`octocp.bounds`. Rounding after scaling is left out, which only lowers durations.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ortools.sat.python import cp_model

from octocp.bounds.base import Bound
from octocp.cpsat.assignment_memory import memory_over_time
from octocp.cpsat.assignment_waits import waits
from octocp.cpsat.run import new_solver, solve_model, whole_bound
from octocp.problem import B, F, Problem, W
from octocp.schedule import Layout


def assignment_bound(
    problem: Problem,
    *,
    known: int,
    upper: int | None,
    seconds: float,
    workers: int = 1,
    seed: int = 0,
    stopped: Callable[[], bool] = lambda: False,
    thorough: bool = False,
    on_layout: Callable[[Layout], None] = lambda _: None,
) -> Bound:
    """Bound the objective by the best assignment of runs of layers to devices.

    Parameters
    ----------
    known : int
        A proven bound, ticks.
    upper : int or None
        Value of a known plan, ticks.
    thorough : bool
        Whether the larger models may take all the time that the simple one leaves.
    on_layout : callable
        Called with the layout of the best assignment found, which need not have a good order.

    Returns
    -------
    Bound
        Valid for the whole instance, also when the time is over before the model is closed.
    """
    nothing = Bound("balanced load", 0, "needs microbatches and devices that are alike, and several devices")
    if not (problem.uniform_microbatches and problem.uniform_devices) or problem.n_devices == 1:
        return nothing
    if problem.family != "free":
        return nothing
    began = time.monotonic()
    best, closed = 0, True
    for level in range(LEVELS):
        left = seconds - (time.monotonic() - began)
        if not closed or left <= 0 or (level and left < LEAST_SHARE_OF_LEVEL * seconds):
            break
        at_least = max(known, best)
        if upper is not None and at_least >= upper:
            break
        if level and not thorough:
            left = min(left, max(LEAST_SECONDS_OF_LEVEL, time.monotonic() - began))
        found, closed = _solve(
            problem,
            at_least,
            upper,
            level=level,
            seconds=left,
            workers=workers,
            seed=seed,
            stopped=stopped,
            on_layout=on_layout,
        )
        best = max(best, found)
    if not best:
        return nothing
    return Bound("balanced load", best, "best assignment of layers to devices, with heads and tails")


# The model grows by level, each only once the one before is closed: loads; all waits; op classes.
LEVELS = 3
WAITS, CLASSES = 1, 2
# A level gets as long as those before took, at least so many seconds, if at least this share of the time is left.
LEAST_SECONDS_OF_LEVEL = 0.5
LEAST_SHARE_OF_LEVEL = 0.3


def _solve(
    problem: Problem,
    known: int,
    upper: int | None,
    *,
    level: int,
    seconds: float,
    workers: int,
    seed: int,
    stopped: Callable[[], bool],
    on_layout: Callable[[Layout], None],
) -> tuple[int, bool]:
    """Build and solve the model; return its bound in ticks (0 where it found none) and whether it is closed."""
    model = cp_model.CpModel()
    scale = problem.min_scale
    low = int(known / scale)
    high = max(low, -int(-(upper if upper is not None else problem.serial_ticks) // scale))
    value = model.new_int_var(low, high, "objective")
    on = assignment(problem, model)
    stage_rules(problem, model, on)
    if activation_is_held(problem):
        memory(problem, model, on)
    _loads(problem, model, on, value)
    if level >= CLASSES:
        _op_classes(problem, model, on, value)
    memory_over_time(problem, model, on, value, known=low)
    waits(problem, model, on, value, all_of_them=level >= WAITS)
    model.minimize(value)
    solver = new_solver(seconds=seconds, workers=workers, seed=seed)
    status = solve_model(model, solver, stopped=stopped)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return 0, False
    found = _layout(problem, [[solver.boolean_value(literal) for literal in row] for row in on])
    if found is not None:
        on_layout(found)
    # The variable stands for makespan / scale rounded up: the makespan is above (best - 1) x scale.
    return int((whole_bound(solver) - 1) * scale // 1) + 1, status == cp_model.OPTIMAL


def _layout(problem: Problem, on: list[list[bool]]) -> Layout | None:
    """Return an assignment as stages, as few as it allows; None where the instance has it otherwise."""
    devices = [row.index(True) for row in on]
    firsts = [u for u in range(len(devices)) if not u or devices[u] != devices[u - 1]]
    if problem.fixed_bounds is not None or not problem.min_stages <= len(firsts) <= problem.max_stages:
        return None
    bounds = [problem.units[u][0] for u in firsts]
    return Layout((*bounds, problem.n_layers), tuple(devices[u] for u in firsts))


def assignment(problem: Problem, model: cp_model.CpModel) -> list[list[cp_model.IntVar]]:
    """Create one literal per (run of layers, device); every device gets at least one run."""
    devices = range(problem.n_devices)
    on = [[model.new_bool_var(f"run {u} on {d}") for d in devices] for u in range(len(problem.units))]
    for row in on:
        model.add_exactly_one(row)
    for device in devices:
        model.add_bool_or(row[device] for row in on)
    unit_of = [u for u, (begin, end) in enumerate(problem.units) for _ in range(begin, end)]
    for group in problem.colocate:
        for layer in group[1:]:
            for device in devices:
                model.add(on[unit_of[group[0]]][device] == on[unit_of[layer]][device])
    if problem.fixed_bounds is not None:
        starts = set(problem.fixed_bounds)
        for u, (begin, _) in enumerate(problem.units):
            if begin not in starts:
                for device in devices:
                    model.add(on[u][device] == on[u - 1][device])
    return on


def stage_rules(problem: Problem, model: cp_model.CpModel, on: list[list[cp_model.IntVar]]) -> None:
    """Limit how often the device changes along the layers: each run of one device is at least one stage."""
    if problem.max_per_device >= len(problem.units) - problem.n_devices + 1 and problem.max_stages >= len(
        problem.units
    ):
        return
    changes = []
    for device in range(problem.n_devices):
        begins = [on[0][device]]
        for u in range(1, len(on)):
            begin = model.new_bool_var(f"device {device} begins at run {u}")
            model.add_bool_or([begin, ~on[u][device], on[u - 1][device]])
            begins.append(begin)
        model.add(sum(begins) <= problem.max_per_device)
        changes += begins
    model.add(sum(changes) <= problem.max_stages)


def activation_is_held(problem: Problem) -> bool:
    """Whether every plan holds a microbatch's activations of all stages at once (see `octocp.cpsat.packing`)."""
    return any(problem.duration(kind, *problem.units[-1]) for kind in (F, B))


def memory(
    problem: Problem, model: cp_model.CpModel, on: list[list[cp_model.IntVar]], overrun: cp_model.IntVar | int = 0
) -> None:
    """Hold each device's static and activation sizes within its limit, or at most `overrun` above it.

    Of runs that each need at least w, a device holds at most limit // w: sums of large sizes alone
    leave the solver to find that by trying.
    """
    sizes = [sum(problem.stage_memory(*unit)[:2]) for unit in problem.units]
    for device, cap in enumerate(problem.capacity):
        if cap is None:
            continue
        model.add(sum(size * row[device] for size, row in zip(sizes, on, strict=True)) <= cap + overrun)
        for least in sorted(set(sizes) - {0}) if isinstance(overrun, int) else ():
            large = [row[device] for size, row in zip(sizes, on, strict=True) if size >= least]
            if cap // least < len(large):
                model.add(sum(large) <= cap // least)


def _loads(problem: Problem, model: cp_model.CpModel, on: list[list[cp_model.IntVar]], value: cp_model.IntVar) -> None:
    """Bound the objective by head, load and tail of every device."""
    M, devices, units = problem.n_microbatches, range(problem.n_devices), problem.units
    prefix = problem.prefix_ticks
    cost = [[prefix[kind][end] - prefix[kind][begin] for begin, end in units] for kind in (F, B, W)]
    spans = problem.objective == "span"
    used: list[list[cp_model.IntVar]] = []
    for u in range(len(units)):
        row = [model.new_bool_var(f"{d} used by run {u}") for d in devices]
        for device in devices:
            model.add_implication(on[u][device], row[device])
            if u:
                model.add_implication(used[-1][device], row[device])
                model.add_bool_or([used[-1][device], on[u][device], ~row[device]])
            else:
                model.add_implication(row[device], on[u][device])
        used.append(row)
    for one in devices:
        for other in range(one + 1, problem.n_devices):
            if problem.device_class[one] == problem.device_class[other]:
                for u in range(len(units)):
                    model.add_bool_or([~on[u][other], *([used[u - 1][one]] if u else [])])
                break
    heads = []
    work = M * sum(sum(row) for row in cost)
    for device in devices:
        head = sum(f * (1 - used[u][device]) for u, f in enumerate(cost[F]))
        tail = sum(b * (1 - used[u][device]) for u, b in enumerate(cost[B])) + cost[W][0]
        both = M * sum((cost[F][u] + cost[B][u]) * on[u][device] for u in range(len(units)))
        late = M * sum(cost[W][u] * on[u][device] for u in range(len(units)))
        model.add(head + both + tail <= value)
        model.add((both + late if spans else head + both + late) <= value)
        heads.append(head)
    if not spans:
        model.add(work + sum(heads) <= problem.n_devices * value)


def _op_classes(
    problem: Problem, model: cp_model.CpModel, on: list[list[cp_model.IntVar]], value: cp_model.IntVar
) -> None:
    """Bound the objective by what each device must do of a class of ops, between what precedes and follows the class.

    Think of ops as their runs' pieces, F upwards, B downwards. For every run u and every device:

    - F and B of the runs from u on: they start after the forwards below u, and after the last of them, a B, come
      the backwards below u and the first run's W;
    - all ops of the runs from u on: they start after the forwards below u (makespan);
    - B and W of the runs up to u: they start after all forwards and the backwards above u (makespan).

    One device does them one after the other. Where it holds none of the runs, what is left is part of one
    microbatch's chain, so it holds as well.
    """
    M, units, prefix = problem.n_microbatches, problem.units, problem.prefix_ticks
    cost = [[prefix[kind][end] - prefix[kind][begin] for begin, end in units] for kind in (F, B, W)]
    spans = problem.objective == "span"
    for u, (begin, end) in enumerate(units):
        below, back = prefix[F][begin], prefix[B][begin] + cost[W][0]
        chain = prefix[F][-1] + prefix[B][-1] - prefix[B][end]
        for device in range(problem.n_devices):
            from_u = [(row[device], v) for v, row in enumerate(on) if v >= u]
            model.add(below + M * sum((cost[F][v] + cost[B][v]) * held for held, v in from_u) + back <= value)
            if spans:
                continue
            model.add(below + M * sum((cost[F][v] + cost[B][v] + cost[W][v]) * held for held, v in from_u) <= value)
            up_to_u = [(row[device], v) for v, row in enumerate(on) if v <= u]
            model.add(chain + M * sum((cost[B][v] + cost[W][v]) * held for held, v in up_to_u) <= value)
