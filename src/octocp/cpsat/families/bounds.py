"""Bounds as constraints: they tell the solver what no-overlap alone makes it discover op by op.

The proofs are those of `octocp.bounds`, with the stages' own variables in place of least values.
"""

from __future__ import annotations

from octocp.bounds import best_bound
from octocp.cpsat.build import Build, KnownPlan, Linear, limits
from octocp.cpsat.families.symmetry import uses
from octocp.problem import B, F, W


def loads(build: Build) -> None:
    """Bound the objective by every device's load: microbatches x the durations of its stages.

    A stage's time is shared out to its devices: shares sum to it, and are zero where the stage is not.
    """
    M = build.problem.n_microbatches
    for stage in build.stages:
        for kind in build.problem.kinds:
            ticks = build.duration[kind][stage]
            _, most = limits(ticks)
            shares: list[Linear] = []
            for device in build.devices:
                here = build.on[stage][device]
                if isinstance(here, int):
                    share: Linear = ticks if here else 0
                elif build.problem.family != "free":
                    share = ticks  # an inactive slot takes no time
                elif isinstance(ticks, int):
                    share = ticks * here
                else:
                    share = build.integer(
                        0, most, f"share {'FBW'[kind]}{stage} of {device}", KnownPlan.share, kind, stage, device
                    )
                    build.model.add(share <= most * here)
                    shares.append(share)
                build.load[kind, stage, device] = share
            if shares:
                build.model.add(sum(shares) == ticks)
    for device in build.devices:
        build.model.add(M * load_of(build, device, build.problem.kinds) <= build.objective)


def load_of(build: Build, device: int, kinds: tuple[int, ...]) -> Linear:
    """Return one microbatch's work of some kinds on a device."""
    return sum(build.load[kind, stage, device] for kind in kinds for stage in build.stages)


def head_load_tail(build: Build) -> None:
    """Bound the objective by head + load (+ tail) of each device, from its lowest stage.

    For each stage s and device d, if s is d's lowest: head = the forwards below s and the transfers;
    makespan >= head + all work, and (both objectives) >= head + F and B work + B's below s + W of stage 0.
    """
    if not build.load:
        return
    problem, M = build.problem, build.problem.n_microbatches
    uses(build)
    last = build.duration[W][0] if problem.split else 0
    spans = problem.objective == "span"
    for device in build.devices:
        both, everything = load_of(build, device, (F, B)), load_of(build, device, problem.kinds)
        for stage in build.stages:
            now, before = build.used[stage][device], build.used[stage - 1][device] if stage else 0
            if (isinstance(now, int) and not now) or (isinstance(before, int) and before):
                continue
            # "Lowest" needs no literal of its own: a stage on d after an unused prefix.
            condition = [build.on[stage][device]] if not isinstance(build.on[stage][device], int) else []
            condition += [~before] if not isinstance(before, int) else []
            entry = sum(build.transfer[1 : stage + 1])
            head = sum(build.duration[F][:stage]) + entry
            tail = sum(build.duration[B][:stage]) + entry + last
            build.model.add(head + M * both + tail <= build.objective).only_enforce_if(condition)
            if problem.split and not spans:
                build.model.add(head + M * everything <= build.objective).only_enforce_if(condition)


def first_window(build: Build) -> None:
    """Bound the span by the ends of all B, and by those of W on stage 0's device, counted from the first start.

    Every F and B of a microbatch runs between its F and its B of stage 0, so in the window of stage 0's device.
    """
    if build.problem.objective != "span":
        return
    first = build.start[F][0][0] if build.problem.uniform_microbatches else 0
    if isinstance(first, int):
        return
    for m in build.microbatches:
        build.model.add(build.end[B][0][m] - first <= build.objective)
        if build.problem.split:
            build.model.add(build.end[W][0][m] - first <= build.objective)


def averaged_heads(build: Build) -> None:
    """Bound P x makespan by total work plus the heads of stages 0..P-1.

    The devices' lowest stages are P distinct stages, and heads grow with the stage.
    """
    problem = build.problem
    P, M = problem.n_devices, problem.n_microbatches
    work = M * sum(sum(build.duration[kind]) for kind in problem.kinds)
    heads = 0 if problem.objective == "span" else sum((P - 1 - s) * build.duration[F][s] for s in range(P - 1))
    build.model.add(work + heads <= P * build.objective)


def stage_alone(build: Build) -> None:
    """Bound the objective by each stage alone: head + its F and B work + tail, as for an indivisible layer."""
    problem, M = build.problem, build.problem.n_microbatches
    last = build.duration[W][0] if problem.split else 0
    for stage in build.stages:
        head = sum(build.duration[F][:stage]) + sum(build.transfer[1 : stage + 1])
        tail = sum(build.duration[B][:stage]) + sum(build.transfer[1 : stage + 1]) + last
        work = M * (build.duration[F][stage] + build.duration[B][stage])
        build.model.add(head + work + tail <= build.objective)
        if problem.split and problem.objective == "makespan":
            build.model.add(head + work + M * build.duration[W][stage] <= build.objective)


def analytic(build: Build) -> None:
    """Bound the objective by the best bound of `octocp.bounds`."""
    build.model.add(build.objective >= best_bound(build.problem).value)
