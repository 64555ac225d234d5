"""What the local search over explicit orders makes of a plan: orders as tokens, and back to a `Schedule`."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from octocp.progress import Progress
from octocp.schedule import Layout, Schedule
from octocp.search.evaluator import NEVER, Ints
from octocp.search.local import LocalSearch
from octocp.search.orders import KIND_BITS, anneal_orders

# Temperatures as shares of the value. The orders come from a search that is through with them: hotter ones lose more
# than they find.
TEMPERATURES = (0.0003, 0.0001, 0.0006)
COLD = 1e-5
# Ops simulated in one call of the compiled code, at most: a fraction of a second.
OPS_PER_CALL = 4_000_000


@dataclass
class Orders:
    """A layout and each device's order, as the compiled code reads them (`octocp.search.orders`)."""

    cuts: Ints
    place: Ints
    tokens: Ints
    length: Ints

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.place)


class Polish:
    """The local search over explicit orders and cuts, from a plan on.

    Parameters
    ----------
    local : LocalSearch
        Of the same problem; its numbers are used.
    """

    def __init__(self, local: LocalSearch, seed: int) -> None:
        self.local = local
        self._draw = random.Random(seed)
        self._turn = 0

    def orders(self, schedule: Schedule) -> Orders:
        """Return the layout and orders of a schedule."""
        by_device = schedule.relabelled_fifo().orders()
        length = np.array([len(ops) for ops in by_device], dtype=np.int64)
        tokens = np.zeros((len(by_device), int(length.max())), dtype=np.int64)
        for device, ops in enumerate(by_device):
            tokens[device, : len(ops)] = [(op.stage << KIND_BITS) + op.kind for op in ops]
        layout = schedule.layout
        cuts = np.array([self.local.unit_of[bound] for bound in layout.bounds], dtype=np.int64)
        return Orders(cuts, np.array(layout.placement, dtype=np.int64), tokens, length)

    def improve(self, schedule: Schedule, moves: int, hot: float, target: int, seed: int) -> Schedule | None:
        """Anneal the orders and cuts of a schedule; return a better one, or None where none was found.

        Parameters
        ----------
        moves : int
            Moves to simulate.
        hot : float
            Temperature at the start, as a share of the value.
        target : int
            Stop at this value, ticks.
        """
        local, now = self.local, self.orders(schedule)
        kinds, microbatches = len(local.problem.kinds), local.problem.n_microbatches
        cuts, tokens = now.cuts.copy(), now.tokens.copy()
        start = np.zeros((3, now.stages, microbatches), dtype=np.int64)
        value = anneal_orders(
            local.shape, local.scaling, local.prefix, local.link_class, local.delays, local.capacity, local.groups,
            now.stages, now.cuts, now.place, now.tokens, now.length, cuts, tokens, start,
            moves, hot, COLD, target, seed,
        )  # fmt: skip
        if value >= min(NEVER, schedule.value):
            return None
        layout = Layout(tuple(local.edges_of[cut] for cut in cuts), schedule.layout.placement)
        return Schedule(local.problem, layout, start[:kinds].copy())

    def run(self, schedule: Schedule, progress: Progress, ends: float) -> Schedule | None:
        """Polish a plan until it stops getting better, or `ends`; what beats the incumbent is offered.

        Returns
        -------
        Schedule or None
            The last one, if it is better than the first.
        """
        best, failures = schedule, 0
        while failures < len(TEMPERATURES) and progress.seconds < ends and not progress.done:
            moves = max(1, OPS_PER_CALL // schedule.start.size)
            hot = TEMPERATURES[self._turn % len(TEMPERATURES)]
            self._turn += 1
            better = self.improve(best, moves, hot, progress.bound.value, self._draw.randrange(1 << 31))
            if better is None:
                failures += 1
                continue
            failures, best = 0, better
            progress.offer(best)
        return best if best is not schedule else None
