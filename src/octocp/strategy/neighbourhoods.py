"""Parts of the incumbent solved again, exactly: its cuts in its order, its order, then with a few stages free."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

from octocp.cpsat.build import Build
from octocp.cpsat.neighbourhood import around
from octocp.cpsat.run import Outcome
from octocp.problem import Problem
from octocp.progress import Progress
from octocp.schedule import Schedule

LEAST_SECONDS = 0.5
# Stages set free at a time, after the first round, and how far their cuts may move.
WIDTHS = (2, 3, 4)
REACH = 2


def neighbourhoods(
    problem: Problem,
    progress: Progress,
    *,
    seconds: float,
    seed: int,
    exact_cuts: Callable[..., Schedule] | None,
    without: Collection[str],
    solve: Callable[[Build, float], Outcome],
) -> int:
    """Solve parts of the incumbent again until the time is over; return how many.

    Parameters
    ----------
    exact_cuts : callable, optional
        `octocp.cpsat.for_order.best_partition` with its settings.
    without : collection of str
        Families of the joint model to leave out.
    solve : callable
        Runs a model for so many seconds and offers its schedules to `progress`.
    """
    ends = progress.seconds + seconds
    rng = random.Random(seed)
    if exact_cuts is not None and progress.schedule is not None:
        given = min(progress.left, max(LEAST_SECONDS, (ends - progress.seconds) / 3))
        progress.offer(exact_cuts(problem, progress.schedule, seconds=given, stopped=progress.stop.is_set))
    solved, width = 0, 0
    while progress.seconds < ends and not progress.done and progress.schedule is not None:
        incumbent = progress.schedule
        stages = incumbent.layout.stages
        first = rng.randrange(stages)
        loose = {(first + offset) % stages for offset in range(width)}
        loose |= {rng.randrange(stages) for _ in range(width)} if width else set()
        build = around(
            problem,
            incumbent,
            lower=progress.bound.value,
            loose_cuts=loose,
            loose_stages=loose if rng.random() < 0.5 else (),
            reach=REACH,
            without=without,
        )
        solved += 1
        solve(build, min(progress.left, max(LEAST_SECONDS, (ends - progress.seconds) / 2)))
        width = rng.choice(WIDTHS)
    return solved
