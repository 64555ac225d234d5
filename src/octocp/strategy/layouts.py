"""Layout by layout: every layout that could beat the incumbent is listed, and each is ordered exactly or refuted.

A decomposition in the way of logic-based Benders: partition and placement are listed (`octocp.cpsat.contents`), and
the joint model with both given decides the rest: often presolve alone shows that no order is below the incumbent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from octocp.bounds import Bound
from octocp.cpsat.build import Build
from octocp.cpsat.contents import layouts_below, listable
from octocp.cpsat.joint import build_joint
from octocp.cpsat.run import Outcome
from octocp.problem import Problem
from octocp.progress import Progress
from octocp.schedule import Layout

# Ops of one layout beyond which its order is seldom decided in a moment.
MOST_OPS = 2_000
# Once there were too many layouts, the value must be this much lower, as a share, to list them again.
LOWER = 0.003
# Every layout gets a moment first; those that are left get the rest of the time, in turn.
FIRST_SECONDS = 0.5

Solve = Callable[[Build, float], Outcome]


class LayoutByLayout:
    """The decomposition on one problem; it goes on where it stopped, also with a better incumbent."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._listed: list[tuple[int, Layout]] | None = None
        self._tried_below: int | None = None
        self._closed: set[Layout] = set()

    def applies(self, progress: Progress) -> bool:
        """Whether layouts can be listed, and were not found to be too many for this incumbent."""
        problem, value = self.problem, progress.value
        if value is None or progress.done or not listable(problem):
            return False
        if self._listed is None and self._tried_below is not None and value > (1 - LOWER) * self._tried_below:
            return False
        return problem.max_stages * problem.n_microbatches * len(problem.kinds) <= MOST_OPS

    def run(self, progress: Progress, seconds: float, solve: Solve) -> None:
        """Order layouts, those with the lowest bounds first, and prove what follows.

        Parameters
        ----------
        solve : callable
            Runs a model for so many seconds and offers its schedules to `progress`.
        """
        value = progress.value
        if value is None:
            return
        ends = progress.seconds + min(seconds, progress.left)
        if self._listed is None:
            self._tried_below = value
            self._listed = layouts_below(self.problem, value)
        if self._listed is None:
            return
        self._prove(progress)
        moment = FIRST_SECONDS
        while progress.seconds < ends and not progress.done:
            left = self._open(progress)
            for bound, layout in left:
                if progress.seconds >= ends or progress.done:
                    break
                if progress.value is not None and bound >= progress.value:
                    break
                build = self._model(layout, bound, progress.value)
                outcome = solve(build, min(moment, ends - progress.seconds))
                if outcome.status in ("infeasible", "optimal"):
                    self._closed.add(layout)
                    self._prove(progress)
            moment *= 4

    def _open(self, progress: Progress) -> list[tuple[int, Layout]]:
        value = progress.value
        return [
            (bound, layout)
            for bound, layout in self._listed or ()
            if layout not in self._closed and (value is None or bound < value)
        ]

    def _prove(self, progress: Progress) -> None:
        """A plan below the incumbent has a layout that is still open, and so at least the lowest of their bounds."""
        if progress.value is None:
            return
        value = min((bound for bound, _ in self._open(progress)), default=progress.value)
        progress.prove(Bound("layout by layout", value, "every layout that could be better, ordered exactly"))

    def _model(self, layout: Layout, bound: int, value: int | None) -> Build:
        """Return the joint model with the layout given, for orders below `value`."""
        fixed = dataclasses.replace(
            self.problem,
            partition=layout.partition,
            family="fixed",
            placement=layout.placement,
            min_stages=layout.stages,
            max_stages=layout.stages,
        )
        upper = None if value is None else value - 1
        return build_joint(fixed, lower=bound, upper=upper)
