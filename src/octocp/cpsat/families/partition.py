"""Partition: where the stages are cut, and how long their ops take, through prefix sums."""

from __future__ import annotations

from fractions import Fraction
from math import lcm

from octocp.cpsat.build import Build, KnownPlan, Linear


def cuts(build: Build) -> None:
    """Decide the cuts, in order encoding: one literal per (stage, unit), "this unit lies in this stage or a later one".

    A unit is an indivisible run of layers. Sums over a stage are differences of prefix sums, linear in
    these literals. Where all layers are alike, the cut position alone carries them and the literals are left out.
    Slots from `least_stages` on may be inactive: their cut is at the last layer's end.
    """
    problem, slots, least = build.problem, build.slots, build.least_stages
    if build.fixed_cuts is not None:
        build.cut, build.active = list(build.fixed_cuts), [1] * slots
        return
    units, layers = problem.units, problem.n_layers
    if build.alike:
        _plain_cuts(build)
        return

    def variable(stage: int, unit: int) -> Linear:
        if stage == 0 or (stage < least and unit >= len(units) - (least - stage)):
            return 1
        if stage == slots or unit < stage:
            return 0
        begin = units[unit][0]
        return build.literal(f"layer {begin} at or after stage {stage}", KnownPlan.at_or_after, stage, begin)

    after = [[variable(stage, unit) for unit in range(len(units))] for stage in range(slots + 1)]
    for stage, row in enumerate(after):
        for unit in range(len(units) - 1):
            _implies(build, row[unit], row[unit + 1])
        if stage:
            for unit in range(1, len(units)):
                _implies(build, row[unit], after[stage - 1][unit - 1])
    unit_of = [number for number, (begin, end) in enumerate(units) for _ in range(begin, end)]
    build.layer_at_or_after = [[row[unit_of[layer]] for layer in range(layers)] for row in after]
    build.cut = [layers - sum(row) for row in build.layer_at_or_after]
    build.active = [row[-1] for row in after[:slots]]


def _plain_cuts(build: Build) -> None:
    slots, least, layers = build.slots, build.least_stages, build.problem.n_layers
    build.active = [
        1 if stage < least else build.literal(f"stage {stage} active", KnownPlan.active, stage)
        for stage in range(slots)
    ]
    build.cut = [0]
    for stage in range(1, slots):
        latest = layers - (least - stage) if stage < least else layers
        build.cut.append(build.integer(stage, latest, f"cut {stage}", KnownPlan.cut_at, stage))
    build.cut.append(layers)
    for stage in range(slots):
        build.model.add(build.cut[stage + 1] >= build.cut[stage] + build.active[stage])
        if stage >= least:
            build.model.add(build.cut[stage] <= layers - build.active[stage])
            build.model.add(build.cut[stage] == layers).only_enforce_if(~build.active[stage])
            _implies(build, build.active[stage], build.active[stage - 1])


def _implies(build: Build, one: Linear, other: Linear) -> None:
    if isinstance(one, int) and isinstance(other, int):
        if one > other:
            build.model.add_bool_or([])
    elif isinstance(one, int):
        if one:
            build.model.add_bool_or([other])
    elif isinstance(other, int):
        if not other:
            build.model.add_bool_or([~one])
    else:
        build.model.add_implication(one, other)


def durations(build: Build) -> None:
    """Define one duration per (stage, kind): the layer sum, scaled, plus overhead, rounded up.

    Zero in an inactive slot. With scale n/d and overhead p/q the rounding up is exact in integers:
    ``D x duration`` lies in [exact, exact + D - 1] for D = lcm(d, q).
    """
    problem = build.problem
    scale: Fraction = problem.scale[0][0]
    overhead = problem.overhead
    common = lcm(scale.denominator, overhead.denominator)
    build.duration = []
    for kind in problem.kinds:
        row: list[Linear] = []
        for stage in build.stages:
            if build.fixed_cuts is not None:
                row.append(problem.duration(kind, *build.fixed_cuts[stage : stage + 2]))
                continue
            low, high = _range(build, kind, stage)
            ticks = build.integer(low, high, f"{'FBW'[kind]}{stage} ticks", KnownPlan.duration, kind, stage)
            layer_sum = build.over_stage(problem.layer_ticks[kind], stage)
            exact = int(scale * common) * layer_sum + int(overhead * common) * build.active[stage]
            if common == 1:
                build.model.add(ticks == exact)
            else:
                build.model.add_linear_constraint(common * ticks - exact, 0, common - 1)
            row.append(ticks)
        build.duration.append(row)


def _range(build: Build, kind: int, stage: int) -> tuple[int, int]:
    """Return the least and largest duration a stage can have, given where it can begin and what fits the horizon."""
    problem, units = build.problem, build.problem.units
    slots, least, count = build.slots, build.least_stages, len(build.problem.units)
    last_unit = count - max(0, least - 1 - stage)
    if stage == slots - 1:
        first_unit = 0 if stage == 0 else stage
        whole = [problem.duration(kind, units[u][0], problem.n_layers) for u in range(first_unit, last_unit)]
        low, high = min(whole), max(whole)
    else:
        first_unit = 0 if stage == 0 else stage
        first_units = range(1) if stage == 0 else range(first_unit, last_unit)
        low = min(problem.duration(kind, *units[u]) for u in first_units)
        high = problem.duration(kind, units[first_unit][0], units[last_unit - 1][1])
    if stage >= least:
        low = 0
    most = build.horizon // problem.n_microbatches
    return min(low, most), max(min(low, most), min(high, most))
