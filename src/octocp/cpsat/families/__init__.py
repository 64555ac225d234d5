"""Every constraint family of the joint model, in one list, in the order in which they are built.

``definition`` families make the variables that the others use; none can be left out. Dropping a ``core`` family
gives a relaxation, whose bounds stay valid. ``redundant`` and ``symmetry`` families change no optimum: each may be
switched off for ablation and cross-checks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from octocp.cpsat.build import Build
from octocp.cpsat.families import bounds, memory, objective, ordering, partition, placement, symmetry


@dataclass(frozen=True)
class Family:
    """One constraint family: a function that adds it to a model."""

    name: str
    role: Literal["definition", "core", "redundant", "symmetry"]
    add: Callable[[Build], None]


FAMILIES: tuple[Family, ...] = (
    Family("cuts", "definition", partition.cuts),
    Family("durations", "definition", partition.durations),
    Family("presence", "definition", placement.presence),
    Family("colocate", "core", placement.colocate),
    Family("transfers", "core", placement.transfers),
    Family("ops", "definition", ordering.ops),
    Family("precedence", "core", ordering.precedence),
    Family("no-overlap", "core", ordering.no_overlap),
    Family("memory", "core", memory.memory),
    Family("objective", "definition", objective.objective),
    Family("fifo", "symmetry", symmetry.fifo),
    Family("origin", "symmetry", symmetry.origin),
    Family("device-symmetry", "symmetry", symmetry.first_use),
    Family("in-flight", "redundant", memory.in_flight),
    Family("loads", "redundant", bounds.loads),
    Family("head-load-tail", "redundant", bounds.head_load_tail),
    Family("first-window", "redundant", bounds.first_window),
    Family("averaged-heads", "redundant", bounds.averaged_heads),
    Family("stage-alone", "redundant", bounds.stage_alone),
    Family("analytic", "redundant", bounds.analytic),
)

__all__ = ["FAMILIES", "Family"]
