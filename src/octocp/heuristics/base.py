"""What a heuristic is, and running one with each partition rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from octocp.heuristics.partition import PARTITION_RULES
from octocp.problem import Problem
from octocp.schedule import Layout, Orders, Schedule
from octocp.timing import time_orders


class NotApplicableError(ValueError):
    """A heuristic cannot run on an instance; the text says why."""


@dataclass(frozen=True)
class Heuristic:
    """A named rule for orders.

    Attributes
    ----------
    placements : callable
        Problem -> the placements to try; raises `NotApplicableError` with the reason.
    orders : callable
        (problem, layout) -> per-device orders.
    fused : bool
        Whether the gradient is handed on only when W ends.
    """

    name: str
    source: str
    placements: Callable[[Problem], list[tuple[int, ...]]]
    orders: Callable[[Problem, Layout], Orders]
    fused: bool

    def run(self, problem: Problem, layout: Layout) -> Schedule:
        """Return the timed schedule on a layout."""
        return time_orders(problem, layout, self.orders(problem, layout), fused=self.fused)


@dataclass(frozen=True)
class Attempt:
    """One heuristic with one partition rule on one placement: a schedule, or why there is none.

    `status` is "feasible", "infeasible" (breaks the memory limit) or "not-applicable".
    """

    heuristic: str
    rule: str
    status: str
    schedule: Schedule | None = None
    reason: str = ""


def one_stage_per_device(problem: Problem) -> list[tuple[int, ...]]:
    """Return the placement with stage s on device s, or the instance's own with one stage each."""
    devices = problem.n_devices
    if not problem.min_stages <= devices <= problem.max_stages:
        raise NotApplicableError(
            f"needs one stage per device; the instance asks for at least {problem.min_stages} stages"
        )
    return [problem.placement_for(devices) or tuple(range(devices))]


def attempts(heuristic: Heuristic, problem: Problem) -> Iterator[Attempt]:
    """Run a heuristic with every partition rule on every placement it offers."""
    try:
        placements = heuristic.placements(problem)
    except NotApplicableError as error:
        yield Attempt(heuristic.name, "", "not-applicable", reason=str(error))
        return
    for placement in placements:
        seen: set[tuple[int, ...]] = set()
        for rule, partition in PARTITION_RULES.items():
            bounds = partition(problem, len(placement))
            if bounds in seen:
                continue
            seen.add(bounds)
            layout = Layout(bounds, placement)
            broken = layout.violation(problem)
            if broken:
                yield Attempt(heuristic.name, rule, "not-applicable", reason=broken)
                continue
            schedule = heuristic.run(problem, layout)
            excess = schedule.memory_excess()
            if excess is None:
                yield Attempt(heuristic.name, rule, "feasible", schedule)
            else:
                yield Attempt(heuristic.name, rule, "infeasible", schedule, describe_excess(problem, *excess[:2]))


def describe_excess(problem: Problem, device: int, need: int) -> str:
    """Say by how much a device is over its memory limit; `need` in memory units."""
    needed, limit = need * float(problem.memory_unit_gb), problem.limit_gb[device] or 0.0
    name = problem.device_names[device]
    return f"{name} needs {needed:.6g} GB; its limit is {limit:.6g} GB: {needed - limit:.6g} GB too much"


def best_attempt(found: list[Attempt]) -> Attempt:
    """Return the best feasible attempt, else the first that at least ran, else the first."""
    feasible = [attempt for attempt in found if attempt.status == "feasible" and attempt.schedule is not None]
    if feasible:
        return min(feasible, key=lambda attempt: attempt.schedule.value if attempt.schedule else 0)
    return next((attempt for attempt in found if attempt.status == "infeasible"), found[0])
