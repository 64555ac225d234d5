"""One instance: every method in turn, and what is done when it is interrupted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from octocp.bounds import all_bounds
from octocp.comparison.choice import BEST, SOLVER, Choice, row_name
from octocp.comparison.methods import KNOWN
from octocp.comparison.own import Added
from octocp.comparison.rows import Comparison, Excess, Row
from octocp.costs import build_problem
from octocp.decode import checked
from octocp.errors import NoPlanError
from octocp.heuristics import OCTOPIPE, Attempt, Heuristic, attempts
from octocp.heuristics.base import describe_excess
from octocp.heuristics.partition import ALL_PARTITION_RULES, FURTHER_RULES
from octocp.problem import Problem
from octocp.schedule import Schedule
from octocp.schema import Instance, Plan

# The best partition of one method is a small model; what it has not found by then is worth little.
PARTITION_SECONDS = 5.0


@dataclass(frozen=True)
class PartitionEffort:
    """How long to look for the best partitions.

    Attributes
    ----------
    seconds : float
        For all methods together; one has at most `PARTITION_SECONDS` of it.
    workers, seed : int
        Threads and seed of CP-SAT.
    """

    seconds: float
    workers: int
    seed: int


@dataclass(frozen=True)
class _Tried:
    """The best attempt under a row's name, and the seconds that all of them took."""

    name: str
    attempt: Attempt
    seconds: float

    @property
    def rank(self) -> tuple[int, int]:
        """Smaller is better: a plan, then how long it is; then one that could at least be timed."""
        schedule = self.attempt.schedule
        if self.attempt.status == "feasible" and schedule is not None:
            return 0, schedule.value
        return (2, 0) if schedule is None else (1, 0)


