"""Changes of a plan by hand: the small grammar in which they are written, and what each does to a draft.

::

    layer 3->2              one layer from stage 3 to stage 2; every stage between passes one on
    2 layers 3->0           the same with two
    cut 3 -1                the cut before stage 3, one layer towards the start
    stage 5->2              stage 5 to device 2
    swap 4 5                stages 4 and 5 swap devices
    F(3,5) before B(3,2)    F of stage 3, microbatch 5, right before B of stage 3, microbatch 2; or: after
    dispatch                a new order for all devices, by list scheduling
    split                   hand every gradient on when B ends, W left free; for a plan with a fused backward
    fuse                    run every W right after its B, and hand the gradient on when W ends

Case and spaces do not matter, and ``to`` is as good as ``->``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from octocp.analysis.graph import name
from octocp.errors import InputError
from octocp.problem import KIND_NAMES
from octocp.schedule import Op

EXAMPLES = "layer 3->2, cut 3 -1, stage 5->2, swap 4 5, F(3,5) before B(3,2), dispatch, split or fuse"
# Python refuses to read numbers of thousands of digits; nothing here has more than a few.
MOST_DIGITS = 9


class IllegalMoveError(InputError):
    """A change that cannot be made; the text names the change and the reason, in one line."""


@dataclass(frozen=True)
class MoveLayers:
    """`count` layers from one stage to another; the stages between them pass on as many."""

    count: int
    source: int
    target: int

    def __str__(self) -> str:
        """Return the change as it is written."""
        what = "layer" if self.count == 1 else f"{self.count} layers"
        return f"{what} {self.source}->{self.target}"

    def words(self) -> str:
        """Say what it does."""
        what = "one layer" if self.count == 1 else f"{self.count} layers"
        text = f"{what} from stage {self.source} to stage {self.target}"
        if abs(self.source - self.target) > 1:
            text += f" (each stage between passes {'one' if self.count == 1 else 'as many'} on)"
        return text


@dataclass(frozen=True)
class MoveCut:
    """The cut before `stage`, `by` layers towards the end (or, below zero, the start)."""

    stage: int
    by: int

    def __str__(self) -> str:
        """Return the change as it is written."""
        return f"cut {self.stage} {self.by:+d}"

    def words(self) -> str:
        """Say what it does."""
        return (
            f"the cut before stage {self.stage} {abs(self.by)} layer{'s'[: abs(self.by) != 1]} "
            f"{'earlier' if self.by < 0 else 'later'}"
        )


@dataclass(frozen=True)
class MoveStage:
    """A stage to a device; its ops go between those of the device by when they started."""

    stage: int
    device: int

    def __str__(self) -> str:
        """Return the change as it is written."""
        return f"stage {self.stage}->{self.device}"

    def words(self) -> str:
        """Say what it does."""
        return f"stage {self.stage} to device {self.device}"


@dataclass(frozen=True)
class SwapStages:
    """Two stages swap devices."""

    one: int
    other: int

    def __str__(self) -> str:
        """Return the change as it is written."""
        return f"swap {self.one} {self.other}"

    def words(self) -> str:
        """Say what it does."""
        return f"swap the devices of stages {self.one} and {self.other}"


@dataclass(frozen=True)
class MoveOp:
    """An op right before (or after) another one on its device."""

    op: Op
    other: Op
    before: bool = True

    def __str__(self) -> str:
        """Return the change as it is written."""
        return f"{name(self.op)} {'before' if self.before else 'after'} {name(self.other)}"

    def words(self) -> str:
        """Say what it does."""
        return f"run {self}"


@dataclass(frozen=True)
class Dispatch:
    """A new order for all devices."""

    def __str__(self) -> str:
        """Return the change as it is written."""
        return "dispatch"

    def words(self) -> str:
        """Say what it does."""
        return "a new order on all devices, by list scheduling"


@dataclass(frozen=True)
class Handover:
    """When gradients are handed on: after W with a fused backward, after B with a split one."""

    fused: bool

    def __str__(self) -> str:
        """Return the change as it is written."""
        return "fuse" if self.fused else "split"

    def words(self) -> str:
        """Say what it does."""
        if self.fused:
            return "run every W right after its B, and hand the gradient on after W"
        return "hand every gradient on after its B, before the W (the runtime must split the backward)"


Move = MoveLayers | MoveCut | MoveStage | SwapStages | MoveOp | Dispatch | Handover

# Digits of other scripts are not numbers here.
_NUMBER = rf"([0-9]{{1,{MOST_DIGITS}}})"
_TO = r"\s*(?:->|to)\s*"
_OP = rf"([fbw])\s*\(\s*{_NUMBER}\s*,\s*{_NUMBER}\s*\)"
_LAYERS = re.compile(rf"(?:{_NUMBER}\s*)?layers?\s+(?:from\s+)?(?:stage\s+)?{_NUMBER}{_TO}(?:stage\s+)?{_NUMBER}")
_CUT = re.compile(rf"cut\s+{_NUMBER}\s+([+-]?)\s*{_NUMBER}")
_STAGE = re.compile(rf"stage\s+{_NUMBER}{_TO}(?:device\s+)?{_NUMBER}")
_SWAP = re.compile(rf"swap\s+(?:stages?\s+)?{_NUMBER}\s*(?:,|\s|and)\s*(?:stages?\s+)?{_NUMBER}")
_ORDER = re.compile(rf"{_OP}\s*(before|after)\s*{_OP}")


def parse(text: str) -> Move:
    """Read one change.

    Raises
    ------
    IllegalMoveError
        It is none.
    """
    plain = " ".join(text.lower().split())
    if found := _LAYERS.fullmatch(plain):
        return MoveLayers(int(found[1] or 1), int(found[2]), int(found[3]))
    if found := _CUT.fullmatch(plain):
        return MoveCut(int(found[1]), -int(found[3]) if found[2] == "-" else int(found[3]))
    if found := _STAGE.fullmatch(plain):
        return MoveStage(int(found[1]), int(found[2]))
    if found := _SWAP.fullmatch(plain):
        return SwapStages(int(found[1]), int(found[2]))
    if found := _ORDER.fullmatch(plain):
        one, other = (
            Op(KIND_NAMES.index(kind.upper()), int(stage), int(microbatch))
            for kind, stage, microbatch in ((found[1], found[2], found[3]), (found[5], found[6], found[7]))
        )
        return MoveOp(one, other, found[4] == "before")
    simple: dict[str, Move] = {"dispatch": Dispatch(), "split": Handover(False), "fuse": Handover(True)}
    if plain in simple:
        return simple[plain]
    shown = text if len(text) <= 60 else text[:57] + "..."
    raise IllegalMoveError(f'"{shown}" is not a change', right=f"one of: {EXAMPLES}")


def parse_all(texts: Sequence[str | Move]) -> list[Move]:
    """Read changes; what is one already stays."""
    return [parse(text) if isinstance(text, str) else text for text in texts]
