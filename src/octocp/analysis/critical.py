"""The critical path of a schedule: the chain of ops, each held by the one before it, that makes it last so long."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from octocp.analysis.graph import Cause, Link, change_of, inputs, levels, sequence_of
from octocp.problem import KIND_NAMES, B, F, Problem, W
from octocp.schedule import Layout, Op, Schedule

# A path with a wait that nothing demands is taken only where there is no other.
_COST_OF_LEAD = 1_000_000
# Stages of one device that a run names.
MOST_STAGES = 4


@dataclass(frozen=True)
class Step:
    """One op of the path; times in ticks.

    Attributes
    ----------
    cause : str
        What kept it from an earlier start: see `octocp.analysis.graph.Cause`.
    wait : int
        Ticks from the end of the step before to its start: a transfer, or a lead. For the first step: from 0 or, for
        the span, from the first start of the device that is in use longest.
    """

    op: Op
    device: int
    start: int
    end: int
    cause: Cause
    wait: int


@dataclass(frozen=True)
class Run:
    """Steps that read as one: a device busy without a pause, or one microbatch passing through stages.

    Attributes
    ----------
    what : str
        The ops in words.
    """

    steps: tuple[Step, ...]
    what: str

    @property
    def cause(self) -> Cause:
        """Why its first op starts no earlier."""
        return self.steps[0].cause

    @property
    def wait(self) -> int:
        """Ticks from the end of the run before to its start."""
        return self.steps[0].wait

    @property
    def start(self) -> int:
        """Start of its first op, ticks."""
        return self.steps[0].start

    @property
    def end(self) -> int:
        """End of its last op, ticks."""
        return self.steps[-1].end

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices in the order in which it passes them, neighbours told once."""
        found: list[int] = []
        for step in self.steps:
            if not found or found[-1] != step.device:
                found.append(step.device)
        return tuple(found)

    @property
    def transfer(self) -> int:
        """Ticks of transfers between its steps."""
        return sum(step.wait for step in self.steps[1:])


def critical_path(schedule: Schedule, *, fused: bool) -> list[Step]:
    """Return a critical path, first op first.

    For the makespan it ends with an op that ends last, and durations and waits add up to the makespan. For the span it
    ends with the last op of the device that is in use longest, and goes back to that device's first start: if its first
    op starts no earlier than that, durations and waits add up to the span.

    Among the paths that are equally critical, the one that changes device least often: it is the easiest to read.

    Parameters
    ----------
    fused : bool
        Whether gradients are handed on when W ends.
    """
    problem, layout = schedule.problem, schedule.layout
    placement, sequence = layout.placement, sequence_of(schedule)
    start, end = schedule.start.tolist(), schedule.end.tolist()

    def starts(op: Op) -> int:
        return int(start[op.kind][op.stage][op.microbatch])

    def ends(op: Op) -> int:
        return int(end[op.kind][op.stage][op.microbatch])

    before: dict[Op, Op] = {}
    last_on: dict[int, Op] = {}
    first_on: dict[int, Op] = {}
    for op in sequence:
        device = placement[op.stage]
        if device in last_on:
            before[op] = last_on[device]
        else:
            first_on[device] = op
        last_on[device] = op
    # Fewest changes of device to reach an op, and the link over which it is reached.
    cost: dict[Op, int] = {}
    via: dict[Op, Link | None] = {}
    for op in sequence:
        links = inputs(problem, layout, op, fused=fused)
        if op in before:
            links.append(Link(before[op], 0, "device"))
        # A gradient may come from a W that zero lengths put later in the sequence: not a link that can hold.
        links = [link for link in links if link.before in cost]
        tight = [link for link in links if ends(link.before) + link.delay == starts(op)]
        cost[op], via[op] = 0, None
        if tight or (links and starts(op)):
            if not tight:
                latest = max(ends(link.before) + link.delay for link in links)
                tight = [link for link in links if ends(link.before) + link.delay == latest]
                cost[op] = _COST_OF_LEAD
            moved = [cost[link.before] + (placement[link.before.stage] != placement[op.stage]) for link in tight]
            cost[op] += min(moved)
            via[op] = tight[moved.index(min(moved))]
    stop = 0
    if problem.objective == "makespan":
        latest = schedule.makespan
        op = min((op for op in sequence if ends(op) == latest), key=lambda op: cost[op])
    else:
        span = schedule.span
        used = [d for d in last_on if _window(schedule, layout, d) == span]
        device = min(used, key=lambda device: cost[_last_of(schedule, layout, device, sequence)])
        op = _last_of(schedule, layout, device, sequence)
        stop = min(starts(one) for one in sequence if placement[one.stage] == device)
    memory = _Memory(schedule, sequence)
    path: list[Step] = []
    while True:
        link = via[op]
        begin = starts(op)
        if link is None or (problem.objective == "span" and begin <= stop):
            wait = max(0, begin - stop)
            path.append(Step(op, placement[op.stage], begin, ends(op), "lead" if wait else "start", wait))
            return path[::-1]
        cause, wait = link.cause, begin - ends(link.before)
        if wait > link.delay:
            cause = "lead"
        elif cause in ("device", "own") and memory.made_room(link.before, op):
            cause = "memory"
        path.append(Step(op, placement[op.stage], begin, ends(op), cause, wait))
        op = link.before


