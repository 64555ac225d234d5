"""Greedy dispatch: each device, whenever it is free, starts the op of those at hand that a rule ranks first.

One simulation serves every rule of this kind (`Rule`). Each (stage, kind) runs in microbatch order, so a device
chooses among the heads of its chains.

With admission, an F starts only where memory allows, in such a way that the devices cannot block each other. Let e be
what a microbatch of a stage holds at most from F to the end of W: the larger of its activation and weight part.
On a device let o be the oldest microbatch whose B on the device's lowest stage has not begun, and `room` the limit less
static sizes. After the F of a microbatch m has been admitted:

1. what is held plus e of every stage whose F of o has not begun is at most `room`: o can go on;
2. for each microbatch n with o < n < m, its e over all stages plus what microbatches younger than n hold is at most
   `room`: n can go on once it is the oldest.

With alike microbatches n = o + 1 is enough, as fewer are younger than later ones. B and W never raise the level, since
e covers the weight part. So the oldest microbatch of all can always run its next op, and every layout whose devices
hold one microbatch at a time comes to an end (`Tables.shortage` tells whether they do). The proof for alike
microbatches is in docs/formulation.md.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from itertools import pairwise

from octocp.heuristics.base import Heuristic, NotApplicableError
from octocp.problem import B, F, Problem, W, family_device
from octocp.schedule import Layout, Op, Orders

MOST_CHUNKS = 4
LOCAL = -1
NOT_YET = -1


@dataclass(frozen=True)
class Rule:
    """How a device ranks the ops at hand; W is always last.

    Attributes
    ----------
    alternate : bool
        Prefer B after an F and F after a B (the last one that was not a W); otherwise B always comes before F.
    defer : bool
        Put an op off, in favour of any other at hand, if what it waited for ended on another device after this
        device's previous op had begun, and that device has begun nothing since; only between two ops that would follow
        each other without a gap, and only once some B has begun on any device. A runtime that posts its transfers
        between ops can hide that one's transfer behind the op that goes first.
    defer_at_once : bool
        Defer before any B has begun too.
    forward_by_stage : bool
        Rank F by (stage descending, microbatch) instead of (microbatch, stage).
    """

    alternate: bool = False
    defer: bool = False
    defer_at_once: bool = False
    forward_by_stage: bool = False


DEEPEST_FIRST = Rule(forward_by_stage=True)


class Tables:
    """What a simulation reads of a layout, in plain lists: ticks, transfers, sizes.

    Parameters
    ----------
    admission : bool
        Whether memory limits hold F back.
    """

    def __init__(self, problem: Problem, layout: Layout, *, admission: bool) -> None:
        self.problem, self.layout = problem, layout
        stages, microbatches = layout.stages, problem.n_microbatches
        self.ticks: list[list[list[int]]] = layout.durations(problem).tolist()
        self.stages_on = [layout.stages_on(device) for device in range(problem.n_devices)]
        self.load = [
            sum(sum(self.ticks[kind][stage]) for kind in problem.kinds for stage in members)
            for members in self.stages_on
        ]
        # Ticks from stage - 1 into stage, by microbatch (the gradient's way back takes as long).
        self.entry: list[list[int]] = [[0] * microbatches]
        for stage in range(1, stages):
            before, here = layout.placement[stage - 1 : stage + 1]
            boundary = layout.bounds[stage]
            self.entry.append([problem.delay(boundary, before, here, m) for m in range(microbatches)])
        self.admission = admission and problem.has_memory_limit

    @cached_property
    def sizes(self) -> list[list[tuple[int, int]]]:
        """By stage and microbatch, what is held from F to the end of B, and to the end of W, in memory units.

        The first is the larger of activation and weight part.
        """
        problem, bounds = self.problem, self.layout.bounds
        made = []
        for begin, end in pairwise(bounds):
            row = []
            for microbatch in range(problem.n_microbatches):
                _, activation, weight = problem.stage_memory(begin, end, microbatch)
                weight = weight if problem.split else 0
                row.append((max(activation, weight), weight))
            made.append(row)
        return made

    @cached_property
    def room(self) -> list[int | None]:
        """Memory units that each device has beside the static sizes of its stages; None without a limit."""
        prefix, bounds = self.problem.prefix_static, self.layout.bounds
        return [
            None if cap is None else cap - sum(prefix[bounds[s + 1]] - prefix[bounds[s]] for s in members)
            for cap, members in zip(self.problem.capacity, self.stages_on, strict=True)
        ]

    def shortage(self) -> tuple[int, int] | None:
        """Return (device, need in memory units) for the device most short of room for one microbatch, or None."""
        worst: tuple[int, int, int] | None = None
        for device, room in enumerate(self.room):
            cap = self.problem.capacity[device]
            if room is None or cap is None:
                continue
            one = max(
                sum(self.sizes[stage][microbatch][0] for stage in self.stages_on[device])
                for microbatch in range(self.problem.n_microbatches)
            )
            if one > room and (worst is None or one - room > worst[0]):
                worst = (one - room, device, one - room + cap)
        return None if worst is None else worst[1:]


@dataclass
class Dispatch:
    """What a simulation did.

    Attributes
    ----------
    orders : list [device] of list of Op
        The order of each device.
    start : list [kind][stage][microbatch]
        Ticks.
    makespan, span : int
        Ticks; the span is that of these starts, which may be later than need be.
    """

    orders: list[list[Op]]
    start: list[list[list[int]]]
    makespan: int
    span: int


def dispatch(
    tables: Tables, rule: Rule, *, protected: Collection[tuple[int, int]] = (), give_up: int | None = None
) -> Dispatch | None:
    """Simulate a rule on a layout.

    Parameters
    ----------
    protected : collection of (kind, microbatch)
        Ops of these are never put off.
    give_up : int, optional
        Ticks: stop as soon as it is clear that the makespan is not below it.

    Returns
    -------
    Dispatch or None
        None where it gave up.

    Raises
    ------
    NotApplicableError
        With admission: a device has no room for one microbatch.
    """
    problem, layout = tables.problem, tables.layout
    if tables.admission and tables.shortage() is not None:
        raise NotApplicableError("a device has no room for one microbatch of its stages")
    stages, microbatches, devices = layout.stages, problem.n_microbatches, problem.n_devices
    ticks, entry, place = tables.ticks, tables.entry, layout.placement
    split, last_stage = problem.split, stages - 1
    limit = give_up if give_up is not None else 1 << 62
    memory = _Memory(tables) if tables.admission else None
    # The rank of an op and its stage in one number, so that min() over a short list is the choice.
    if rule.forward_by_stage:
        bases, steps = [[(last_stage - s) * microbatches for s in range(stages)]], [1]
    else:
        bases, steps = [list(range(stages))], [stages]
    bases += [[(last_stage - s) * microbatches for s in range(stages)]] * 2
    steps += [1, 1]

    start = [[[NOT_YET] * microbatches for _ in range(stages)] for _ in problem.kinds]
    begun = [[0] * stages for _ in range(3)]
    orders: list[list[Op]] = [[] for _ in range(devices)]
    # By device: what is on its way (arrival, kind, rank, end and device of what it waits for); what is there, by kind.
    coming: list[list[tuple[int, int, int, int, int]]] = [[] for _ in range(devices)]
    at_hand: list[list[list[int]]] = [[[], [], []] for _ in range(devices)]
    previous, last_kind = [NOT_YET] * devices, [B] * devices
    free, wake = [0] * devices, [NOT_YET] * devices
    left = list(tables.load)
    makespan, deferring = 0, rule.defer and rule.defer_at_once
    coming[place[0]].append((0, F, bases[F][0] * stages, LOCAL, place[0]))
    wake[place[0]] = 0
    wakes = [(0, place[0])]

    while wakes:
        now, device = heappop(wakes)
        if wake[device] != now:
            continue
        wake[device] = NOT_YET
        expected, settled, before = coming[device], at_hand[device], previous[device]
        fresh: list[list[int]] | None = None
        hurried = deferring and now == free[device]
        while expected and expected[0][0] <= now:
            _, kind, rank, produced, source = heappop(expected)
            if hurried and produced > before and free[source] == produced:
                if fresh is None:
                    fresh = [[], [], []]
                fresh[kind].append(rank)
            else:
                settled[kind].append(rank)
        first = B if last_kind[device] == F or not rule.alternate else F
        kind, rank = NOT_YET, NOT_YET
        for candidates in (settled,) if fresh is None else (settled, fresh):
            for kind in (first, 1 - first, W):
                ranks = candidates[kind]
                if not ranks:
                    continue
                rank = min(ranks) if kind != F or memory is None else memory.first_admitted(device, ranks, begun)
                if rank >= 0:
                    ranks.remove(rank)
                    break
            if rank >= 0:
                break
        if fresh is not None:
            for its_kind, ranks in enumerate(fresh):
                settled[its_kind] += ranks
        if rank < 0:
            if expected:
                wake[device] = expected[0][0]
                heappush(wakes, (expected[0][0], device))
            continue

        stage = rank % stages
        microbatch = begun[kind][stage]
        length = ticks[kind][stage][microbatch]
        end = now + length
        if now + left[device] >= limit:
            return None
        left[device] -= length
        start[kind][stage][microbatch] = now
        orders[device].append(Op(kind, stage, microbatch))
        previous[device] = now
        free[device] = end
        makespan = max(makespan, end)
        following = microbatch + 1
        begun[kind][stage] = following
        # Heads of chains whose arrival is now known: the next of this chain, and what waits for this op.
        known: list[tuple[int, int, int, int]] = []
        if kind == F:
            last_kind[device] = F
            if following < microbatches:
                if stage == 0:
                    known.append((F, 0, following, LOCAL))
                elif begun[F][stage - 1] > following:
                    known.append((F, stage, following, stage - 1))
            if stage == last_stage:
                if begun[B][stage] == microbatch:
                    known.append((B, stage, microbatch, LOCAL))
            elif begun[F][stage + 1] == microbatch:
                known.append((F, stage + 1, microbatch, stage))
        elif kind == B:
            last_kind[device] = B
            deferring = rule.defer
            if following < microbatches:
                if stage == last_stage:
                    if begun[F][stage] > following:
                        known.append((B, stage, following, LOCAL))
                elif begun[B][stage + 1] > following:
                    known.append((B, stage, following, stage + 1))
            if stage and begun[B][stage - 1] == microbatch:
                known.append((B, stage - 1, microbatch, stage))
            if split and begun[W][stage] == microbatch:
                known.append((W, stage, microbatch, LOCAL))
        elif following < microbatches and begun[B][stage] > following:
            known.append((W, stage, following, LOCAL))
        if memory is not None:
            memory.start(device, kind, stage, microbatch)

        if expected or settled[F] or settled[B] or settled[W]:
            wake[device] = end
            heappush(wakes, (end, device))
        for its_kind, its_stage, its_microbatch, source in known:
            to = place[its_stage]
            produced = LOCAL
            if source >= 0:
                arrival = start[its_kind][source][its_microbatch] + ticks[its_kind][source][its_microbatch]
                if place[source] != to:
                    if not protected or (its_kind, its_microbatch) not in protected:
                        produced = arrival
                    arrival += entry[max(source, its_stage)][its_microbatch]
            elif its_kind == W:
                arrival = start[B][its_stage][its_microbatch] + ticks[B][its_stage][its_microbatch]
            elif its_kind == B:
                arrival = start[F][its_stage][its_microbatch] + ticks[F][its_stage][its_microbatch]
            else:
                arrival = 0
            its_rank = (bases[its_kind][its_stage] + steps[its_kind] * its_microbatch) * stages + its_stage
            heappush(coming[to], (arrival, its_kind, its_rank, produced, place[source]))
            when = max(free[to], arrival)
            if wake[to] == NOT_YET or when < wake[to]:
                wake[to] = when
                heappush(wakes, (when, to))

    span = 0
    for order in orders:
        last = order[-1]
        ends = start[last.kind][last.stage][last.microbatch] + ticks[last.kind][last.stage][last.microbatch]
        span = max(span, ends - start[F][order[0].stage][order[0].microbatch])
    return Dispatch(orders, start, makespan, span)


class _Memory:
    """Which F a device may start (see the module's text), in memory units."""

    def __init__(self, tables: Tables) -> None:
        self.sizes, self.room, self.stages_on = tables.sizes, tables.room, tables.stages_on
        self.split = tables.problem.split
        self.alike = tables.problem.uniform_microbatches
        self.stages = tables.layout.stages
        self.held = [0] * len(self.room)

    def start(self, device: int, kind: int, stage: int, microbatch: int) -> None:
        """Note that an op begins; what it frees is free for whatever the device runs after it."""
        activation, weight = self.sizes[stage][microbatch]
        self.held[device] += (activation, weight - activation, -weight)[kind]

    def first_admitted(self, device: int, ranks: list[int], begun: list[list[int]]) -> int:
        """Return the first rank whose F may start, or -1."""
        if self.room[device] is None:
            return min(ranks)
        for rank in sorted(ranks):
            if self._admits(device, rank % self.stages, begun):
                return rank
        return -1

    def _admits(self, device: int, stage: int, begun: list[list[int]]) -> bool:
        members, sizes, room = self.stages_on[device], self.sizes, self.room[device]
        assert room is not None
        microbatch = begun[F][stage]
        oldest = begun[B][members[0]]
        need = self.held[device]
        if microbatch != oldest:
            need += sizes[stage][microbatch][0]
        for other in members:
            if begun[F][other] <= oldest:
                need += sizes[other][oldest][0]
        if need > room:
            return False
        younger = oldest + 1
        while younger < microbatch:
            later = 0
            for other in members:
                later += sizes[other][younger][0]
                ends = begun[F][other] + (other == stage)
                for held in range(max(younger + 1, begun[B][other]), ends):
                    later += sizes[other][held][0]
            if later > room:
                return False
            if self.alike:
                break
            younger += 1
        return True


def chunked_placements(problem: Problem) -> list[tuple[int, ...]]:
    """Return the placements with 1 to `MOST_CHUNKS` stages per device, in cyclic order and in a V, that are allowed.

    Where the instance has other stage counts only, its smallest; where it dictates a placement, that one.
    """
    devices = problem.n_devices
    most = min(problem.max_stages, MOST_CHUNKS * devices)
    counts = [stages for stages in range(devices, most + 1, devices) if stages >= problem.min_stages]
    found = []
    for stages in counts or [problem.min_stages]:
        dictated = problem.placement_for(stages)
        found += (
            [dictated]
            if dictated is not None
            else [
                tuple(family_device(family, stage, devices) for stage in range(stages))
                for family in ("interleaved", "wave")
            ]
        )
    allowed = [
        placement
        for placement in dict.fromkeys(found)
        if max(placement.count(device) for device in range(devices)) <= problem.max_per_device
    ]
    if not allowed:
        raise NotApplicableError(
            f"at most {problem.max_per_device} stages per device are allowed, which no placement in cyclic order keeps"
        )
    return allowed


def admitted_orders(problem: Problem, layout: Layout, rule: Rule) -> Orders:
    """Return a rule's orders, within the memory limits where one microbatch fits; without regard to them elsewhere."""
    tables = Tables(problem, layout, admission=True)
    if tables.admission and tables.shortage() is not None:
        tables.admission = False
    made = dispatch(tables, rule)
    assert made is not None
    return made.orders


def list_dispatch(problem: Problem, layout: Layout) -> Orders:
    """Run B before F before W, and among equals the op of the last stage, then the oldest microbatch.

    What is deepest in the pipeline goes first: an F that is nearer to its B, so few microbatches are in flight; a B
    that more B's wait for, the longest path behind it. Memory limits hold F back (the module's text).
    """
    return admitted_orders(problem, layout, DEEPEST_FIRST)


LIST_DISPATCH = Heuristic(
    "list-dispatch",
    "greedy list scheduling (Graham 1966)",
    chunked_placements,
    list_dispatch,
    fused=False,
    needs="nothing: 1 to 4 stages per device are tried where the instance leaves them open",
)
