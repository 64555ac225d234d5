"""``octocp.plan/1``: what was decided, complete enough to check on its own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from octocp.schema.base import MAX_DEVICES, MAX_LAYERS, MAX_MICROBATCHES, Name, Strict
from octocp.schema.instance import Instance

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Ticks = Annotated[int, Field(ge=0, le=2**62)]


class PlanOp(Strict):
    """One op of the timeline; `start` and `end` in ticks."""

    kind: Literal["F", "B", "W"]
    stage: Annotated[int, Field(ge=0, lt=MAX_LAYERS)]
    microbatch: Annotated[int, Field(ge=0, lt=MAX_MICROBATCHES)]
    device: Annotated[int, Field(ge=0, lt=MAX_DEVICES)]
    start: Ticks
    end: Ticks


class TracePoint(Strict):
    """One step of the search: at `seconds`, the best value and bound known, and the phase that found it."""

    seconds: Seconds
    incumbent: Ticks | None = None
    bound: Ticks
    phase: str


class SolveInfo(Strict):
    """How the plan came about."""

    seconds: Seconds = 0.0
    seed: Annotated[int, Field(ge=0, le=2**63)] = 0
    workers: Annotated[int, Field(ge=0, le=2**31)] = 1
    ortools: str = ""
    octocp: str = ""
    bound_name: str = ""
    bound_scope: str = ""
    found_by: str = ""
    trace: list[TracePoint] = Field(default_factory=list)


class Plan(Strict):
    """A plan with the resolved instance it solves.

    Attributes
    ----------
    partition : list of int
        Layers per stage.
    placement : list of int
        Device of each stage.
    makespan, span, lower_bound : int
        Ticks; `lower_bound` is of the objective and valid for every plan of the instance.
    peak_memory_gb : list of float
        Per device, GB.
    """

    format: Literal["octocp.plan/1"]
    instance: Instance
    method: Name
    status: Literal["optimal", "feasible"]
    tick_us: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    partition: Annotated[list[Annotated[int, Field(ge=1, le=MAX_LAYERS)]], Field(min_length=1, max_length=MAX_LAYERS)]
    placement: Annotated[list[Annotated[int, Field(ge=0, lt=MAX_DEVICES)]], Field(min_length=1, max_length=MAX_LAYERS)]
    recompute: list[bool]
    objective: Literal["makespan", "span"]
    makespan: Ticks
    span: Ticks
    lower_bound: Ticks
    peak_memory_gb: list[Annotated[float, Field(ge=0, allow_inf_nan=False)]]
    ops: list[PlanOp]
    solve: SolveInfo = SolveInfo()

    @property
    def value(self) -> int:
        """The objective's value in ticks."""
        return self.makespan if self.objective == "makespan" else self.span

    @property
    def gap(self) -> float:
        """Certified distance from optimal: (value - lower bound) / value."""
        return (self.value - self.lower_bound) / self.value if self.value else 0.0
