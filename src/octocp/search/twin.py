"""The readable twin of the compiled evaluator: the same decisions, from the rules instead of from counters.

It derives everything from one record, the ops started so far, and so is slow and easy to check. Tests hold the
compiled evaluator to it, op for op.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octocp.problem import B, F, Problem, W
from octocp.schedule import Layout, Op, Schedule
from octocp.search.evaluator import FITS, OLDEST_FITS

Numbers = Sequence[float]


class Dispatcher:
    """One run of the greedy list schedule.

    Parameters
    ----------
    priority : sequence [kind][stage]
        Larger runs first; then how many microbatches each stage may have in flight, 0 for as many as come.
    rules : sequence
        Patience of W for any op, patience of F for a B (both in shares of the op at hand), what each
        microbatch already started takes off the priority of F and of B, what alternation earns, and how F is admitted.
    """

    def __init__(self, problem: Problem, layout: Layout, priority: Sequence[Numbers], rules: Numbers) -> None:
        self.problem, self.layout = problem, layout
        self.priority, self.most_in_flight = priority[:3], priority[3]
        self.patience = {W: rules[0], F: rules[1]}
        self.ageing = {F: rules[2], B: rules[3], W: 0.0}
        self.alternation, self.admission = rules[4], rules[5]
        self.last: dict[int, int] = dict.fromkeys(range(problem.n_devices), W)  # F or B that ran last
        self.started: dict[Op, int] = {}
        self.wakes = [0] * problem.n_devices  # when each device is free, or has chosen to look again

    # ---- what the record says ------------------------------------------------------------------

    def ticks(self, op: Op) -> int:
        """Return an op's duration."""
        return self.problem.duration(op.kind, *self.layout.bounds[op.stage : op.stage + 2])

    def count(self, kind: int, stage: int) -> int:
        """Return how many microbatches of a (stage, kind) have started."""
        return sum(1 for op in self.started if (op.kind, op.stage) == (kind, stage))

    def transfer(self, stage: int) -> int:
        """Return the ticks between a stage and the one before it."""
        before, here = self.layout.placement[stage - 1 : stage + 1]
        return self.problem.delay(self.layout.bounds[stage], before, here)

    def needs(self, op: Op) -> list[tuple[Op, int]]:
        """Return what must have ended before an op, and the ticks on the way."""
        kind, stage, microbatch = op
        if kind == W:
            return [(Op(B, stage, microbatch), 0)]
        if kind == F:
            return [(Op(F, stage - 1, microbatch), self.transfer(stage))] if stage else []
        if stage == self.layout.stages - 1:
            return [(Op(F, stage, microbatch), 0)]
        return [(Op(F, stage, microbatch), 0), (Op(B, stage + 1, microbatch), self.transfer(stage + 1))]

    def arrival(self, op: Op) -> int | None:
        """Return when an op may start, as far as what it waits for has started; None where that is unknown."""
        times = [0]
        for needed, delay in self.needs(op):
            if needed not in self.started:
                return None
            times.append(self.started[needed] + self.ticks(needed) + delay)
        return max(times)

    def arrivals(self, device: int) -> list[tuple[Op, int]]:
        """Return each next op of a device's chains whose arrival is known, lower stages and F, B, W first."""
        found = []
        for stage in self.layout.stages_on(device):
            for kind in self.problem.kinds:
                op = Op(kind, stage, self.count(kind, stage))
                if op.microbatch < self.problem.n_microbatches:
                    when = self.arrival(op)
                    if when is not None:
                        found.append((op, when))
        return found

    # ---- memory --------------------------------------------------------------------------------

    def held(self, device: int) -> int:
        """Return the memory units that a device holds after the ops started so far, static sizes included."""
        total = 0
        for stage in self.layout.stages_on(device):
            static, activation, weight = self.problem.stage_memory(*self.layout.bounds[stage : stage + 2])
            forwards, backwards, weights = (self.count(kind, stage) for kind in (F, B, W))
            total += static + activation * (forwards - backwards) + weight * (backwards - weights)
        return total

    def admits(self, op: Op) -> bool:
        """Whether an op fits: only F takes memory, and only F is held back while too many are in flight.

        It must leave what the device's oldest microbatch still needs; and an F of a later one than the next, room
        for the next once the oldest is through, beside the younger ones begun by then. The rule for admission leaves
        out the second condition, or both.
        """
        if op.kind != F:
            return True
        in_flight = self.count(F, op.stage) - self.count(B, op.stage)
        if 0 < self.most_in_flight[op.stage] <= in_flight:
            return False
        device = self.layout.placement[op.stage]
        cap = self.problem.capacity[device]
        if cap is None:
            return True
        if self.admission == FITS:
            return self.held(device) + self.activation(op.stage) <= cap
        stages = self.layout.stages_on(device)
        oldest = self.count(B, stages[0])
        reserved = {Op(F, stage, oldest) for stage in stages} - set(self.started)
        sizes = [self.activation(other.stage) for other in reserved | {op}]
        if self.held(device) + sum(sizes) > cap:
            return False
        if op.microbatch <= oldest + 1 or self.admission == OLDEST_FITS:
            return True
        later = 0
        for stage in stages:
            later += self.problem.stage_memory(*self.layout.bounds[stage : stage + 2])[0]
            begun = self.count(F, stage) + (stage == op.stage)
            younger = max(0, begun - max(oldest + 2, self.count(B, stage)))
            later += self.activation(stage) * (1 + younger)
        return later <= cap

    def activation(self, stage: int) -> int:
        """Return what a microbatch of a stage holds between F and B."""
        return self.problem.stage_memory(*self.layout.bounds[stage : stage + 2])[1]

    # ---- decisions -----------------------------------------------------------------------------

    def looks_next(self, device: int) -> int | None:
        """Return when a device next has something to decide, or None while nothing it may run is known."""
        known = [when for op, when in self.arrivals(device) if self.admits(op)]
        return max(self.wakes[device], min(known)) if known else None

    def choice(self, device: int, now: int) -> Op:
        """Return the op of the highest priority, aged, among those that have arrived and fit; the first of equals."""

        def rank(op: Op) -> float:
            aged = self.priority[op.kind][op.stage] - self.ageing[op.kind] * op.microbatch
            return aged + self.alternation if {op.kind, self.last[device]} == {F, B} else aged

        return max((op for op, when in self.arrivals(device) if when <= now and self.admits(op)), key=rank)

    def better_arrival(self, device: int, chosen: Op, now: int) -> int | None:
        """Return when an op that outranks the chosen one arrives within the patience; the first such moment.

        B waits for nothing, F for a B only; nothing waits for a W. Here ranks are not aged.
        """
        if chosen.kind == B:
            return None
        limit = now + int(self.ticks(chosen) * self.patience[chosen.kind])
        worth = {F: (B,), W: (F, B)}[chosen.kind]
        rank = self.priority[chosen.kind][chosen.stage]
        moments = [
            when
            for op, when in self.arrivals(device)
            if op.kind in worth and now < when < limit and self.priority[op.kind][op.stage] > rank and self.admits(op)
        ]
        return min(moments, default=None)

    def run(self) -> bool:
        """Start every op; False where the devices come to rest before that."""
        problem = self.problem
        total = len(problem.kinds) * self.layout.stages * problem.n_microbatches
        while len(self.started) < total:
            looks = [(when, d) for d in range(problem.n_devices) if (when := self.looks_next(d)) is not None]
            if not looks:
                return False
            now, device = min(looks)
            op = self.choice(device, now)
            later = self.better_arrival(device, op, now)
            if later is not None:
                self.wakes[device] = later
                continue
            self.started[op] = now
            if op.kind != W:
                self.last[device] = op.kind
            self.wakes[device] = now + self.ticks(op)
        return True


