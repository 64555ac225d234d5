"""What stages, ops and transfers cost, recomputed from a plan's instance in exact arithmetic."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

from octocp.schema import Device, Link, LinkByNode, Plan


def exact(value: float) -> Fraction:
    """Return the number that was written: the shortest decimal that reads back as `value`."""
    return Fraction(Decimal(repr(value)))


def round_half_up(value: Fraction) -> int:
    """Round to the nearest whole number, halves up."""
    return math.floor(value + Fraction(1, 2))


class StageCosts:
    """Costs of one stage, for a microbatch of relative length 1 on a device of speed 1.

    Attributes
    ----------
    first, last : int
        The stage's layers, inclusive.
    forward, backward, weight : int
        Ticks; `backward` holds the weight gradient and the recomputed forward where it carries them.
    static, activation, weight_activation, input, output : Fraction
        GB; `input` and `output` are what crosses to this stage and to the next one.
    recomputes : bool
        Whether the stage keeps only its input between F and B.
    """

    def __init__(self, first: int, last: int, recomputes: bool) -> None:
        self.first, self.last, self.recomputes = first, last, recomputes
        self.forward = self.backward = self.weight = 0
        self.static = self.activation = self.weight_activation = self.input = self.output = Fraction(0)


class ExactCosts:
    """Costs of a plan's stages, ops and transfers.

    Parameters
    ----------
    plan : Plan
        Its partition must cut the model's layers exactly (`partition_fits`).
    """

    def __init__(self, plan: Plan) -> None:
        instance = plan.instance
        self.tick_us = exact(instance.tick_us)
        self.overhead = exact(instance.training.op_overhead_us) / self.tick_us
        self.lengths = [exact(length) for length in instance.lengths()]
        self.devices: list[Device] = instance.cluster.device_list()
        self.speeds = [exact(device.speed) for device in self.devices]
        self.link: Link | LinkByNode = instance.cluster.link
        self.stages = _stage_costs(plan, self.tick_us)
        self._durations: dict[tuple[str, int, Fraction, Fraction], int] = {}
        self._delays: dict[tuple[int, Fraction, bool], int] = {}

    def duration(self, kind: str, stage: int, microbatch: int, device: int) -> int:
        """Return an op's length in ticks: the stage's sum, scaled, plus the overhead, rounded up once."""
        length, speed = self.lengths[microbatch], self.speeds[device]
        key = (kind, stage, length, speed)
        if key not in self._durations:
            costs = self.stages[stage]
            work = {"F": costs.forward, "B": costs.backward, "W": costs.weight}[kind]
            self._durations[key] = math.ceil(work * length / speed + self.overhead)
        return self._durations[key]

    def delay(self, boundary: int, microbatch: int, source: int, target: int) -> int:
        """Return the ticks between two devices for what crosses the cut after stage `boundary`.

        The gradient that comes back has the size of the activation that went out, so both
        directions share one size.
        """
        if source == target:
            return 0
        length = self.lengths[microbatch]
        same_node = self.devices[source].node == self.devices[target].node
        key = (boundary, length, same_node)
        if key not in self._delays:
            link = self.link
            if isinstance(link, LinkByNode):
                link = link.intra_node if same_node else link.inter_node
            microseconds = exact(link.latency_us)
            if link.bandwidth_gb_s is not None:
                microseconds += self.stages[boundary].output * length / exact(link.bandwidth_gb_s) * 10**6
            self._delays[key] = math.ceil(microseconds / self.tick_us)
        return self._delays[key]


def partition_fits(plan: Plan) -> bool:
    """Tell whether the partition's stages are non-empty and cover the model's layers exactly."""
    return min(plan.partition) >= 1 and sum(plan.partition) == len(plan.instance.model.layer_kinds())


def _stage_costs(plan: Plan, tick_us: Fraction) -> list[StageCosts]:
    instance = plan.instance
    sequence = instance.model.layer_kinds()
    kinds = {kind: instance.model.costs(kind, instance.profile) for kind in dict.fromkeys(sequence)}

    def rounded(milliseconds: float | None) -> int:
        return round_half_up(exact(milliseconds or 0.0) * 1000 / tick_us)

    # Every layer is rounded on its own, before any sum: published integer timelines come out to the tick.
    timed = {
        kind: (rounded(costs.forward_ms), rounded(costs.backward_input_ms), rounded(costs.backward_weight_ms))
        for kind, costs in kinds.items()
    }
    sized = {
        kind: (exact(costs.static_gb), exact(costs.activation_gb), exact(costs.weight_activation_gb))
        for kind, costs in kinds.items()
    }
    stages: list[StageCosts] = []
    first = 0
    for index, size in enumerate(plan.partition):
        stage = StageCosts(first, first + size - 1, recomputes(plan, index))
        for kind in sequence[first : first + size]:
            forward, backward, weight = timed[kind]
            stage.forward += forward
            stage.backward += backward
            stage.weight += weight
            static, activation, weight_activation = sized[kind]
            stage.static += static
            stage.activation += activation
            stage.weight_activation += weight_activation
        if not instance.training.split_backward:
            stage.backward += stage.weight
            stage.weight = 0
        if stage.recomputes:
            stage.backward += stage.forward
        stage.input = stages[-1].output if stages else Fraction(0)
        stage.output = exact(kinds[sequence[stage.last]].output_mb) / 1000
        stages.append(stage)
        first += size
    return stages


def recomputes(plan: Plan, stage: int) -> bool:
    """Tell whether a stage recomputes: the instance says so, or leaves it to the plan."""
    rule = plan.instance.training.recompute
    if rule == "auto":
        return stage < len(plan.recompute) and plan.recompute[stage]
    return rule == "full"
