"""What torchrun tells the processes that it starts, by environment variables; read without torch."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

from octocp.errors import InputError, OctoCPError

# A process that has nothing to say waits this long to be ended with the one that does: torchrun ends all as soon as one
# has failed, which might otherwise be before that one has said why.
PATIENCE_S = 30.0
OWN = "without torchrun, unset RANK and WORLD_SIZE"


class AlreadySaidError(OctoCPError):
    """A run has failed, and another process says why."""


@dataclass(frozen=True)
class Torchrun:
    """The place of this process among those of torchrun (or of something that sets the same variables)."""

    rank: int
    world: int
    local_rank: int

    @property
    def speaks(self) -> bool:
        """Whether this process tells what is wrong with what all processes of its machine read."""
        return self.local_rank == 0

    def fits(self, ranks: int) -> None:
        """Raise an `InputError` unless there are `ranks` processes that know where to meet."""
        if self.world != ranks:
            right = f"--nproc-per-node {ranks}, a process per device of the plan; {OWN}"
            raise InputError(f"torchrun started {self.world} process{'es' * (self.world != 1)}", right=right)
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            if not os.environ.get(name):
                raise InputError("is not set, though RANK is", place=name, right=f"torchrun sets it; {OWN}")
        _whole("MASTER_PORT", 0, 65_535)


def torchrun() -> Torchrun | None:
    """Return this process' place, or None where nothing of the kind started it.

    Raises
    ------
    InputError
        The variables make no sense.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return None
    world = _whole("WORLD_SIZE", 1)
    rank = _whole("RANK", 0, world - 1)
    return Torchrun(rank, world, _whole("LOCAL_RANK", 0) if "LOCAL_RANK" in os.environ else rank)


def await_the_end() -> None:
    """Wait to be ended by whoever started this process."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    time.sleep(PATIENCE_S)


def _whole(name: str, least: int, most: int | None = None) -> int:
    text = os.environ.get(name, "")
    right = f"a whole number from {least}" + ("" if most is None else f" to {most}") + f", as torchrun sets it; {OWN}"
    if not (text.isascii() and text.isdigit()):
        raise InputError(f"is {text[:40]!r}", place=name, right=right)
    value = int(text[:20])
    if value < least or (most is not None and value > most):
        raise InputError(f"is {text[:40]}", place=name, right=right)
    return value
