"""Many instances: how each method stands, and its performance profile.

The profile is that of Dolan and Moré (Mathematical Programming 91, 2002): the share of instances on which a method is
within a factor of the best one; without a plan it is within no factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

from octocp.comparison.rows import Comparison, Row

WITHIN = (1.0, 1.01, 1.05, 1.1, 1.2, 1.5)
"""Factors of the best value that tables of the profile have."""
# Ratios are quotients of integers; this only keeps 1.05 within 1.05.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Standing:
    """One method over many instances, with the best of its rows on each.

    Attributes
    ----------
    method : str
        The method, whatever its partition rule.
    ratios : tuple of float or None
        Per instance, value over the best value of all methods; None where the method has no plan.
    infeasible, not_applicable, unknown : int
        On how many instances it has none, by reason: over a memory limit, cannot run, not in time.
    """

    method: str
    ratios: tuple[float | None, ...]
    infeasible: int
    not_applicable: int
    unknown: int

    @property
    def known(self) -> list[float]:
        """The ratios that there are."""
        return [ratio for ratio in self.ratios if ratio is not None]

    @property
    def plans(self) -> int:
        """On how many instances it has a plan."""
        return len(self.known)

    @property
    def mean(self) -> float | None:
        """Geometric mean of the ratios that there are."""
        return exp(sum(map(log, self.known)) / self.plans) if self.plans else None

    @property
    def best(self) -> int:
        """On how many instances no method is better."""
        return sum(ratio <= 1 + ROUNDING for ratio in self.known)

    def within(self, factor: float) -> float:
        """Return the share of all instances on which it is within a factor of the best."""
        count = sum(ratio <= factor * (1 + ROUNDING) for ratio in self.known)
        return count / len(self.ratios) if self.ratios else 0.0


def standings(comparisons: Sequence[Comparison]) -> list[Standing]:
    """Return how each method stands, best first: by the mean of its shares, then by the mean of its ratios.

    Instances that were not completed, or of which no method has a plan, are left out.
    """
    counted = [each for each in comparisons if counts(each)]
    methods = list(dict.fromkeys(row.family for each in counted for row in each.rows))
    found = [_standing(method, counted) for method in methods]
    return sorted(found, key=lambda one: (-sum(map(one.within, WITHIN)), one.mean or float("inf")))


def counts(comparison: Comparison) -> bool:
    """Whether an instance has a part in the standings."""
    return comparison.complete and comparison.best is not None


def _standing(method: str, comparisons: list[Comparison]) -> Standing:
    ratios: list[float | None] = []
    reasons: list[str] = []
    for comparison in comparisons:
        rows = [row for row in comparison.rows if row.family == method]
        known = [ratio for row in rows if (ratio := comparison.ratio(row)) is not None]
        ratios.append(min(known) if known else None)
        if not known:
            reasons.append(_why(rows))
    return Standing(
        method,
        tuple(ratios),
        reasons.count("infeasible"),
        reasons.count("not-applicable"),
        reasons.count("unknown"),
    )


def _why(rows: list[Row]) -> str:
    """Return the status of a method without a plan; one that could at least be timed is infeasible."""
    statuses = {row.status for row in rows}
    return next((status for status in ("infeasible", "unknown") if status in statuses), "not-applicable")
