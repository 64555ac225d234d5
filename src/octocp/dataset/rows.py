"""A row of a data set: an instance, what is proven of it, a plan, and what the known schedules make of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isinf
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator

from octocp.problem import Problem
from octocp.schema import Instance, Plan, PlanOp, SolveInfo
from octocp.schema.base import Name, Strict
from octocp.schema.plan import Seconds, Ticks

FORMAT: Final = "octocp.dataset-row/1"
Status = Literal["optimal", "feasible", "infeasible", "unknown"]
PROVEN = ("optimal", "infeasible")
Count = Annotated[int, Field(ge=0, le=2**62)]
Finite = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]


class HeuristicValue(Strict):
    """What a known schedule reaches on the instance.

    Attributes
    ----------
    status : str
        "feasible", "infeasible" (over a memory limit) or "not-applicable".
    value : int or None
        Objective of its best partition rule, ticks.
    rule : str
        That rule.
    """

    method: Name
    status: Literal["feasible", "infeasible", "not-applicable"]
    value: Ticks | None = None
    rule: str = ""


class DoubleCheck(Strict):
    """The second proof: `status`, `value` and `lower_bound` (ticks) as a solve with other settings has them."""

    status: Status
    value: Ticks | None = None
    lower_bound: Ticks | None = None
    bound_name: str = ""
    settings: str
    seconds: Seconds

    def confirms(self, status: str) -> bool:
        """Whether it proves again what the row says, and not only agrees."""
        return self.status == status and status in PROVEN


class Versions(Strict):
    """What made the row."""

    octocp: str
    ortools: str
    numpy: str
    numba: str
    python: str
    generator: Count


class Row(Strict):
    """One instance and what is known of it. Times are ticks of `tick_us` microseconds, sizes GB.

    Attributes
    ----------
    hash : str
        Of the instance's canonical form: equal for equal problems.
    status : str
        "optimal", "feasible" (a plan, no proof), "infeasible" (proven: no plan exists; `reason` says why) or "unknown".
    lower_bound : int or None
        Valid for every plan of the instance; None where infeasible.
    orders : list of list of str
        Per device, its ops in the order of execution: ``B2.0`` is the backward of stage 2, microbatch 0.
    starts, ends : list of list of int
        Of those ops.
    """

    format: Literal["octocp.dataset-row/1"] = FORMAT
    id: Name
    hash: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    family: Name
    features: list[str]
    instance: Instance
    layers: Count
    devices: Count
    microbatches: Count
    objective: Literal["makespan", "span"]
    tick_us: Finite
    status: Status
    reason: str = ""
    value: Ticks | None = None
    makespan: Ticks | None = None
    span: Ticks | None = None
    lower_bound: Ticks | None = None
    bound_name: str = ""
    gap: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    partition: list[Count] = Field(default_factory=list)
    placement: list[Count] = Field(default_factory=list)
    orders: list[list[str]] = Field(default_factory=list)
    starts: list[list[Ticks]] = Field(default_factory=list)
    ends: list[list[Ticks]] = Field(default_factory=list)
    peak_memory_gb: list[Finite] = Field(default_factory=list)
    method: str = "cp-sat"
    found_by: str = ""
    seed: Annotated[int, Field(ge=0, lt=2**31 - 1)]  # as in a spec; CP-SAT takes no more
    workers: Count
    time_limit: Finite
    seconds: Seconds
    versions: Versions
    heuristics: list[HeuristicValue] = Field(default_factory=list)
    double_check: DoubleCheck | None = None

    @field_validator("instance", mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        """Take the instance as the text that a Parquet file has."""
        return strict_json(value) if isinstance(value, str) else value

    @property
    def proven(self) -> bool:
        """Whether nothing is left open: a plan proven optimal, or that there is none."""
        return self.status in PROVEN

    def problem(self) -> Problem:
        """Return the instance in integers."""
        from octocp.costs import build_problem

        return build_problem(self.instance)

    def plan(self) -> Plan | None:
        """Return the plan as `octocp solve` writes it, or None where the row has none."""
        if self.value is None or self.makespan is None or self.span is None or self.lower_bound is None:
            return None
        info = SolveInfo(
            seconds=self.seconds,
            seed=self.seed,
            workers=self.workers,
            ortools=self.versions.ortools,
            octocp=self.versions.octocp,
            bound_name=self.bound_name,
            bound_scope="whole instance",
            found_by=self.found_by,
        )
        return Plan(
            format="octocp.plan/1",
            instance=self.instance,
            method=self.method,
            status="optimal" if self.status == "optimal" else "feasible",
            tick_us=self.tick_us,
            partition=self.partition,
            placement=self.placement,
            recompute=[False] * len(self.partition),
            objective=self.objective,
            makespan=self.makespan,
            span=self.span,
            lower_bound=self.lower_bound,
            peak_memory_gb=self.peak_memory_gb,
            ops=[
                _op(name, device, start, end)
                for device, (order, starts, ends) in enumerate(zip(self.orders, self.starts, self.ends, strict=True))
                for name, start, end in zip(order, starts, ends, strict=True)
            ],
            solve=info,
        )

    def data(self) -> dict[str, Any]:
        """Return the row as plain data; in the instance, what only repeats a default is left out."""
        found: dict[str, Any] = self.model_dump(mode="json", exclude={"instance"})
        instance = self.instance.model_dump(mode="json", exclude_defaults=True)
        return {key: found[key] if key != "instance" else instance for key in type(self).model_fields}


def strict_json(text: str | bytes) -> Any:
    """Read JSON without what Python's reader takes beyond it: NaN, numbers that no float holds, halves of pairs.

    Raises
    ------
    BeyondJsonError
        It has what only Python takes for JSON.
    ValueError, RecursionError
        It is not JSON, or nested too deep.
    """
    # Python's reader lets halves of surrogate pairs pass in bytes; its decoder does not.
    text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
    data = json.loads(text, parse_constant=_no_number, parse_float=_finite)
    if "\\ud" in text or "\\uD" in text:
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise BeyondJsonError("has text that is no Unicode") from None
    return data


class BeyondJsonError(ValueError):
    """Something that Python reads as JSON, and that no other reader does or no file can be written with."""


def _no_number(constant: str) -> None:
    raise BeyondJsonError(f"has {constant}, which is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if isinf(number):
        raise BeyondJsonError(f"has {digits[:20]}, which is beyond all floats")
    return number


class PlainRow(Row):
    """A row whose instance is any mapping: all that counting, sampling and writing need, and quick to validate."""

    instance: dict[str, Any]  # type: ignore[assignment]


def _op(name: str, device: int, start: int, end: int) -> PlanOp:
    stage, _, microbatch = name[1:].partition(".")
    return PlanOp(
        kind=name[0],  # type: ignore[arg-type]
        stage=int(stage),
        microbatch=int(microbatch),
        device=device,
        start=start,
        end=end,
    )


def plan_columns(plan: Plan, devices: int) -> dict[str, Any]:
    """Return what a row keeps of a plan."""
    by_device: list[list[PlanOp]] = [[] for _ in range(devices)]
    for op in plan.ops:
        by_device[op.device].append(op)
    return {
        "value": plan.value,
        "makespan": plan.makespan,
        "span": plan.span,
        "lower_bound": plan.lower_bound,
        "bound_name": plan.solve.bound_name,
        "gap": plan.gap,
        "partition": plan.partition,
        "placement": plan.placement,
        "orders": [[f"{op.kind}{op.stage}.{op.microbatch}" for op in ops] for ops in by_device],
        "starts": [[op.start for op in ops] for ops in by_device],
        "ends": [[op.end for op in ops] for ops in by_device],
        "peak_memory_gb": plan.peak_memory_gb,
        "found_by": plan.solve.found_by,
    }


def distance(value: int | None, optimum: int | None) -> float | None:
    """Return how far a value is above the optimum, as a share of it; None where either is not known."""
    if value is None or optimum is None:
        return None
    return (value - optimum) / optimum if optimum else 0.0


def features(instance: Instance, problem: Problem) -> list[str]:
    """Name what an instance has beyond layers and devices, in a fixed order."""
    limits = set(problem.limit_gb)
    kinds = [instance.model.flattened(instance.profile).kinds[kind] for kind in instance.model.layer_kinds()]
    classes = {kind for row in problem.link_class for kind in row} - {0}
    slow = [kind for kind in classes if any(map(any, problem.delay_ticks[kind]))]
    found = {
        "split backward": problem.split,
        "fused backward": not problem.split,
        "span": problem.objective == "span",
        "several stages per device": problem.max_stages > problem.n_devices,
        "placement free": problem.family == "free" and problem.max_stages > problem.n_devices,
        "placement linear": problem.family == "linear",
        "placement interleaved": problem.family == "interleaved",
        "placement wave": problem.family == "wave",
        "placement given": problem.family == "fixed",
        "partition given": problem.partition is not None,
        "stage count given": problem.partition is None and instance.stages.count is not None,
        "memory limit": problem.has_memory_limit,
        "unequal memory limits": len(limits) > 1,
        "some devices without limit": problem.has_memory_limit and None in limits,
        "static memory": problem.has_memory_limit and any(problem.static),
        "weight activation": problem.has_memory_limit and any(map(any, problem.weight_activation)),
        "link delay": bool(slow),
        "delay by size": bool(slow) and _by_size(problem, slow),
        "delay by node": len(classes) > 1,
        "op overhead": problem.overhead > 0,
        "keep together": len(problem.units) < problem.n_layers,
        "colocate": bool(problem.colocate),
        "one kind of layer": len(set(instance.model.layer_kinds())) == 1,
        "ops of length zero": not problem.overhead and any(0 in problem.layer_ticks[kind] for kind in problem.kinds),
        "more devices than microbatches": problem.n_devices > problem.n_microbatches,
        "published costs": bool(kinds) and instance.model.provenance.kind == "published",
    }
    return [name for name, has in found.items() if has]


def _by_size(problem: Problem, classes: Sequence[int]) -> bool:
    return any(len({*problem.delay_ticks[kind][0][1:-1]}) > 1 for kind in classes)
