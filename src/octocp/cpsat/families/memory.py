"""Memory: what the stages of a device hold, in flight and for good, within its limit."""

from __future__ import annotations

from octocp.cpsat.build import Build, KnownPlan, Linear, limits
from octocp.problem import B, F, W


def memory(build: Build) -> None:
    """Add one cumulative per limited device over two interval families, [F start, B end) and [B end, W end).

    What the stages hold for good lowers the capacity. Demands are linear in the cuts.
    """
    problem = build.problem
    if not problem.has_memory_limit:
        return
    static = _sizes(build, "static", problem.static)
    demands = [_sizes(build, "activation", problem.activation[0])]
    if problem.split:
        demands.append(_sizes(build, "weight activation", problem.weight_activation[0]))
    lives = [_lives(build, F, B), _lives(build, B, W)] if problem.split else [_lives(build, F, B)]
    for device, cap in enumerate(problem.capacity):
        if cap is None:
            continue
        held = [_held(build, static[stage], stage, device) for stage in build.stages]
        capacity = _capacity(build, cap, held, device)
        intervals, sizes = [], []
        for family, life in zip(demands, lives, strict=True):
            for stage in build.stages:
                here, demand = build.on[stage][device], family[stage]
                if (isinstance(here, int) and not here) or (isinstance(demand, int) and not demand):
                    continue
                for start, size, end, name in life[stage]:
                    if isinstance(here, int):
                        intervals.append(build.model.new_interval_var(start, size, end, name))
                    else:
                        intervals.append(
                            build.model.new_optional_interval_var(start, size, end, here, f"{name} on {device}")
                        )
                    sizes.append(demand)
        if intervals:
            build.model.add_cumulative(intervals, sizes, capacity)


def _sizes(build: Build, what: str, per_layer: tuple[int, ...]) -> list[Linear]:
    """Return each stage's size as a constant or a variable."""
    sizes: list[Linear] = []
    whole = sum(per_layer)
    for stage in build.stages:
        size = build.over_stage(per_layer, stage)
        if isinstance(size, int):
            sizes.append(size)
            continue

        def known(plan: KnownPlan, s: int = stage) -> int:
            return sum(per_layer[plan.cut[s] : plan.cut[s + 1]])

        variable = build.integer(0, whole, f"{what} {stage}", known)
        build.model.add(variable == size)
        sizes.append(variable)
    return sizes


def _held(build: Build, size: Linear, stage: int, device: int) -> Linear:
    """Return the size if the stage lies on the device, else zero (as a variable that is at least that)."""
    here = build.on[stage][device]
    if isinstance(here, int):
        return size * here if here else 0
    if isinstance(size, int):
        return size * here
    if build.problem.family != "free" or build.problem.n_devices == 1:
        return size  # an inactive slot holds nothing anyway
    _, most = limits(size)
    held = build.integer(0, most, f"static {stage} on {device}", KnownPlan.static_on, stage, device)
    build.model.add(held >= size - most * (1 - here))
    return held


def _capacity(build: Build, cap: int, held: list[Linear], device: int) -> Linear:
    if all(isinstance(size, int) for size in held):
        left = cap - sum(held)
        if left < 0:
            build.model.add_bool_or([])
        return max(left, 0)

    capacity = build.integer(0, cap, f"capacity {device}", KnownPlan.capacity_left, device)
    build.model.add(capacity + sum(held) == cap)
    return capacity


def _lives(build: Build, first: int, last: int) -> list[list[tuple[Linear, Linear, Linear, str]]]:
    """Return, by stage, the (start, size, end, name) of each microbatch's stay from one op to another."""
    lives = []
    for stage in build.stages:
        row = []
        for m in build.microbatches:
            begin = build.start[F][stage][m] if first == F else build.end[first][stage][m]
            end = build.end[last][stage][m]
            size = build.integer(
                0, build.horizon, f"{'FB'[first]} to {'FBW'[last]} {stage},{m}", KnownPlan.stay, first, last, stage, m
            )
            build.model.add(begin + size == end)
            row.append((begin, size, end, f"stay {'FB'[first]}{stage},{m}"))
        lives.append(row)
    return lives


def in_flight(build: Build) -> None:
    """Where a limit admits only K microbatches of a stage, let F of microbatch m + K wait for B of m.

    Valid with microbatches in order. K counts the stage alone: capacity less its own static size, over its activation.
    """
    problem = build.problem
    if not problem.has_memory_limit or not problem.uniform_microbatches:
        return
    for stage in build.stages:
        if build.fixed_cuts is None:
            continue
        static, activation, _ = problem.stage_memory(*build.fixed_cuts[stage : stage + 2])
        caps = [
            cap
            for cap, here in zip(problem.capacity, build.on[stage], strict=True)
            if not (isinstance(here, int) and not here)
        ]
        if not activation or any(cap is None for cap in caps):
            continue
        most = max((cap - static) // activation for cap in caps if cap is not None)
        for m in range(problem.n_microbatches - max(most, 1)):
            build.model.add(build.start[F][stage][m + max(most, 1)] >= build.end[B][stage][m])
