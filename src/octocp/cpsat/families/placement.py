"""Placement: which device holds each stage, and what crossing from one to the next costs."""

from __future__ import annotations

from octocp.cpsat.build import Build, KnownPlan, Linear, total
from octocp.problem import family_device


def presence(build: Build) -> None:
    """Decide one literal per (stage, device); families and fixed placements make them constants.

    Every active stage lies on one device; every device holds at least one stage and at most `max_per_device`.
    """
    problem, model = build.problem, build.model
    for stage in build.stages:
        row: list[Linear] = []
        for device in build.devices:
            if problem.family == "free" and problem.n_devices > 1:
                row.append(build.literal(f"stage {stage} on {device}", KnownPlan.on, stage, device))
            else:
                here = _dictated(build, stage) == device
                row.append(build.active[stage] if here else 0)
        build.on.append(row)
        if problem.family == "free" and problem.n_devices > 1:
            model.add(sum(row) == build.active[stage])
    if problem.family != "free" or problem.n_devices == 1:
        return
    for device in build.devices:
        column = [build.on[stage][device] for stage in build.stages]
        model.add_bool_or(column)
        if problem.max_per_device < build.slots:
            model.add(sum(column) <= problem.max_per_device)


def _dictated(build: Build, stage: int) -> int:
    problem = build.problem
    if problem.placement is not None:
        return problem.placement[stage]
    return 0 if problem.n_devices == 1 else family_device(problem.family, stage, problem.n_devices)


def colocate(build: Build) -> None:
    """Put the layers of each `colocate` group on one device.

    A layer is on device d if its stage is: (layer in stage s) and (s on d) imply it.
    """
    problem, model = build.problem, build.model
    if not problem.colocate or problem.n_devices == 1:
        return
    devices_of: dict[int, list[Linear]] = {}
    for layer in sorted({layer for group in problem.colocate for layer in group}):
        row: list[Linear] = [
            build.literal(f"layer {layer} on {d}", KnownPlan.layer_on, layer, d) for d in build.devices
        ]
        model.add_exactly_one(row)
        devices_of[layer] = row
        for stage in build.stages:
            inside = _layer_in_stage(build, layer, stage)
            for device in build.devices:
                clause = [row[device]]
                for literal in (inside, build.on[stage][device]):
                    clause.append(1 - literal if isinstance(literal, int) else ~literal)
                model.add_bool_or(clause)
    for group in problem.colocate:
        for one, other in zip(group, group[1:], strict=False):
            for device in build.devices:
                model.add(devices_of[one][device] == devices_of[other][device])


def _layer_in_stage(build: Build, layer: int, stage: int) -> Linear:
    if build.fixed_cuts is not None:
        return int(build.fixed_cuts[stage] <= layer < build.fixed_cuts[stage + 1])
    here, later = build.layer_at_or_after[stage][layer], build.layer_at_or_after[stage + 1][layer]
    if isinstance(later, int) and later == 0:
        return here
    inside = build.literal(f"layer {layer} in stage {stage}", KnownPlan.inside, stage, layer)
    build.model.add(inside == here - later)
    return inside


def transfers(build: Build) -> None:
    """Define the ticks that entering each stage takes: none from the same device, else the link's.

    ``within`` literals tell whether a stage and the one before it share a device (a node); the transfer is at
    least the delay of the link class that they leave.
    """
    problem, model = build.problem, build.model
    build.transfer = [0]
    for stage in range(1, build.slots):
        if not problem.has_delay or problem.n_devices == 1:
            build.transfer.append(0)
            continue
        before, here = build.on[stage - 1], build.on[stage]
        if problem.family != "free":
            source, target = _dictated(build, stage - 1), _dictated(build, stage)
            build.transfer.append(_ticks(build, stage, problem.link_class[source][target]))
            continue
        classes = sorted({link for row in problem.link_class for link in row})
        high = max(max(problem.delay_ticks[link][0]) for link in classes)
        ticks = build.integer(0, high, f"transfer {stage}", KnownPlan.transfer, stage)
        build.transfer.append(ticks)
        active = _real(build.active[stage])
        nearer: Linear = 0
        for link in classes:
            # Groups of devices whose mutual links are of this class or a nearer one.
            groups = _groups(build, link)
            within: Linear = 1
            if len(groups) > 1:
                within = build.literal(f"stage {stage} within class {link}", KnownPlan.within, stage, link)
                for group in groups:
                    leaves, enters = total((1, before[d]) for d in group), total((1, here[d]) for d in group)
                    model.add(leaves == enters).only_enforce_if(within, *active)
                    model.add(leaves + enters <= 1).only_enforce_if(~within, *active)
            if link:
                exactly = [~nearer, *_real(within), *active]
                model.add(ticks >= _delay(build, stage, link)).only_enforce_if(exactly)
            nearer = within


def _real(literal: Linear) -> list[Linear]:
    return [] if isinstance(literal, int) else [literal]


def _groups(build: Build, link: int) -> list[list[int]]:
    groups: list[list[int]] = []
    for device in build.devices:
        for group in groups:
            if build.problem.link_class[group[0]][device] <= link:
                group.append(device)
                break
        else:
            groups.append([device])
    return groups


def _delay(build: Build, stage: int, link: int) -> Linear:
    """Return the ticks over the boundary before a stage on links of a class, linear in the cut."""
    per_boundary = build.problem.delay_ticks[link][0]
    if build.fixed_cuts is not None:
        return per_boundary[build.fixed_cuts[stage]]
    if len(set(per_boundary[1:-1])) == 1:
        return per_boundary[1] * build.active[stage]
    # delay(cut) by its steps: the boundary moves past layer l exactly when l lies before the stage.
    steps = [per_boundary[layer + 1] - per_boundary[layer] for layer in range(len(per_boundary) - 1)]
    return build.before(steps, stage)


def _ticks(build: Build, stage: int, link: int) -> Linear:
    if link == 0:
        return 0
    delay = _delay(build, stage, link)
    if isinstance(delay, int):
        return delay
    per_boundary = build.problem.delay_ticks[link][0]
    ticks = build.integer(0, max(per_boundary), f"transfer {stage}", KnownPlan.transfer, stage)
    build.model.add(ticks == delay)
    return ticks
