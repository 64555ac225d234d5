"""What memory limits add to the balanced-load model: how long a device can hold what, and how much it can do at first.

Each function adds constraints to `octocp.cpsat.assignment`'s model; the proofs are in their docstrings.
"""

from __future__ import annotations

from fractions import Fraction

from ortools.sat.python import cp_model

from octocp.problem import B, F, Problem, W

# Memory is counted in this many parts of the largest limit, rounded so that the bound stays valid.
MEMORY_PARTS = 4_000
# Beyond so many runs, only every fourth gets its own waits.
MANY_RUNS = 40
# Prices of memory that get a constraint, about.
MOST_PRICES = 6


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


def warm_up(problem: Problem, model: cp_model.CpModel, on: list[list[cp_model.IntVar]], value: cp_model.IntVar) -> None:
    """Bound the objective by what fits into memory before a device's first B.

    Until the first B on a device ends, nothing it holds is freed. (An F that takes no time may begin with the first B
    and counts as holding nothing: all others hold theirs in the last moment before it.) Let n(u) be how many F of its
    run u have begun by then: at least 1, because the forwards of that B's microbatch are through, and at most M. They
    fit: sum n(u) x activation(u) <= limit - static. W follow B, so these F are all the device can have worked on. For
    any price p >= 0 of memory that is at most

        sum F(u) + p x (limit - static - sum activation(u)) + (M - 1) x sum max(0, F(u) - p x activation(u)).

    The first B comes no sooner than the forwards of all runs and the backwards of those above the device's highest
    run (for the span: from the device's first op on, the forwards from its highest run up). All other work of the
    device follows, so

        value >= first B + load - work before it,

    and what a device waits before its first B counts in the sum over the devices as well.
    """
    if not problem.has_memory_limit or problem.n_microbatches < 2:
        return
    M, units, prefix, devices = problem.n_microbatches, problem.units, problem.prefix_ticks, problem.n_devices
    spans = problem.objective == "span"
    cost = [[prefix[kind][end] - prefix[kind][begin] for begin, end in units] for kind in (F, B, W)]
    load = [M * sum(row) for row in zip(*cost, strict=True)]
    part = memory_part(problem)
    sizes = [tuple(amount // part for amount in problem.stage_memory(*unit)) for unit in units]
    waits = []
    for device, cap in enumerate(problem.capacity):
        if cap is None:
            continue
        held = [row[device] for row in on]
        highest = _from_here(model, held, f"device {device}")
        # What the first B waits for, as a constant and one term per run: what is above the highest run is known by
        # its literal being false.
        chain = sum(cost[B]) + (cost[F][-1] + sum(cost[F][:-1]) if spans else prefix[F][-1])
        saved = [(-b, literal) for b, literal in zip(cost[B], highest, strict=True)]
        if spans:
            saved += [(-f, literal) for f, literal in zip(cost[F], highest[1:], strict=False)]
        wait = model.new_int_var(0, chain, f"wait of device {device} before its first B")
        for price in _prices(cost[F], [size[1] for size in sizes]):
            # All times the price's denominator, so that it is whole.
            up, down = price.numerator, price.denominator
            work = []
            for literal, f, (static, activation, _) in zip(held, cost[F], sizes, strict=True):
                kept = activation if f else 0
                further = (M - 1) * max(0, down * f - up * kept)
                work.append((down * f - up * (static + kept) + further, literal))
            terms = [(down * factor, literal) for factor, literal in saved] + [
                (-factor, literal) for factor, literal in work
            ]
            room = -(-cap // part)
            model.add(
                down * wait
                >= down * chain
                - up * room
                + cp_model.LinearExpr.weighted_sum([literal for _, literal in terms], [factor for factor, _ in terms])
            )
        model.add(wait + cp_model.LinearExpr.weighted_sum(held, load) <= value)
        waits.append(wait)
    if not spans:
        model.add(sum(load) + sum(waits) <= devices * value)


def _from_here(model: cp_model.CpModel, held: list[cp_model.IntVar], name: str) -> list[cp_model.IntVar]:
    """Create one literal per run: whether the device holds it or a run above it."""
    reached = [model.new_bool_var(f"{name} holds a run from {u} on") for u in range(len(held))]
    for u, literal in enumerate(reached):
        reasons = [held[u], *reached[u + 1 : u + 2]]
        model.add_bool_or([*reasons, ~literal])
        for reason in reasons:
            model.add_implication(reason, literal)
    return reached


def _prices(forward: list[int], activation: list[int]) -> list[Fraction]:
    """Return the prices of memory worth a constraint: what a run's F gains per part it holds, and the average."""
    pairs = [(f, size) for f, size in zip(forward, activation, strict=True) if size]
    if not pairs:
        return []
    found = sorted({Fraction(f, size) for f, size in pairs})
    step = max(1, -(-len(found) // MOST_PRICES))
    average = Fraction(sum(f for f, _ in pairs), sum(size for _, size in pairs))
    return sorted({*found[::step], found[-1], average})
