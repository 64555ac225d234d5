"""Symmetry: microbatches that are alike run in order; devices that are alike are numbered by first use."""

from __future__ import annotations

from octocp.cpsat.build import Build, KnownPlan, Linear
from octocp.problem import F


def fifo(build: Build) -> None:
    """Run every (stage, kind) in microbatch order.

    Guard: all microbatches alike. Proof: `Schedule.relabelled_fifo`.
    """
    if not build.problem.uniform_microbatches:
        return
    for kind in build.problem.kinds:
        for stage in build.stages:
            for m in build.microbatches[1:]:
                build.model.add(build.start[kind][stage][m] >= build.end[kind][stage][m - 1])


def origin(build: Build) -> None:
    """Start F of stage 0 and microbatch 0 at time 0.

    Guard: all microbatches alike. Proof: every op of a microbatch runs after its F of stage 0. Call the
    microbatch whose F of stage 0 is first number 0: that F is the first op of all, so the plan can be shifted
    to start with it at 0; spans do not change, and the makespan does not grow.
    """
    if build.problem.uniform_microbatches:
        build.model.add(build.start[F][0][0] == 0)


def uses(build: Build) -> None:
    """Define ``used[s][d]``: device d holds a stage up to and including s."""
    if build.used:
        return
    for stage in build.stages:
        row: list[Linear] = []
        for device in build.devices:
            here = build.on[stage][device]
            before = build.used[stage - 1][device] if stage else 0
            if isinstance(before, int):
                row.append(1 if before else here)
                continue
            if isinstance(here, int):
                row.append(1 if here else before)
                continue
            literal = build.literal(f"{device} used by {stage}", KnownPlan.used, stage, device)
            build.model.add_implication(before, literal)
            build.model.add_implication(here, literal)
            build.model.add_bool_or([before, here, ~literal])
            row.append(literal)
        build.used.append(row)


def first_use(build: Build) -> None:
    """Let a device take its first stage only after the device before it in its class took one.

    Guard: placement free, devices of one class interchangeable (equal speed, capacity and links). Proof:
    permuting the devices of a class maps plans to plans of equal value, and some permutation sorts first uses.
    """
    problem = build.problem
    if problem.family != "free" or problem.n_devices == 1 or len(set(problem.device_class)) == problem.n_devices:
        return
    uses(build)
    for number in set(problem.device_class):
        members = [device for device in build.devices if problem.device_class[device] == number]
        for one, other in zip(members, members[1:], strict=False):
            for stage in build.stages:
                earlier = build.used[stage - 1][one] if stage else 0
                build.model.add_bool_or([~build.on[stage][other], earlier])