def dispatch(problem: Problem, layout: Layout, priority: Sequence[Numbers], rules: Numbers) -> Schedule | None:
    """Return what `LocalSearch.schedule` returns for the same state.

    None where the layout breaks a stage rule or cannot hold one microbatch. For the span, every op then starts
    as late as its successors and the end of its device allow.
    """
    if layout.violation(problem) is not None:
        return None
    run = Dispatcher(problem, layout, priority, rules)
    for device, cap in enumerate(problem.capacity):
        one = sum(run.activation(stage) for stage in layout.stages_on(device))
        if cap is not None and run.held(device) + one > cap:
            return None
    if not run.run():
        return None
    starts = _latest(run) if problem.objective == "span" else run.started
    start = np.zeros((len(problem.kinds), layout.stages, problem.n_microbatches), dtype=np.int64)
    for op, when in starts.items():
        start[op] = when
    return Schedule(problem, layout, start)


def _latest(run: Dispatcher) -> dict[Op, int]:
    """Return the latest starts that keep every device's order and its last end."""
    late: dict[Op, int] = {}
    allowed: dict[Op, list[int]] = {}
    next_start: dict[int, int] = {}
    for op in reversed(run.started):
        device, ticks = run.layout.placement[op.stage], run.ticks(op)
        last_end = next_start.get(device, run.started[op] + ticks)
        late[op] = next_start[device] = min(last_end, *allowed.get(op, [last_end])) - ticks
        for needed, delay in run.needs(op):
            allowed.setdefault(needed, []).append(late[op] - delay)
    return late


__all__ = ["Dispatcher", "dispatch"]
