"""What memory limits add to the balanced-load model: how long a device can hold what."""

from __future__ import annotations

from ortools.sat.python import cp_model

from octocp.problem import B, F, Problem, W

# Memory is counted in this many parts of the largest limit, rounded so that the bound stays valid.
MEMORY_PARTS = 4_000
# Beyond so many runs, only every fourth gets its own waits.
MANY_RUNS = 40


def memory_part(problem: Problem) -> int:
    """Return how many memory units make a part: sizes are counted in parts, rounded so that bounds stay valid."""
    return max(1, max(cap for cap in problem.capacity if cap is not None) // MEMORY_PARTS)


def memory_over_time(
    problem: Problem, model: cp_model.CpModel, on: list[list[cp_model.IntVar]], value: cp_model.IntVar, known: int
) -> None:
    """Bound the objective by memory over time: a device with a limit holds no more than it for as long as it can.

    A run u holds its activation, for every microbatch, from the start of its F to the end of its B: at least through
    the chain of everything above it and back. After that it holds its weight part during W. So

        sum over its runs of M x (activation x round trip + weight part x W) <= (limit - static) x time,

    where the time is from the first F that can start on the device to the last B, at most value - head - tail with
    the forwards and backwards below the device's lowest run (and the first run's W); to the end where weight
    parts are held. The static part is counted for the least such time, from the bound known already. For the
    span, the time is the device's own window, at most the value.
    """
    if not problem.has_memory_limit:
        return
    spans = problem.objective == "span"
    M, units, prefix = problem.n_microbatches, problem.units, problem.prefix_ticks
    part = memory_part(problem)
    parts = [[amount // part for amount in problem.stage_memory(*unit)] for unit in units]
    keeps_weight_parts = any(weight for _, _, weight in parts)
    last_head = prefix[F][units[-1][0]]
    last_tail = 0 if keeps_weight_parts else prefix[B][units[-1][0]] + prefix[W][units[0][1]]
    least_time = 0 if spans else max(0, known - last_head - last_tail)
    area = []
    for (begin, end), (static, activation, weight) in zip(units, parts, strict=True):
        trip = prefix[F][-1] - prefix[F][begin] + prefix[B][-1] - prefix[B][begin]
        area.append(M * (activation * trip + weight * (prefix[W][end] - prefix[W][begin])) + static * least_time)
    for device, cap in enumerate(problem.capacity):
        if cap is None:
            continue
        # The device's lowest run is at or above u, or it holds a run below: then the waits below u do not count.
        for u, (begin, _) in enumerate(units):
            tail = 0 if keeps_weight_parts else prefix[B][begin] + prefix[W][units[0][1]]
            wait = 0 if spans else prefix[F][begin] + tail
            lower = [row[device] for row in on[:u]]
            if u and (spans or wait == 0 or (len(units) > MANY_RUNS and u % 4)):
                continue
            rounded = -(-cap // part)
            held = sum(amount * row[device] for amount, row in zip(area, on, strict=True))
            model.add(held <= rounded * (value - wait)).only_enforce_if([~literal for literal in lower])
