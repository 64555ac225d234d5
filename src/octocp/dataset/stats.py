"""Counts, gaps and heuristics' distances from the optimum, family by family."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from octocp.dataset.rows import PROVEN, distance

# Upper ends of the gap histogram's bins, as shares; the first is a proof.
BINS = (0.0, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 1.0)
ALL = "all"


@dataclass
class Group:
    """The rows of one family, or all of them.

    Attributes
    ----------
    statuses : Counter
        Rows by status.
    confirmed : int
        Proofs that a second one with other settings has repeated.
    gaps : list of float
        (value - lower bound) / value of rows with a plan.
    seconds : list of float
        What rows took.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    confirmed: int = 0
    gaps: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    features: Counter[str] = field(default_factory=Counter)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.statuses.total()

    @property
    def proven(self) -> int:
        """Rows with nothing left open."""
        return self.statuses["optimal"] + self.statuses["infeasible"]

    def histogram(self) -> list[tuple[str, int]]:
        """Return the gap histogram: bins in words, and counts."""
        counts = [0] * len(BINS)
        for gap in self.gaps:
            counts[next(place for place, end in enumerate(BINS) if gap <= end)] += 1
        names = ["0 (proven)", *(f"up to {100 * end:g} %" for end in BINS[1:])]
        return list(zip(names, counts, strict=True))


@dataclass(frozen=True)
class Distance:
    """How far a method is from the optimum, as shares of it, over the rows that are proven optimal.

    Attributes
    ----------
    optimal : int
        On how many it is optimal.
    plans, rows : int
        On how many it has a plan, of how many.
    """

    mean: float
    p95: float
    worst: float
    optimal: int
    plans: int
    rows: int


@dataclass
class Stats:
    """All of it.

    Attributes
    ----------
    families : dict
        By family, in the order of the rows; "all" is last.
    distances : dict
        By method and family, the shares of the optimum by which it is above it; None where it has no plan.
    """

    families: dict[str, Group] = field(default_factory=dict)
    distances: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)
    versions: Counter[str] = field(default_factory=Counter)

    def summary(self, method: str, family: str) -> Distance | None:
        """Return a method's distance on a family; None where it has no plan there."""
        return summarise(self.distances[method].get(family, []))

    def methods(self) -> list[str]:
        """Return the methods, least mean distance first; of few plans, last."""

        def rank(method: str) -> tuple[float, float]:
            found = self.summary(method, ALL)
            return (0.0, 0.0) if found is None else (-(found.plans / found.rows >= 0.5), found.mean)

        return sorted(self.distances, key=rank)


def summarise(distances: Sequence[float | None]) -> Distance | None:
    """Return mean, 95th percentile (nearest rank) and worst; None where there is no plan."""
    known = sorted(share for share in distances if share is not None)
    if not known:
        return None
    return Distance(
        sum(known) / len(known),
        known[ceil(0.95 * len(known)) - 1],
        known[-1],
        sum(share == 0 for share in known),
        len(known),
        len(distances),
    )


def collect(rows: Iterable[dict[str, Any]]) -> Stats:
    """Go through rows, as plain data, once."""
    stats = Stats()
    total = Group()
    by_method: dict[str, dict[str, list[float | None]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        family = row["family"]
        for group in (stats.families.setdefault(family, Group()), total):
            group.statuses[row["status"]] += 1
            check = row.get("double_check")
            group.confirmed += check is not None and check["status"] == row["status"] and row["status"] in PROVEN
            group.seconds.append(row["seconds"])
            group.features.update(row["features"])
            if row.get("gap") is not None:
                group.gaps.append(row["gap"])
        versions = row["versions"]
        stats.versions[f"octocp {versions['octocp']}, ortools {versions['ortools']}"] += 1
        if row["status"] == "optimal":
            for one in row["heuristics"]:
                share = distance(one["value"], row["value"])
                by_method[one["method"]][family].append(share)
                by_method[one["method"]][ALL].append(share)
    stats.distances = {method: dict(families) for method, families in by_method.items()}
    if total.rows:
        stats.families[ALL] = total
    return stats
