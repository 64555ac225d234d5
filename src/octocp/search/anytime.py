"""The search over time: which states are annealed, for how long, on how many threads; it stops and goes on anywhere."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

from octocp.problem import Problem
from octocp.progress import Progress
from octocp.schedule import Layout, Schedule
from octocp.search.evaluator import NEVER
from octocp.search.local import LocalSearch, State
from octocp.search.polish import Polish

# Ops simulated in one call of the compiled code, at most: a fraction of a second, so that time limits are kept.
OPS_PER_CALL = 6_000_000
LEAST_MOVES = 20
# Moves in the first round of the screening, which all starts take part in; ops limit them where there are many.
SCREENING_MOVES = 1_000
SCREENING_OPS = 600_000
SCREENING_HOT = 0.01
# The lineages kept for good, and the moves of the first anneal of one; every few anneals the length doubles.
KEPT = 6
FIRST_MOVES = 20_000
ANNEALS_PER_LENGTH = 6
# Up to this share of the time lineages stay apart; then the best ones and what comes of them take all places.
APART_SHARE = 1 / 3
# Up to this share of the time the search begins anew so often at most, after so many moves for every unit of layers
# that can be cut: two short runs differ by more than what the second half of a long one adds. Large models have time
# for one.
RESTARTS = 5
RESTARTS_SHARE = 0.5
MOVES_BEFORE_RESTART = 10_000
# What an anneal ends with is polished if it is within this share of the incumbent.
NEAR = 0.005
# No one temperature is best everywhere: they take turns. Hot ones, which leave where they begin, need longer: where
# a move has more ops than this, they do not come to an end that is worth it.
TEMPERATURES = (0.002, 0.004, 0.001, 0.015)
HOT, HOT_LENGTH, HOT_OPS = 0.01, 4, 1_000
COLD = 1e-5


@dataclass
class _Anneal:
    """One anneal under way: where it is, the best it has seen, how far it has got."""

    now: State
    best: State
    origin: State
    moves: int
    hot: float
    seed: int
    done: int = 0
    calls: int = 0

    @property
    def over(self) -> bool:
        """Whether all its moves have been made."""
        return self.done >= self.moves

    def temperature(self, done: int) -> float:
        """Return the temperature after a number of moves: falling by the same factor for every move."""
        return self.hot * float((COLD / self.hot) ** (done / self.moves))


class Search:
    """The local search on one problem, to be run in slices: it goes on where it stopped.

    First a screening by successive halving: every start gets the same number of moves, the better half goes on with
    twice as many. Then a few lineages are annealed again and again, ever longer; a lineage moves on when
    an anneal of it ends better. For a while they do so apart from each other, so that not all descend from the one that
    was first to be good. A plan found elsewhere becomes a lineage. The orders of what is better than before are
    polished: searched op by op, which the states cannot express.

    Parameters
    ----------
    workers : int
        Threads; the compiled code holds no lock of Python's.
    """

    def __init__(self, problem: Problem, *, seed: int, workers: int, most_stages: int) -> None:
        self.local = LocalSearch(problem, most_stages)
        self.workers = workers
        self._starts = list(self.local.starts())
        self._screened: list[State] = []
        self._moves = SCREENING_MOVES
        self._lineages: list[State] = []
        self._earlier: list[State] = []
        self._restarts = 0
        self._spent = 0
        self._under_way: list[_Anneal] = []
        self._count = 0
        self._draw = random.Random(seed)
        self._polish = Polish(self.local, seed)
        self._ops_per_stage = problem.n_microbatches * len(problem.kinds)
        self._seen: Schedule | None = None
        self._suggested: list[State] = []
        self._lock = Lock()

    def run(self, progress: Progress, seconds: float) -> None:
        """Search until `seconds` have passed."""
        ends = progress.seconds + seconds
        self._renew(apart=self._apart(progress))
        self._take(progress)
        with ThreadPoolExecutor(self.workers) as threads:
            while self._starts and progress.seconds < ends and not progress.done:
                self._screen(threads, progress, ends)
            if self._lineages:
                for worker in [threads.submit(self._work, progress, ends) for _ in range(self.workers)]:
                    worker.result()

    def suggest(self, layout: Layout) -> None:
        """Let a layout be annealed once, whatever its value; it becomes a lineage if it ends well."""
        if layout.stages <= self.local.most:
            self._suggested += [self.local.state(layout, alternate=alternate) for alternate in (False, True)]

    def _take(self, progress: Progress) -> None:
        """Let a plan found elsewhere join in."""
        found = progress.schedule
        if found is None or found is self._seen:
            return
        self._seen = found
        if found.layout.stages > self.local.most:
            return
        states = [self.local.state(found.layout, alternate=alternate) for alternate in (False, True)]
        if self._starts:
            self._starts += states
        else:
            self._lineages += [self.local.improve(state, state, 0, COLD, COLD, 0, 0)[1] for state in states]
            self._rank()

    def _apart(self, progress: Progress) -> bool:
        return progress.seconds < (RESTARTS_SHARE if self._restarts else APART_SHARE) * progress.limit

    def _renew(self, *, apart: bool) -> None:
        """Begin anew where a run has had its time; in the end, let what the runs came to go on together."""
        if not apart:
            if self._earlier and not self._starts:
                self._lineages += self._earlier
                self._earlier = []
                self._rank()
        elif self._restarts < RESTARTS and self._spent >= MOVES_BEFORE_RESTART * len(self.local.problem.units):
            self._restarts += 1
            self._earlier += self._lineages
            self._starts, self._screened, self._moves = list(self.local.starts()), [], SCREENING_MOVES
            self._lineages, self._under_way, self._count, self._spent = [], [], 0, 0

    def _rank(self) -> None:
        """Keep the best lineages, in order; of several of one value, one."""
        by_value = {state.value: state for state in sorted(self._lineages, key=lambda state: state.value)}
        self._lineages = list(by_value.values())[:KEPT]

    def _most(self, state: State, ops: int) -> int:
        """Return how many moves of a state simulate about so many ops."""
        return max(LEAST_MOVES, ops // (state.stages * self._ops_per_stage))

    # ---- screening -----------------------------------------------------------------------------

    def _screen(self, threads: ThreadPoolExecutor, progress: Progress, ends: float) -> None:
        """Run one round of the halving, or go on with it."""
        most = SCREENING_OPS if self._moves == SCREENING_MOVES else OPS_PER_CALL

        def work(task: tuple[State, int]) -> State | None:
            state, seed = task
            if progress.seconds >= ends or progress.done:
                return None
            moves = min(self._moves, self._most(state, most))
            _, best = self.local.improve(state, state, moves, SCREENING_HOT, COLD, progress.bound.value, seed)
            self._offer(best, progress)
            return best

        tasks = [(state, self._draw.randrange(1 << 31)) for state in self._starts]
        improved = list(threads.map(work, tasks))
        self._screened += [state for state in improved if state is not None]
        self._starts = [state for state, after in zip(self._starts, improved, strict=True) if after is None]
        if self._starts:
            return
        ranked = sorted(self._screened, key=lambda state: state.value)
        self._moves *= 2
        self._starts, self._screened = ranked[: max(KEPT, len(ranked) // 2)], []
        if len(self._starts) == len(ranked) or self._moves >= FIRST_MOVES:
            self._lineages, self._starts = self._starts, []
            self._rank()

    # ---- lineages ------------------------------------------------------------------------------

    def _work(self, progress: Progress, ends: float) -> None:
        """Anneal until the time is over; what is under way then goes on in the next slice."""
        while progress.seconds < ends and not progress.done:
            with self._lock:
                task = self._under_way.pop(0) if self._under_way else self._next()
            moves = min(task.moves - task.done, self._most(task.now, OPS_PER_CALL))
            hot, cold = task.temperature(task.done), task.temperature(task.done + moves)
            task.now, task.best = self.local.improve(
                task.now, task.best, moves, hot, cold, progress.bound.value, (task.seed + task.calls) % (1 << 31)
            )
            task.done, task.calls = task.done + moves, task.calls + 1
            self._offer(task.best, progress)
            with self._lock:
                self._spent += moves
                if not task.over:
                    self._under_way.insert(0, task)
                    continue
                if task.best.value >= task.origin.value:
                    continue
                apart = self._apart(progress)
                self._join(task, apart=apart)
            if not apart:
                self._polished(task.best, progress, ends)

    def _polished(self, state: State, progress: Progress, ends: float) -> None:
        """Polish the schedule of a state that is near the best one; cuts that this moves make another lineage."""
        if progress.value is None or state.value > (1 + NEAR) * progress.value:
            return
        found = self.local.schedule(state)
        if found and self._polish.run(found, progress, ends):
            self._seen = progress.schedule

    def _join(self, task: _Anneal, *, apart: bool) -> None:
        """Let an anneal that ended better be a lineage: its own one moved on, or another one beside it."""
        if apart:
            # Not by ==, which would compare arrays.
            self._lineages = [state for state in self._lineages if state is not task.origin]
        self._lineages.append(task.best)
        self._rank()

    def _next(self) -> _Anneal:
        """Begin an anneal: of what was suggested, then of the better lineages more often than of the others."""
        if self._suggested:
            state = self._suggested.pop(0)
            return _Anneal(state, state, state, FIRST_MOVES, TEMPERATURES[0], self._draw.randrange(1 << 31))
        length = FIRST_MOVES << min(self._count // (ANNEALS_PER_LENGTH * self.workers), 20)
        hot = TEMPERATURES[self._count % len(TEMPERATURES)]
        self._count += 1
        state = self._lineages[int(len(self._lineages) * self._draw.random() ** 2)]
        if hot >= HOT and state.stages * self._ops_per_stage > HOT_OPS:
            hot = TEMPERATURES[0]
        elif hot >= HOT:
            length *= HOT_LENGTH
        return _Anneal(state, state, state, length, hot, self._draw.randrange(1 << 31))

    def _offer(self, state: State, progress: Progress) -> None:
        if state.value < NEVER and (progress.value is None or state.value < progress.value):
            found = self.local.schedule(state)
            if found is not None and progress.offer(found):
                self._seen = progress.schedule
