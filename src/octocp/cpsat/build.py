"""The model under construction: its variables, what they mean, and the value each takes in a known plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ortools.sat.python import cp_model

from octocp.problem import F, Problem
from octocp.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Iterable

Linear = Any  # an int, a variable or a linear expression of CP-SAT
ValueOf = Callable[..., int]


class KnownPlan:
    """A schedule seen through the model's stage slots; slots beyond its last stage are inactive.

    An inactive slot has no layers and no device; its ops take no time, at the moment when the last
    stage's F ends, so that the chain F -> B passes through it.
    """

    def __init__(self, schedule: Schedule, slots: int) -> None:
        self.schedule, self.slots = schedule, slots
        self.problem = schedule.problem
        self.stages = schedule.layout.stages
        extra = slots - self.stages
        self.cut = [*schedule.layout.bounds, *([self.problem.n_layers] * extra)]
        self.device: list[int | None] = [*schedule.layout.placement, *([None] * extra)]
        self._duration = schedule.layout.durations(self.problem)

    def cut_at(self, slot: int) -> int:
        """First layer of the slot."""
        return self.cut[slot]

    def at_or_after(self, slot: int, layer: int) -> bool:
        """Whether the layer lies in the slot's stage or a later one."""
        return self.cut[slot] <= layer

    def inside(self, slot: int, layer: int) -> bool:
        """Whether the layer lies in the slot's stage."""
        return self.cut[slot] <= layer < self.cut[slot + 1]

    def layer_on(self, layer: int, device: int) -> bool:
        """Whether the layer lies on the device."""
        return self.schedule.layout.device_of_layer(layer) == device

    def link(self, slot: int) -> int:
        """Class of the link into the slot's stage; 0 for an inactive one."""
        before, here = self.device[slot - 1], self.device[slot]
        return 0 if before is None or here is None else self.problem.link_class[before][here]

    def within(self, slot: int, link: int) -> bool:
        """Whether the link into the slot's stage is of the class or a nearer one."""
        return self.link(slot) <= link

    def transfer(self, slot: int) -> int:
        """Ticks that entering the slot's stage takes."""
        return self.problem.delay_ticks[self.link(slot)][0][self.cut[slot]] if self.active(slot) else 0

    def static_on(self, slot: int, device: int) -> int:
        """Static size of the slot's stage if it lies on the device, else 0; memory units."""
        prefix = self.problem.prefix_static
        return prefix[self.cut[slot + 1]] - prefix[self.cut[slot]] if self.on(slot, device) else 0

    def capacity_left(self, device: int) -> int:
        """Limit of the device less what its stages hold for good; memory units."""
        return (self.problem.capacity[device] or 0) - sum(self.static_on(slot, device) for slot in range(self.stages))

    def share(self, kind: int, slot: int, device: int) -> int:
        """Duration of the slot's op if it lies on the device, else 0; ticks."""
        return self.duration(kind, slot) if self.on(slot, device) else 0

    def stay(self, first: int, last: int, slot: int, microbatch: int) -> int:
        """Ticks from the start of F, or the end of B, to the end of a later op."""
        begin = self.start(F, slot, microbatch) if first == F else self.end(first, slot, microbatch)
        return self.end(last, slot, microbatch) - begin

    def value(self) -> int:
        """Objective."""
        return self.schedule.value

    def first_start(self, device: int) -> int:
        """First start on the device."""
        return int(self.schedule.start[F, self.stages_on(device)].min())

    def last_end(self, device: int) -> int:
        """Last end on the device."""
        return int(self.schedule.end[:, self.stages_on(device)].max())

    def active(self, slot: int) -> bool:
        """Whether the slot is a stage."""
        return slot < self.stages

    def duration(self, kind: int, slot: int) -> int:
        """Ticks of an op (microbatches are alike here)."""
        return int(self._duration[kind, slot, 0]) if self.active(slot) else 0

    def start(self, kind: int, slot: int, microbatch: int) -> int:
        """Start of an op."""
        if self.active(slot):
            return int(self.schedule.start[kind, slot, microbatch])
        return int(self.schedule.end[F, self.stages - 1, microbatch])

    def end(self, kind: int, slot: int, microbatch: int) -> int:
        """End of an op."""
        return self.start(kind, slot, microbatch) + self.duration(kind, slot)

    def on(self, slot: int, device: int) -> bool:
        """Whether the slot's stage lies on the device."""
        return self.device[slot] == device

    def stages_on(self, device: int) -> list[int]:
        """Slots on a device."""
        return [slot for slot in range(self.stages) if self.device[slot] == device]

    def used(self, slot: int, device: int) -> bool:
        """Whether the device holds a stage up to and including the slot."""
        return any(self.on(other, device) for other in range(slot + 1))


