"""Objective: makespan or span, as one variable between the proven and the known value."""

from __future__ import annotations

from octocp.cpsat.build import Build, KnownPlan, Linear
from octocp.problem import B, F, W


def objective(build: Build) -> None:
    """Minimise the makespan, or the longest use of one device.

    Span: every op of a device starts no earlier than the device's `first` and ends no later than its
    `last`; the span is at least last - first.
    """
    spans = build.problem.objective == "span"
    value = build.integer(
        build.lower,
        build.upper,
        "objective",
        KnownPlan.value,
    )
    build.objective = value
    if spans:
        _span(build, value)
    else:
        _makespan(build, value)
    build.model.minimize(value)


def _makespan(build: Build, value: Linear) -> None:
    """Bound the ends that nothing follows: B of stage 0, and every W."""
    for m in build.microbatches:
        build.model.add(build.end[B][0][m] <= value)
        if build.problem.split:
            for stage in build.stages:
                build.model.add(build.end[W][stage][m] <= value)


def _span(build: Build, value: Linear) -> None:
    for device in build.devices:
        first = build.integer(0, build.horizon, f"first start on {device}", KnownPlan.first_start, device)
        last = build.integer(0, build.horizon, f"last end on {device}", KnownPlan.last_end, device)
        build.model.add(value >= last - first)
        final = W if build.problem.split else B
        for stage in build.stages:
            here = build.on[stage][device]
            if isinstance(here, int) and not here:
                continue
            condition = [] if isinstance(here, int) else [here]
            for m in build.microbatches:
                build.model.add(first <= build.start[F][stage][m]).only_enforce_if(condition)
                build.model.add(last >= build.end[final][stage][m]).only_enforce_if(condition)
