"""What a bound is, and the quantities that several bounds use."""

from __future__ import annotations

from dataclasses import dataclass

from octocp.problem import B, F, Problem, W


@dataclass(frozen=True)
class Bound:
    """A proven lower bound on the objective.

    Attributes
    ----------
    name : str
        The argument that gives it.
    value : int
        Ticks.
    detail : str
        Which layer, device or group it comes from.
    """

    name: str
    value: int
    detail: str = ""


def head(problem: Problem, boundary: int) -> int:
    """Return ticks before which no op of a stage that begins at or after layer `boundary` can start.

    The forwards of the layers before it run first, one after the other.
    """
    return problem.least_ticks(F, 0, boundary)


def tail(problem: Problem, boundary: int) -> int:
    """Return ticks that must follow any B of a stage that begins at or after `boundary`.

    Its microbatch's gradient still passes all layers before `boundary`, and then the first stage's W
    runs (zero where B is fused). Where the stage is the first itself (`boundary` 0), W follows its B too.
    """
    last = problem.duration(W, *problem.units[0]) if problem.split else 0
    if problem.fixed_bounds is not None and problem.split:
        last = problem.duration(W, 0, problem.fixed_bounds[1])
    return problem.least_ticks(B, 0, boundary) + last


def entry_delay(problem: Problem, boundary: int) -> int:
    """Return the least ticks that a transfer over `boundary` takes between two different devices."""
    if boundary == 0 or problem.n_devices == 1:
        return 0
    classes = {
        problem.link_class[one][other]
        for one in range(problem.n_devices)
        for other in range(problem.n_devices)
        if one != other
    }
    return min(by_class[boundary] for link in classes for by_class in problem.delay_ticks[link])


def run_work(problem: Problem, kinds: tuple[int, ...], begin: int, end: int) -> int:
    """Return ticks that all microbatches' ops of one stage which holds the layers [begin, end) take at least."""
    fastest = problem.fastest_device
    if problem.uniform_microbatches:
        return problem.n_microbatches * sum(problem.duration(kind, begin, end, fastest) for kind in kinds)
    return sum(
        problem.duration(kind, begin, end, fastest, microbatch)
        for kind in kinds
        for microbatch in range(problem.n_microbatches)
    )


def total_work(problem: Problem) -> int:
    """Return ticks of all ops together, at least: rounding and the overhead of the least number of stages included."""
    bounds = problem.fixed_bounds
    if bounds is not None:
        return sum(run_work(problem, problem.kinds, *bounds[stage : stage + 2]) for stage in range(len(bounds) - 1))
    fastest = problem.fastest_device
    ticks = 0
    for kind in problem.kinds:
        layers = problem.prefix_ticks[kind][-1]
        for microbatch in range(problem.n_microbatches):
            exact = layers * problem.scale[fastest][microbatch] + problem.min_stages * problem.overhead
            ticks += int(-(-exact // 1))
    return ticks
