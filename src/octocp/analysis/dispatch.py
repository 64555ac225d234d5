"""An order from scratch for a given layout: list scheduling under a few rules, the best of them taken.

A device that is free runs the best of its ops that have arrived and fit in memory. A rule says when it rather
waits for a better one, and how many microbatches may be under way. Deterministic, so that a change that asks
for a new order means the same order every time.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from octocp.analysis.graph import by_device, change_of, inputs
from octocp.problem import B, F, Problem, W
from octocp.schedule import Layout, Op, Schedule
from octocp.timing import DeadlockError, time_orders


@dataclass(frozen=True)
class Rule:
    """How a device chooses.

    Attributes
    ----------
    for_weights, for_forward : float
        A W, or an F, waits for a better op that arrives within this share of its own length.
    ahead : int or None
        A stage begins at most this many microbatches more than there are stages from it to the last; None: any.
    alternate : bool
        An F after a B and a B after an F, where both could run; otherwise a B goes first.
    """

    for_weights: float = 0.0
    for_forward: float = 0.0
    ahead: int | None = None
    alternate: bool = False


RULES = (
    Rule(),
    Rule(for_weights=0.7),
    Rule(for_weights=0.7, ahead=0),
    Rule(for_weights=1.0, for_forward=0.5, ahead=1),
    Rule(for_weights=0.7, alternate=True),
)


class _Run:
    """One pass of the list scheduler; `microbatches` is the order in which every stage takes them."""

    def __init__(self, problem: Problem, layout: Layout, microbatches: Sequence[int], rule: Rule, fused: bool) -> None:
        self.problem, self.layout, self.rule = problem, layout, rule
        self.microbatches, self.fused = microbatches, fused and problem.split
        self.ticks = layout.durations(problem).tolist()
        self.stages = [layout.stages_on(device) for device in range(problem.n_devices)]
        self.kinds = (F, B) if self.fused else problem.kinds
        self.next = [[0] * layout.stages for _ in range(3)]
        self.ends: dict[Op, int] = {}
        self.free = [0] * problem.n_devices
        self.last = [W] * problem.n_devices
        self.held = [
            sum(problem.stage_memory(*layout.bounds[stage : stage + 2])[0] for stage in stages)
            for stages in self.stages
        ]
        self.sequence: list[Op] = []

    def length(self, op: Op) -> int:
        """Return the ticks for which a device is busy with an op; a fused B brings its W along."""
        ticks: int = self.ticks[op.kind][op.stage][op.microbatch]
        if self.fused and op.kind == B:
            ticks += self.ticks[W][op.stage][op.microbatch]
        return ticks

    def arrived(self, op: Op) -> int | None:
        """Return when everything that an op needs is there; None while that is not known."""
        latest = 0
        for link in inputs(self.problem, self.layout, op, fused=self.fused):
            end = self.ends.get(link.before)
            if end is None:
                return None
            latest = max(latest, end + link.delay)
        return latest

    def fits(self, op: Op, device: int) -> bool:
        """Whether an op leaves room for what the device's oldest microbatch still has to begin."""
        cap, stage = self.problem.capacity[device], op.stage
        if op.kind != F:
            return True
        under_way = self.next[F][stage] - self.next[B][stage]
        if self.rule.ahead is not None and under_way >= self.layout.stages - stage + self.rule.ahead:
            return False
        if cap is None:
            return True
        oldest = min(self.next[B][stage] for stage in self.stages[device])
        needed = change_of(self.problem, self.layout, op)
        for other in self.stages[device]:
            if self.next[F][other] <= oldest:
                first = Op(F, other, self.microbatches[oldest])
                needed += change_of(self.problem, self.layout, first) if first != op else 0
        return self.held[device] + needed <= cap

    def rank(self, op: Op, device: int) -> tuple[int, int]:
        """Return what makes an op better than others; larger goes first."""
        kind = {B: 2, F: 1, W: 0}[op.kind]
        if self.rule.alternate and {op.kind, self.last[device]} == {F, B}:
            kind = 3
        # An F near the end of the model and a B near its start have least left to wait for.
        return kind, op.stage if op.kind == F else -op.stage

    def choose(self, device: int, now: int) -> tuple[Op | None, int | None]:
        """Return the op to start now, or when to look again; (None, None) while nothing is known to come."""
        ready: list[Op] = []
        coming: list[tuple[int, Op]] = []
        for stage in self.stages[device]:
            for kind in self.kinds:
                place = self.next[kind][stage]
                if place == len(self.microbatches):
                    continue
                op = Op(kind, stage, self.microbatches[place])
                when = self.arrived(op)
                if when is not None and self.fits(op, device):
                    if when <= now:
                        ready.append(op)
                    else:
                        coming.append((when, op))
        if not ready:
            return None, min((when for when, _ in coming), default=None)
        best = max(ready, key=lambda op: self.rank(op, device))
        if best.kind != B:
            share = self.rule.for_weights if best.kind == W else self.rule.for_forward
            limit = now + int(share * self.length(best))
            worth = (F, B) if best.kind == W else (B,)
            better = [when for when, op in coming if op.kind in worth and when < limit]
            if better:
                return None, min(better)
        return best, None

    def start(self, op: Op, device: int, now: int) -> None:
        ops = [op, Op(W, op.stage, op.microbatch)] if self.fused and op.kind == B else [op]
        for one in ops:
            now += self.ticks[one.kind][one.stage][one.microbatch]
            self.ends[one] = now
            self.next[one.kind][one.stage] += 1
            self.held[device] += change_of(self.problem, self.layout, one)
            self.sequence.append(one)
        self.free[device] = now
        if op.kind != W:
            self.last[device] = op.kind

    def run(self) -> list[Op] | None:
        """Return all ops by start, or None where the devices come to rest before all have run."""
        looks = [(0, device) for device in range(self.problem.n_devices)]
        total = len(self.problem.kinds) * self.layout.stages * len(self.microbatches)
        while looks and len(self.sequence) < total:
            now, device = heapq.heappop(looks)
            if self.free[device] > now:
                continue
            op, later = self.choose(device, now)
            if op is None:
                if later is not None:
                    heapq.heappush(looks, (later, device))
                continue
            self.start(op, device, now)
            heapq.heappush(looks, (self.free[device], device))
            for stage in (op.stage - 1, op.stage + 1):
                if 0 <= stage < self.layout.stages:
                    waiting = self.layout.placement[stage]
                    if waiting != device:
                        heapq.heappush(looks, (max(now, self.free[waiting]), waiting))
        return self.sequence if len(self.sequence) == total else None


def dispatched(
    problem: Problem, layout: Layout, microbatches: Sequence[int], *, fused: bool
) -> tuple[list[Op], Schedule] | None:
    """Return the best order that the rules find, and its schedule.

    Parameters
    ----------
    layout : Layout
        A legal one.
    microbatches : sequence of int
        The order in which every stage takes the microbatches.
    fused : bool
        Whether each W runs right after its B, and the gradient is handed on when it ends.

    Returns
    -------
    (list of Op, Schedule) or None
        All ops in the order of their starts, and the timed schedule; None where no rule keeps within memory.
    """
    best: tuple[list[Op], Schedule] | None = None
    seen: set[tuple[Op, ...]] = set()
    for rule in RULES:
        sequence = _Run(problem, layout, microbatches, rule, fused).run()
        if sequence is None or tuple(sequence) in seen:
            continue
        seen.add(tuple(sequence))
        try:
            schedule = time_orders(problem, layout, by_device(layout, sequence, problem.n_devices), fused=fused)
        except DeadlockError:  # ops of length zero that coincide; another rule may do
            continue
        if schedule.memory_excess() is None and (best is None or schedule.value < best[1].value):
            best = sequence, schedule
    return best
