"""Where each rank of a run is, in memory shared with the launcher: writing it costs a rank next to nothing."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from octocp.torch.actions import Action


class Phase(IntEnum):
    """What a rank is at."""

    starting = 0
    joining = 1
    building = 2
    step = 3
    checking = 4
    telling = 5


_WORDS = {
    Phase.starting: "starting",
    Phase.joining: "waiting for the others to join",
    Phase.building: "building its layers",
    Phase.checking: "computing the gradients of one process",
    Phase.telling: "handing over what it measured",
}
# A rank's numbers: a counter of every sign of life, the phase, the step and how many there are, whether an action is
# under way, the action.
_CELLS = 8
_COUNT, _PHASE, _STEP, _STEPS, _BUSY, _STAGE, _KIND, _MICROBATCH = range(_CELLS)
# So many ranks are named where all of them wait.
_SHOWN = 4


@dataclass
class Post:
    """One rank's place on the board, where it writes.

    Attributes
    ----------
    cells : sequence of int
        Shared with the launcher, or a list that nobody else looks at.
    """

    cells: MutableSequence[int]
    rank: int = 0

    @classmethod
    def unwatched(cls) -> Post:
        """Return a post of its own, for a rank that no launcher watches."""
        return cls([0] * _CELLS)

    def at(self, phase: Phase, step: int = 0, steps: int = 0) -> None:
        """Enter a phase; steps count from 1 to `steps`, with those that warm up."""
        self._set(_PHASE, phase)
        self._set(_STEP, step)
        self._set(_STEPS, steps)
        self._set(_BUSY, 0)
        self._set(_KIND, 0)
        self.alive()

    def begins(self, action: Action) -> None:
        """Begin an action."""
        self._set(_STAGE, action.stage)
        self._set(_KIND, ord(action.kind))
        self._set(_MICROBATCH, action.microbatch)
        self._set(_BUSY, 1)
        self.alive()

    def ends(self) -> None:
        """End the action."""
        self._set(_BUSY, 0)
        self.alive()

    def alive(self) -> None:
        """Give a sign of life."""
        self.cells[_CELLS * self.rank + _COUNT] += 1

    def _set(self, cell: int, value: int) -> None:
        self.cells[_CELLS * self.rank + cell] = value


class Board:
    """All ranks' posts, as the launcher reads them."""

    def __init__(self, context: Any, world: int) -> None:
        self.cells: Any = context.RawArray("q", _CELLS * world)
        self.world = world

    def post(self, rank: int) -> Post:
        """Return a rank's post, to hand to its process."""
        return Post(self.cells, rank)

    def snapshot(self) -> Sequence[int]:
        """Return all numbers; they change whenever a rank gets any further."""
        return list(self.cells)

    def all_joined(self) -> bool:
        """Tell whether every rank has got beyond meeting the others."""
        return all(self.cells[_CELLS * rank + _PHASE] > Phase.joining for rank in range(self.world))

    def where(self, rank: int) -> str:
        """Say where a rank is."""
        cells = self.cells[_CELLS * rank : _CELLS * (rank + 1)]
        phase = Phase(cells[_PHASE])
        if phase is not Phase.step:
            return _WORDS[phase]
        step = f"step {cells[_STEP]} of {cells[_STEPS]}"
        if not cells[_KIND]:
            return f"at the beginning of {step}"
        action = Action(cells[_STAGE], chr(cells[_KIND]), cells[_MICROBATCH])
        return f"computing {action} in {step}" if cells[_BUSY] else f"waiting after {action} in {step}"

    def everywhere(self) -> str:
        """Say where the ranks are, the first few of those that are at work, if any are."""
        busy = [rank for rank in range(self.world) if self.cells[_CELLS * rank + _BUSY]]
        ranks = busy + [rank for rank in range(self.world) if rank not in busy]
        told = [f"rank {rank} {self.where(rank)}" for rank in ranks[:_SHOWN]]
        return ", ".join(told) + (f" and {self.world - _SHOWN} more" if self.world > _SHOWN else "")
