"""What a heuristic is, and running one with each partition rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from octocp.heuristics.partition import PARTITION_RULES, PartitionRule
from octocp.heuristics.refusal import NotApplicableError
from octocp.problem import Problem, family_device
from octocp.schedule import Layout, Orders, Schedule
from octocp.timing import time_orders


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
    needs : str
        What an instance must have for it to apply, in a few words; `placements` and `orders` check it.
    quick : bool
        Whether `octocp solve` runs it before it searches, where every hundredth of a second counts.
    """

    name: str
    source: str
    placements: Callable[[Problem], list[tuple[int, ...]]]
    orders: Callable[[Problem, Layout], Orders]
    fused: bool
    needs: str = "one stage per device"
    quick: bool = False

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


def require_split(problem: Problem) -> None:
    """Raise `NotApplicableError` where B and W are one op."""
    if not problem.split:
        raise NotApplicableError("needs split_backward: true")


def chunked(problem: Problem, family: str, chunks: int) -> tuple[int, ...]:
    """Return the placement of a family ("interleaved" or "wave") with that many stages on every device.

    Raises
    ------
    NotApplicableError
        The instance does not allow it.
    """
    devices, stages = problem.n_devices, chunks * problem.n_devices
    if devices == 1:
        raise NotApplicableError("needs more than one device")
    wanted = tuple(family_device(family, stage, devices) for stage in range(stages))
    allowed = problem.min_stages <= stages <= problem.max_stages and chunks <= problem.max_per_device
    if not allowed or problem.placement_for(stages) not in (None, wanted):
        shape = {"interleaved": "cyclic", "wave": "wave"}[family]
        raise NotApplicableError(
            f"needs {chunks} stages on every device, in {shape} order; the instance allows {stages_allowed(problem)}"
        )
    return wanted


def stages_allowed(problem: Problem) -> str:
    """Say how many stages an instance allows and how they may be placed, for a refusal."""
    least, most = problem.min_stages, problem.max_stages
    stages = f"{least}" if least == most else f"{least} to {most}"
    return f"{stages} stages on {problem.n_devices} devices with {problem.family} placement"


def attempts(
    heuristic: Heuristic, problem: Problem, rules: Mapping[str, PartitionRule] = PARTITION_RULES
) -> Iterator[Attempt]:
    """Run a heuristic with every partition rule on every placement it offers.

    Parameters
    ----------
    rules : mapping
        Partition rules by name; one that refuses, or that cuts as an earlier one does, gives no attempt.
    """
    try:
        placements = heuristic.placements(problem)
    except NotApplicableError as error:
        yield Attempt(heuristic.name, "", "not-applicable", reason=str(error))
        return
    for placement in placements:
        seen: set[tuple[int, ...]] = set()
        for rule, partition in rules.items():
            try:
                bounds = partition(problem, len(placement))
            except NotApplicableError:
                continue
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


__all__ = [
    "Attempt",
    "Heuristic",
    "NotApplicableError",
    "attempts",
    "best_attempt",
    "chunked",
    "describe_excess",
    "one_stage_per_device",
    "require_split",
    "stages_allowed",
]