def _window(schedule: Schedule, layout: Layout, device: int) -> int:
    stages = layout.stages_on(device)
    return int(schedule.end[:, stages].max() - schedule.start[:, stages].min())


def _last_of(schedule: Schedule, layout: Layout, device: int, sequence: Sequence[Op]) -> Op:
    last = int(schedule.end[:, layout.stages_on(device)].max())
    return next(op for op in reversed(sequence) if layout.placement[op.stage] == device and schedule.end[op] == last)


class _Memory:
    """Says of two ops in a row on a device whether the first had to make room for the second."""

    def __init__(self, schedule: Schedule, sequence: Sequence[Op]) -> None:
        self.problem, self.layout = schedule.problem, schedule.layout
        self.before: dict[Op, int] = {}
        for device, cap in enumerate(self.problem.capacity):
            if cap is None:
                continue
            order = [op for op in sequence if self.layout.placement[op.stage] == device]
            held = levels(self.problem, self.layout, device, order)
            self.before.update(zip(order, held, strict=False))

    def made_room(self, freeing: Op, taking: Op) -> bool:
        cap = self.problem.capacity[self.layout.placement[taking.stage]]
        if cap is None or taking.kind != F or freeing.kind == F:
            return False
        if change_of(self.problem, self.layout, freeing) >= 0:
            return False
        return self.before[freeing] + change_of(self.problem, self.layout, taking) > cap


# ---- runs ----------------------------------------------------------------------------------


def runs_of(path: Sequence[Step]) -> list[Run]:
    """Group a path into runs: at each place, the longer of a busy device and of one microbatch passing stages."""
    found = []
    place = 0
    while place < len(path):
        busy = passing = place + 1
        while busy < len(path) and path[busy].device == path[place].device and not path[busy].wait:
            busy += 1
        while passing < len(path) and _passes(path[passing - 1], path[passing]):
            passing += 1
        # A W that belongs to a busy stretch is no passage; at least two devices are.
        if len({step.device for step in path[place:passing]}) > 1 and passing > busy:
            steps = tuple(path[place:passing])
            found.append(Run(steps, _passage(steps)))
            place = passing
        else:
            steps = tuple(path[place:busy])
            found.append(Run(steps, _stretch(steps)))
            place = busy
    return found


def _passes(one: Step, other: Step) -> bool:
    """Whether a step is the next on its microbatch's way through the stages."""
    if one.op.microbatch != other.op.microbatch or other.cause not in ("forward", "gradient", "own", "device"):
        return False
    kinds, rise = (one.op.kind, other.op.kind), other.op.stage - one.op.stage
    return (kinds, rise) in (((F, F), 1), ((B, B), -1), ((B, W), 0), ((W, B), -1))


def _passage(steps: Sequence[Step]) -> str:
    kinds = [KIND_NAMES[kind] for kind in sorted({step.op.kind for step in steps})]
    first, last = steps[0].op.stage, steps[-1].op.stage
    return f"{', '.join(kinds)} of stages {first} to {last}, microbatch {steps[0].op.microbatch}"


def _stretch(steps: Sequence[Step]) -> str:
    by_stage: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for step in steps:
        by_stage[step.op.stage][step.op.kind].append(step.op.microbatch)
    texts = []
    for stage, kinds in by_stage.items():
        alike: dict[str, list[str]] = defaultdict(list)
        for kind in sorted(kinds):
            alike[ranges(kinds[kind])].append(KIND_NAMES[kind])
        if len(alike) == 1:
            (numbers, names), *_ = alike.items()
            word = "microbatch" if numbers.isdigit() else "microbatches"
            texts.append(f"{', '.join(names)} of stage {stage}, {word} {numbers}")
        else:
            parts = ", ".join(f"{'/'.join(names)} {numbers}" for numbers, names in alike.items())
            texts.append(f"stage {stage}: {parts}")
    if len(texts) > MOST_STAGES:
        texts[MOST_STAGES - 1 :] = [f"and {len(texts) - MOST_STAGES + 1} more stages"]
    return "; ".join(texts)


def ranges(numbers: Sequence[int]) -> str:
    """Word whole numbers as ranges: 0-3, 5."""
    texts: list[str] = []
    ordered = sorted(set(numbers))
    place = 0
    while place < len(ordered):
        stop = place
        while stop + 1 < len(ordered) and ordered[stop + 1] == ordered[stop] + 1:
            stop += 1
        texts.append(str(ordered[place]) if place == stop else f"{ordered[place]}-{ordered[stop]}")
        place = stop + 1
    return ", ".join(texts)


def shares(path: Sequence[Step], problem: Problem) -> tuple[dict[int, int], int, int]:
    """Return what a path consists of: ticks of ops by device, of transfers, and held back."""
    busy = dict.fromkeys(range(problem.n_devices), 0)
    transfer = lead = 0
    for step in path:
        busy[step.device] += step.end - step.start
        if step.cause == "lead":
            lead += step.wait
        else:
            transfer += step.wait
    return busy, transfer, lead