class _Run:
    """A comparison in the making."""

    def __init__(self, instance: Instance, choice: Choice, on_step: Callable[[str], None] | None) -> None:
        self.instance, self.choice = instance, choice
        self.problem: Problem = build_problem(instance)
        self.bound = all_bounds(self.problem)[0].value
        self.made = Comparison(instance)
        self.on_step = on_step
        # Per method its best schedule, for which a better partition is looked for.
        self.leading: dict[str, tuple[Heuristic, Schedule]] = {}

    def say(self, step: str) -> None:
        if self.on_step is not None:
            self.on_step(step)

    def known(self) -> None:
        """Run every known schedule that is asked for, with every partition rule."""
        wanted = [heuristic for heuristic in KNOWN if self.choice.method(heuristic.name)]
        for number, heuristic in enumerate(wanted, 1):
            self.say(f"{heuristic.name} ({number} of {len(wanted)} known schedules)")
            self.made.rows += self._rows_of(heuristic)

    def _rows_of(self, heuristic: Heuristic) -> list[Row]:
        """Return a known schedule's rows: uniform and balanced, and a further rule where it is better than both."""
        method = heuristic.name
        found: dict[str, _Tried] = {}
        began = time.perf_counter()
        for attempt in attempts(heuristic, self.problem, ALL_PARTITION_RULES):
            name, now = row_name(method, attempt.rule), time.perf_counter()
            tried, kept = _Tried(name, attempt, now - began), found.get(name)
            began = now
            if kept is None:
                found[name] = tried
            else:
                better = tried if tried.rank < kept.rank else kept
                found[name] = replace(better, seconds=kept.seconds + tried.seconds)
        if not found:
            return []
        first = min(found.values(), key=lambda tried: tried.rank)
        if first.attempt.schedule is not None:
            self.leading[method] = heuristic, first.attempt.schedule
        further = {row_name(method, rule) for rule in FURTHER_RULES}
        least = min((tried.rank for name, tried in found.items() if name not in further), default=(3, 0))
        shown = [
            tried
            for name, tried in found.items()
            if self.choice.row(method, name)
            if name not in further or tried.rank < least or self.choice.insists(name)
        ]
        # A rule that is asked for and cuts as another one does, or refuses, has no row of its own.
        return [self._row(tried, method) for tried in shown or [first]]

    def _row(self, tried: _Tried, family: str, kind: str = "known") -> Row:
        """Turn an attempt into a row; a plan is decoded and checked."""
        name, attempt, seconds = tried.name, tried.attempt, tried.seconds
        if attempt.status == "feasible" and attempt.schedule is not None:
            return self._planned(name, attempt.schedule, seconds, family, kind)
        excess = value = None
        if attempt.status == "infeasible" and attempt.schedule is not None:
            excess, value = self._excess(attempt.schedule), attempt.schedule.value
        return Row(name, attempt.status, None, self.bound, seconds, attempt.reason, family, kind, excess, value)

    def _planned(self, name: str, schedule: Schedule, seconds: float, family: str, kind: str) -> Row:
        plan = checked(schedule, self.instance, method=name, lower_bound=self.bound)
        return Row(name, plan.status, plan, self.bound, seconds, "", family, kind)

    def _excess(self, schedule: Schedule) -> Excess | None:
        over = schedule.memory_excess()
        if over is None:
            return None
        device, need, _ = over
        needed, limit = need * float(self.problem.memory_unit_gb), self.problem.limit_gb[device] or 0.0
        return Excess(device, self.problem.device_names[device], needed - limit)

    def tuner(self) -> None:
        """Run OctoPipe's tuner, which decides on partition and placement itself."""
        if not self.choice.method(OCTOPIPE.name):
            return
        self.say(f"{OCTOPIPE.name}'s tuner")
        began = time.perf_counter()
        attempt = OCTOPIPE.run(self.problem)
        tried = _Tried(OCTOPIPE.name, attempt, time.perf_counter() - began)
        self.made.rows.append(self._row(tried, OCTOPIPE.name, "tuner"))

    def own(self, added: Sequence[Added]) -> None:
        """Add schedules from files."""
        for one in added:
            broken, over = one.schedule.layout.violation(self.problem), one.schedule.memory_excess()
            status, reason = "feasible", ""
            if broken is not None:
                status, reason = "not-applicable", broken
            elif over is not None:
                status, reason = "infeasible", describe_excess(self.problem, *over[:2])
            attempt = Attempt(one.name, "", status, one.schedule, reason)
            row = self._row(_Tried(one.name, attempt, 0.0), one.name, "own")
            self.made.rows.append(replace(row, file=one.file))

    def partitions(self, effort: PartitionEffort) -> None:
        """Look for a better partition for the orders of every known schedule, by an exact model."""
        from octocp.cpsat.for_order import best_partition

        leading = {
            method: both for method, both in self.leading.items() if self.choice.row(method, row_name(method, BEST))
        }
        deadline = time.monotonic() + effort.seconds
        for number, (method, (heuristic, schedule)) in enumerate(leading.items()):
            self.say(f"best partition for {method} ({number + 1} of {len(leading)})")
            left = (deadline - time.monotonic()) / (len(leading) - number)
            allotted = max(0.1, min(PARTITION_SECONDS, left))
            began = time.perf_counter()
            better = best_partition(
                self.problem,
                schedule,
                seconds=allotted,
                workers=effort.workers,
                seed=effort.seed,
                fused=heuristic.fused,
            )
            seconds = time.perf_counter() - began
            fits = better.memory_excess() is None
            if fits and (better.value < schedule.value or schedule.memory_excess() is not None):
                row = self._planned(row_name(method, BEST), better, seconds, method, "best-partition")
                places = [index for index, each in enumerate(self.made.rows) if each.family == method]
                self.made.rows.insert(places[-1] + 1 if places else len(self.made.rows), row)
            else:
                self.made.no_better_partition.append(method)
                if seconds >= allotted:
                    self.made.ran_out.append(method)

    def solver(self, solve: Callable[[], Plan]) -> None:
        """Run the solver, and give every row its bound where that is better."""
        self.say(SOLVER)
        began = time.perf_counter()
        try:
            plan = solve()
        except (NoPlanError, KeyboardInterrupt) as error:
            reason = str(error) or "interrupted before there was a plan"
            seconds = time.perf_counter() - began
            self.made.rows.append(Row(SOLVER, "unknown", None, self.bound, seconds, reason, SOLVER, "solver"))
            return
        row = Row(SOLVER, plan.status, plan, plan.lower_bound, plan.solve.seconds, "", SOLVER, "solver")
        self.bound = max(self.bound, plan.lower_bound)
        self.made.rows = [each.bounded(self.bound) for each in (*self.made.rows, row)]


def compare_instance(
    instance: Instance,
    choice: Choice,
    solve: Callable[[], Plan] | None,
    *,
    added: Sequence[Added] = (),
    partitions: PartitionEffort | None = None,
    on_step: Callable[[str], None] | None = None,
) -> Comparison:
    """Run all methods on one instance: known schedules, the tuner, own schedules, best partitions, then the solver.

    Parameters
    ----------
    solve : callable or None
        Returns the solver's checked plan; without it there is no such row.
    partitions : PartitionEffort or None
        For the best partitions of all known schedules; without it there are none.
    on_step : callable, optional
        Called with a few words when another method begins.

    Returns
    -------
    Comparison
        After a KeyboardInterrupt, what is done.

    Raises
    ------
    InputError, InfeasibleError
        The instance is wrong, or no plan of it exists.
    """
    run = _Run(instance, choice, on_step)
    try:
        # One's own first: it is what the rest is held against, and costs nothing.
        run.own(added)
        run.known()
        run.tuner()
    except KeyboardInterrupt:
        return replace(run.made, complete=False)
    try:
        if partitions is not None:
            run.partitions(partitions)
        if solve is not None:
            run.solver(solve)
    except KeyboardInterrupt:
        pass
    return run.made
