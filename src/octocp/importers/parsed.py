"""What every importer returns, and what several of them need."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from octocp.errors import InputError
from octocp.problem import B, F, Problem, W
from octocp.runtimes.layers import Layers, layers_of
from octocp.schedule import Layout, Op, Orders
from octocp.schema import Instance
from octocp.timing import Fused


@dataclass(frozen=True)
class Parsed:
    """A schedule as it was read, not timed yet.

    Attributes
    ----------
    layout : Layout
        Partition and placement.
    orders : Orders
        Per device.
    fused : bool or set of (stage, microbatch)
        Backwards that are one op: their gradient is handed on when W ends.
    notes : tuple of str
        What was assumed or left out, one line each.
    name : str
        What the file calls itself, or "".
    """

    layout: Layout
    orders: Orders
    fused: Fused
    notes: tuple[str, ...] = ()
    name: str = ""


def whole_backward(problem: Problem, stage: int, microbatch: int) -> list[Op]:
    """Return a backward in one piece: B, with its W right after it where the instance splits them."""
    made = [Op(B, stage, microbatch)]
    return [*made, Op(W, stage, microbatch)] if problem.split else made


def op_of(problem: Problem, kind: str, stage: int, microbatch: int) -> list[Op]:
    """Return the ops that a fused step (F, or B for a whole backward) stands for."""
    return [Op(F, stage, microbatch)] if kind == "F" else whole_backward(problem, stage, microbatch)


def layers_for(instance: Instance | None) -> Layers | None:
    """Return the roles of an instance's layers, where there is an instance."""
    return None if instance is None else layers_of(instance.model)


def bounds_of(partition: Iterable[int]) -> tuple[int, ...]:
    """Return the boundaries of stages with so many layers."""
    return tuple(accumulate(partition, initial=0))


def check_layout(problem: Problem, layout: Layout, place: str) -> None:
    """Refuse a layout that the instance does not allow.

    Raises
    ------
    InputError
        It breaks one of the instance's rules.
    """
    broken = layout.violation(problem)
    if broken is not None:
        raise InputError(f"does not fit the instance: {broken}", place=place)
