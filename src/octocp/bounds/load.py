"""Bounds from the work that the devices must share, and from when they can begin."""

from __future__ import annotations

from octocp.bounds.base import Bound, entry_delay, head, run_work, tail, total_work
from octocp.problem import B, F, Problem


def work(problem: Problem) -> Bound:
    """Total work over the number of devices.

    Proof: a device runs one op at a time, so within its first start and last end it fits at most the
    span of work; P devices fit P times as much. Valid for both objectives. With partition and
    placement fixed, the largest load of a device is one too.
    """
    value = -(-total_work(problem) // problem.n_devices)
    detail = f"total work over {problem.n_devices} devices"
    loads = fixed_loads(problem, problem.kinds)
    if loads and max(loads) > value:
        value, detail = max(loads), f"load of {problem.device_names[loads.index(max(loads))]}"
    return Bound("work", value, detail)


def averaged_heads(problem: Problem) -> Bound:
    """Total work plus the devices' least possible waits for their first op, averaged (makespan only).

    Proof: a device whose lowest stage begins at layer b starts no op before all forwards of the
    layers before b have run once, and, for b > 0, before the activation has crossed from another
    device (the stage below lies elsewhere, or the device's lowest stage would be lower). Lowest stages
    are distinct, so their begins are distinct legal boundaries, 0 among them, and the wait grows with
    b. Hence P x makespan >= total work + the P smallest waits. A fixed partition or placement leaves fewer
    begins to choose from.
    """
    if problem.objective == "span":
        return Bound("averaged heads", 0, "makespan only")
    begins = list(problem.fixed_bounds[:-1]) if problem.fixed_bounds else [begin for begin, _ in problem.units]
    placement = problem.placement_for(problem.min_stages) if problem.min_stages == problem.max_stages else None
    if placement and problem.fixed_bounds:
        begins = [problem.fixed_bounds[placement.index(device)] for device in range(problem.n_devices)]
    waits = sorted(head(problem, begin) + entry_delay(problem, begin) for begin in begins)[: problem.n_devices]
    value = -(-(total_work(problem) + sum(waits)) // problem.n_devices)
    return Bound("averaged heads", value, f"total work and first waits over {problem.n_devices} devices")


def fixed_loads(problem: Problem, kinds: tuple[int, ...]) -> list[int]:
    """Return each device's work for some kinds when partition and placement are fixed, else nothing."""
    bounds = problem.fixed_bounds
    placement = problem.placement_for(len(bounds) - 1) if bounds else None
    if bounds is None or placement is None:
        return []
    return [
        sum(
            run_work(problem, kinds, *bounds[stage : stage + 2])
            for stage, holder in enumerate(placement)
            if holder == device
        )
        for device in range(problem.n_devices)
    ]


def head_load_tail(problem: Problem) -> Bound:
    """Head, load and tail of each device, with partition and placement fixed.

    Proof: let a be the lowest stage of a device. None of its ops starts before the forwards of the
    stages below a have run once (head, with the link into a). After its last F or B comes a B of its
    own or nothing; that microbatch's gradient still passes the stages below a, and the first stage's W
    follows (tail). So makespan >= head + F and B work + tail, and makespan >= head + all work. The first
    holds for the span as well: every F and B of every microbatch lies between that microbatch's F and B
    of stage 0, so in the window of stage 0's device.
    """
    bounds = problem.fixed_bounds
    loads, all_loads = fixed_loads(problem, (F, B)), fixed_loads(problem, problem.kinds)
    best = Bound("head, load, tail", 0, "needs a fixed partition and placement")
    if bounds is None or not loads:
        return best
    placement = problem.placement_for(len(bounds) - 1) or ()
    for device, (busy, everything) in enumerate(zip(loads, all_loads, strict=True)):
        lowest = placement.index(device)
        before = (
            sum(
                problem.duration(F, *bounds[s : s + 2]) + problem.delay(bounds[s + 1], placement[s], placement[s + 1])
                for s in range(lowest)
            )
            if problem.uniform_microbatches and problem.uniform_devices
            else head(problem, bounds[lowest])
        )
        after = (
            tail(problem, 0)
            + sum(
                problem.duration(B, *bounds[s : s + 2]) + problem.delay(bounds[s + 1], placement[s], placement[s + 1])
                for s in range(lowest)
            )
            if problem.uniform_microbatches and problem.uniform_devices
            else tail(problem, bounds[lowest])
        )
        value = before + busy + after
        if problem.objective == "makespan":
            value = max(value, before + everything)
        if value > best.value:
            best = Bound("head, load, tail", value, f"{problem.device_names[device]} from stage {lowest} on")
    return best