@dataclass
class Build:
    """A CP-SAT model being built for one problem.

    Attributes
    ----------
    slots : int
        Stage slots: the largest number of stages the model admits.
    horizon : int
        No op of some optimal plan ends later; ticks.
    lower, upper : int
        Proven and known range of the objective.
    values : dict
        For each variable, by index, its value in a known plan: what makes hints complete.
    """

    problem: Problem
    slots: int
    least_stages: int
    horizon: int
    lower: int
    upper: int
    model: cp_model.CpModel = field(default_factory=cp_model.CpModel)
    values: dict[int, tuple[ValueOf, tuple[int, ...]]] = field(default_factory=dict)

    # Filled by the families, in the order of `FAMILIES`.
    active: list[Linear] = field(default_factory=list)
    layer_at_or_after: list[list[Linear]] = field(default_factory=list)
    cut: list[Linear] = field(default_factory=list)
    duration: list[list[Linear]] = field(default_factory=list)
    on: list[list[Linear]] = field(default_factory=list)
    used: list[list[Linear]] = field(default_factory=list)
    start: list[list[list[Linear]]] = field(default_factory=list)
    end: list[list[list[Linear]]] = field(default_factory=list)
    transfer: list[Linear] = field(default_factory=list)
    load: dict[tuple[int, int, int], Linear] = field(default_factory=dict)
    objective: Linear = 0

    # ---- variables ---------------------------------------------------------------------------

    def integer(self, low: int, high: int, name: str, value_of: ValueOf, *key: int) -> Linear:
        """Return a variable, or the constant where only one value is possible.

        In a known plan it takes the value ``value_of(plan, *key)``.
        """
        if low == high:
            return low
        variable = self.model.new_int_var(low, high, name)
        self.values[variable.index] = (value_of, key)
        return variable

    def literal(self, name: str, value_of: ValueOf, *key: int) -> Linear:
        """Return a Boolean variable; in a known plan it is ``value_of(plan, *key)``."""
        variable = self.model.new_bool_var(name)
        self.values[variable.index] = (value_of, key)
        return variable

    # ---- what the families ask -----------------------------------------------------------------

    @property
    def microbatches(self) -> range:
        """Microbatch indices."""
        return range(self.problem.n_microbatches)

    @property
    def devices(self) -> range:
        """Device indices."""
        return range(self.problem.n_devices)

    @property
    def stages(self) -> range:
        """Slot indices."""
        return range(self.slots)

    @cached_property
    def fixed_cuts(self) -> tuple[int, ...] | None:
        """Stage boundaries when the partition leaves no choice."""
        bounds = self.problem.fixed_bounds
        if bounds is None and self.slots == self.least_stages == len(self.problem.units):
            return (*(begin for begin, _ in self.problem.units), self.problem.n_layers)
        return bounds

    @cached_property
    def alike(self) -> bool:
        """Whether all layers are alike in everything, so that a stage's size alone decides its costs."""
        problem = self.problem
        rows = (*problem.layer_ticks, problem.static, problem.activation[0], problem.weight_activation[0])
        links = (by_class[0][1:-1] for by_class in problem.delay_ticks)
        return all(problem.cuttable) and not problem.colocate and all(len(set(row)) <= 1 for row in (*rows, *links))

    def over_stage(self, per_layer: Iterable[int], stage: int) -> Linear:
        """Return the sum of a per-layer quantity over a stage, linear in the cuts."""
        return self.before(per_layer, stage + 1) - self.before(per_layer, stage)

    def before(self, per_layer: Iterable[int], stage: int) -> Linear:
        """Return the sum of a per-layer quantity over the layers before a stage."""
        layers = list(per_layer)
        if self.fixed_cuts is not None:
            return sum(layers[: self.fixed_cuts[stage]])
        if self.alike:
            return layers[0] * self.cut[stage]
        return total((cost, 1 - self.layer_at_or_after[stage][layer]) for layer, cost in enumerate(layers))

    def hint(self, schedule: Schedule) -> None:
        """Hint every variable from a known plan."""
        self.model.clear_hints()  # type: ignore[no-untyped-call]
        plan = KnownPlan(schedule, self.slots)
        for index, (value_of, key) in self.values.items():
            self.model.add_hint(self.model.get_int_var_from_proto_index(index), int(value_of(plan, *key)))


def total(terms: Iterable[tuple[int, Linear]]) -> Linear:
    """Return sum(coefficient x literal), folding constants."""
    constant = 0
    variables: list[Linear] = []
    coefficients: list[int] = []
    for coefficient, literal in terms:
        if isinstance(literal, int):
            constant += coefficient * literal
        elif coefficient:
            variables.append(literal)
            coefficients.append(coefficient)
    if not variables:
        return constant
    return cp_model.LinearExpr.weighted_sum(variables, coefficients) + constant


def limits(expression: Linear) -> tuple[int, int]:
    """Return the least and the largest value of a constant or a variable."""
    if isinstance(expression, int):
        return expression, expression
    domain = list(expression.proto.domain)
    return domain[0], domain[-1]
