"""Ordering: when each op runs."""

from __future__ import annotations

from octocp.cpsat.build import Build, KnownPlan, Linear, limits
from octocp.problem import B, F, W


def ops(build: Build) -> None:
    """Create start and end of every op; the end is the start plus a constant where the duration is known."""
    for kind in build.problem.kinds:
        starts: list[list[Linear]] = []
        ends: list[list[Linear]] = []
        for stage in build.stages:
            ticks = build.duration[kind][stage]
            low, _ = limits(ticks)
            start_row, end_row = [], []
            for microbatch in build.microbatches:
                name = f"{'FBW'[kind]}{stage},{microbatch}"
                key = (kind, stage, microbatch)
                start = build.integer(0, build.horizon - low, f"start {name}", KnownPlan.start, *key)
                start_row.append(start)
                if isinstance(ticks, int):
                    end_row.append(start + ticks)
                    continue
                end = build.integer(low, build.horizon, f"end {name}", KnownPlan.end, *key)
                build.model.add(end == start + ticks)
                end_row.append(end)
            starts.append(start_row)
            ends.append(end_row)
        build.start.append(starts)
        build.end.append(ends)


def precedence(build: Build) -> None:
    """Chain the ops of a microbatch: F up through the stages, B down, W after its B; transfers in between."""
    model, start, end = build.model, build.start, build.end
    for stage in build.stages:
        for m in build.microbatches:
            if stage:
                model.add(start[F][stage][m] >= end[F][stage - 1][m] + build.transfer[stage])
                model.add(start[B][stage - 1][m] >= end[B][stage][m] + build.transfer[stage])
            model.add(start[B][stage][m] >= end[F][stage][m])
            if build.problem.split:
                model.add(start[W][stage][m] >= end[B][stage][m])


def no_overlap(build: Build) -> None:
    """Let each device run one op at a time; an op of a stage is an optional interval on each possible device."""
    model = build.model
    for device in build.devices:
        intervals = []
        for stage in build.stages:
            here = build.on[stage][device]
            if isinstance(here, int) and not here:
                continue
            for kind in build.problem.kinds:
                ticks = build.duration[kind][stage]
                for m in build.microbatches:
                    args = (build.start[kind][stage][m], ticks, build.end[kind][stage][m])
                    name = f"{'FBW'[kind]}{stage},{m} on {device}"
                    if isinstance(here, int):
                        intervals.append(model.new_interval_var(*args, name))
                    else:
                        intervals.append(model.new_optional_interval_var(*args, here, name))
        model.add_no_overlap(intervals)
