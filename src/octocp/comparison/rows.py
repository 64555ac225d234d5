"""What a comparison says about one method, and about one instance."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, replace
from functools import cached_property

from octocp.errors import InputError, PlanRejectedError
from octocp.report.bubbles import BubbleReport, analyse
from octocp.schema import Instance, Plan


@dataclass(frozen=True)
class Excess:
    """By how much a schedule is over the memory limit of the device that is worst off.

    Attributes
    ----------
    device : int
        The device.
    name : str
        Its name.
    gigabytes : float
        GB above its limit.
    """

    device: int
    name: str
    gigabytes: float


@dataclass(frozen=True)
class Shares:
    """Idle time as shares of makespan x devices.

    `warm_up`, `steady` and `cool_down` add up to `bubble`; `imbalance` is the part of it that uneven loads explain.
    """

    bubble: float
    warm_up: float
    steady: float
    cool_down: float
    imbalance: float


@dataclass(frozen=True)
class Row:
    """One method in a comparison; `plan` is None where there is none, and `reason` says why.

    Attributes
    ----------
    method : str
        The row's name.
    status : str
        "optimal", "feasible", "infeasible" (over a memory limit), "not-applicable", or "unknown" (no plan in time).
    lower_bound : int
        Ticks, the same in all rows of an instance.
    seconds : float
        What it took.
    family : str
        The method without its partition rule.
    kind : str
        "known", "best-partition", "tuner", "own" or "solver".
    excess : Excess or None
        For an infeasible one, by how much, as far as it is known.
    value_over_limit : int or None
        For an infeasible one, the objective of the schedule that breaks the limit, ticks, as far as it is known.
    file : str
        For one's own, where it comes from.
    """

    method: str
    status: str
    plan: Plan | None
    lower_bound: int
    seconds: float
    reason: str = ""
    family: str = ""
    kind: str = "known"
    excess: Excess | None = None
    value_over_limit: int | None = None
    file: str = ""

    @property
    def value(self) -> int | None:
        """The objective, ticks; None where there is no plan."""
        return self.plan.value if self.plan else None

    @cached_property
    def report(self) -> BubbleReport | None:
        """Idle time by device; None where there is no plan."""
        return analyse(self.plan) if self.plan else None

    @cached_property
    def shares(self) -> Shares | None:
        """Idle time over all devices; None where there is no plan."""
        report = self.report
        if report is None:
            return None
        total = (report.makespan * len(report.devices)) or 1
        return Shares(
            bubble=report.bubble,
            warm_up=sum(device.warm_up for device in report.devices) / total,
            steady=sum(device.steady for device in report.devices) / total,
            cool_down=sum(device.cool_down for device in report.devices) / total,
            imbalance=sum(device.imbalance for device in report.devices) / total,
        )

    @cached_property
    def worst_device(self) -> int | None:
        """The device with the largest share of its memory limit in use; without limits, the largest peak."""
        if self.report is None:
            return None
        peaks = [device.peak_memory_gb or 0.0 for device in self.report.devices]
        limits = [device.memory_gb for device in self.report.devices]

        def fullness(device: int) -> tuple[float, float]:
            limit = limits[device]
            share = 0.0 if limit is None else peaks[device] / limit if limit else float(peaks[device] > 0)
            return share, peaks[device]

        return max(range(len(peaks)), key=fullness)

    def bounded(self, bound: int) -> Row:
        """Return the row with a better lower bound, ticks.

        Raises
        ------
        PlanRejectedError
            The plan is below it: a bug in OctoCP.
        """
        if self.plan is None:
            return replace(self, lower_bound=bound)
        if self.plan.value < bound:
            raise PlanRejectedError(
                f"{self.method} reaches {self.plan.value} ticks, below the lower bound {bound}; please report it"
            )
        status = "optimal" if self.plan.value == bound else "feasible"
        plan = self.plan.model_copy(update={"lower_bound": bound, "status": status})
        return replace(self, plan=plan, lower_bound=bound, status=status)


@dataclass
class Comparison:
    """All rows of one instance.

    Attributes
    ----------
    complete : bool
        Whether all known schedules and own ones have had their turn; a Ctrl-C may have come before.
    no_better_partition : list of str
        Methods for whose orders the exact search has found no better partition.
    ran_out : list of str
        Those of them whose search used up its seconds, so that there may be one.
    reason : str
        Why there are no rows, where no plan of the instance exists.
    """

    instance: Instance
    rows: list[Row] = field(default_factory=list)
    complete: bool = True
    no_better_partition: list[str] = field(default_factory=list)
    ran_out: list[str] = field(default_factory=list)
    reason: str = ""

    @property
    def lower_bound(self) -> int | None:
        """The bound that all rows share, ticks."""
        return self.rows[0].lower_bound if self.rows else None

    @property
    def best(self) -> int | None:
        """The least value of all rows, ticks."""
        return min((row.value for row in self.rows if row.value is not None), default=None)

    def ratio(self, row: Row) -> float | None:
        """Return a row's value over the best one; None where it has no plan."""
        return ratio(row.value, self.best)

    def ranked(self) -> list[Row]:
        """Return the rows with a plan, best first; of equals, the earlier one."""
        return sorted((row for row in self.rows if row.plan), key=lambda row: row.plan.value if row.plan else 0)


def plan_of(comparison: Comparison, name: str) -> Plan:
    """Return the plan of a row.

    Raises
    ------
    InputError
        There is no such row, or it has no plan.
    """
    row = next((row for row in comparison.rows if row.method == name), None)
    if row is None:
        names = [row.method for row in comparison.rows]
        close = difflib.get_close_matches(name, names, n=1)
        right = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names)}"
        raise InputError(f"there is no row {name!r}", right=right)
    if row.plan is None:
        raise InputError(f"{name} has no plan: {row.status}", right=row.reason)
    return row.plan


def ratio(value: int | None, best: int | None) -> float | None:
    """Return value / best; 1 where both are 0."""
    if value is None or best is None:
        return None
    return value / best if best else (1.0 if value == best else float("inf"))
