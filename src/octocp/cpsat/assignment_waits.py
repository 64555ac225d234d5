"""What a device must wait, at the beginning and at the end: constraints of the balanced-load model.

A device cannot work on what has not arrived, nor, at the end, on what should have left long ago. Each function adds
constraints to `octocp.cpsat.assignment`'s model; the proofs are in their docstrings.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ortools.sat.python import cp_model

from octocp.cpsat.assignment_memory import memory_part
from octocp.problem import B, F, Problem, W

# Beyond so many runs, only every fourth gets its own constraint.
MANY_RUNS = 40
# Prices of memory that get a constraint, about.
MOST_PRICES = 6

Term = tuple[int, cp_model.IntVar]


@dataclass(frozen=True)
class _Device:
    """A device in the model: its literals, and what it waits before its first B and at the end."""

    held: list[cp_model.IntVar]  # per run
    reached: list[cp_model.IntVar]  # per run: whether it holds that one or one above it
    wait: cp_model.IntVar
    rest: cp_model.IntVar


def waits(
    problem: Problem,
    model: cp_model.CpModel,
    on: list[list[cp_model.IntVar]],
    value: cp_model.IntVar,
    *,
    all_of_them: bool,
) -> None:
    """Bound the objective by every device's load and what it must wait before its first B and at the end.

    The waits of `arrivals`, `departures` and `first_backward` lie in two intervals that do not overlap: up to the
    time when the device's first B could begin at the earliest, and the last backwards of the runs below one, at most
    the one above its highest run, before the end. So value >= wait + load + rest for every device, and on average.

    Only with `all_of_them` do arrivals and departures count: they take long to solve.
    """
    if not (all_of_them or problem.has_memory_limit):
        return
    load = [problem.n_microbatches * sum(row) for row in zip(*_costs(problem), strict=True)]
    chain = sum(map(sum, _costs(problem)))
    spans = problem.objective == "span"
    found = []
    for index in range(problem.n_devices):
        held = [row[index] for row in on]
        device = _Device(
            held,
            _from_here(model, held, f"device {index}"),
            model.new_int_var(0, chain, f"wait of device {index} before its first B"),
            model.new_int_var(0, 0 if spans else chain, f"wait of device {index} at the end"),
        )
        if all_of_them and not spans:
            arrivals(problem, model, device)
            departures(problem, model, device)
        first_backward(problem, model, device, problem.capacity[index])
        model.add(device.wait + device.rest + cp_model.LinearExpr.weighted_sum(held, load) <= value)
        found.append(device)
    if not spans:
        idle = sum(device.wait + device.rest for device in found)
        model.add(sum(load) + idle <= problem.n_devices * value)


def _costs(problem: Problem) -> list[list[int]]:
    """Return the ticks of each run, per op kind."""
    return [
        [problem.prefix_ticks[kind][end] - problem.prefix_ticks[kind][begin] for begin, end in problem.units]
        for kind in (F, B, W)
    ]


def _at_least(
    model: cp_model.CpModel, variable: cp_model.IntVar, constant: int, terms: list[Term], by: int = 1
) -> None:
    """Require by x variable >= constant + terms."""
    model.add(
        by * variable
        >= constant + cp_model.LinearExpr.weighted_sum([literal for _, literal in terms], [f for f, _ in terms])
    )


def _some(problem: Problem) -> range:
    units = len(problem.units)
    return range(1, units + 1, 4 if units > MANY_RUNS else 1)


def arrivals(problem: Problem, model: cp_model.CpModel, device: _Device) -> None:
    """What a device must wait before a run v can arrive: until then it has only F of the runs below.

    The first microbatch comes to v after the forwards below it, at time f. Before that, no F of a run from v on and no
    B or W can begin (a stage that reaches over v has done at most its part below v). So the device works for at most
    M x its F below v, and waits at least f less that.
    """
    forward = _costs(problem)[F]
    for v in _some(problem):
        terms = [(-problem.n_microbatches * f, held) for f, held in zip(forward[:v], device.held, strict=False)]
        _at_least(model, device.wait, sum(forward[:v]), terms)


def departures(problem: Problem, model: cp_model.CpModel, device: _Device) -> None:
    """What a device must wait at the end: after the last B of a run v there are only B of the runs below, and W.

    The backwards below v and the first run's W follow every B, and so every F, of the runs from v on, and every F of
    those below: these end at value - t at the latest. In the t that remain, the device works for at most M x its B
    below v and M x all its W. It counts for v at most one above the device's highest run, so as not to reach back into
    the time before the device's first B: the backwards from v on come before t, the forwards before them.
    """
    M = problem.n_microbatches
    _, backward, weight = _costs(problem)
    for v in _some(problem):
        ticks = sum(backward[:v]) + weight[0]
        terms = [
            (-M * (w + (b if u < v else 0)), held)
            for u, (b, w, held) in enumerate(zip(backward, weight, device.held, strict=True))
        ]
        _at_least(model, device.rest, 0, [*terms, (ticks, device.reached[v - 1])])


def first_backward(problem: Problem, model: cp_model.CpModel, device: _Device, capacity: int | None) -> None:
    """What a device must wait before its first B: until then it has only F, and no more of them than fit in memory.

    Until the first B on a device ends, nothing it holds is freed. (An F that takes no time may begin with the first B
    and counts as holding nothing: all others hold theirs in the last moment before it.) Let n(u) be how many F of its
    run u have begun by then: at least 1, because the forwards of that B's microbatch are through, and at most M. They
    fit: sum n(u) x activation(u) <= limit - static. W follow B, so these F are all the device can have worked on. For
    any price p >= 0 of memory that is at most

        sum F(u) + p x (limit - static - sum activation(u)) + (M - 1) x sum max(0, F(u) - p x activation(u)).

    The first B comes no sooner than the forwards of all runs and the backwards of those above the device's highest
    run; for the span, which counts from the device's first op, the forwards from its highest run up.
    """
    M = problem.n_microbatches
    forward, backward, _ = _costs(problem)
    spans = problem.objective == "span"
    first = sum(backward) + sum(forward)
    # What is above the highest run is known by its literal being false.
    saved = [(-b, literal) for b, literal in zip(backward, device.reached, strict=True)]
    if spans:
        saved += [(-f, literal) for f, literal in zip(forward, device.reached[1:], strict=False)]
    _at_least(model, device.wait, first, saved + [(-M * f, held) for f, held in zip(forward, device.held, strict=True)])
    if capacity is None:
        return
    part = memory_part(problem)
    sizes = [tuple(amount // part for amount in problem.stage_memory(*unit)) for unit in problem.units]
    for price in _prices(forward, [size[1] for size in sizes]):
        # All times the price's denominator, so that it is whole.
        up, down = price.numerator, price.denominator
        terms = [(down * factor, literal) for factor, literal in saved]
        for held, f, (static, activation, _) in zip(device.held, forward, sizes, strict=True):
            kept = activation if f else 0
            further = (M - 1) * max(0, down * f - up * kept)
            terms.append((up * (static + kept) - down * f - further, held))
        _at_least(model, device.wait, down * first - up * -(-capacity // part), terms, by=down)


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
