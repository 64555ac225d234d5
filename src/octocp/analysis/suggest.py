"""What would help most: single changes of a plan, each made, timed and checked like any plan, and ranked.

Nothing here is an estimate. A change counts only if the changed plan is legal, and its value is that of the timing
pass: what `octocp try` gives for the same change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

from octocp.analysis.critical import Step, shares
from octocp.analysis.draft import Draft
from octocp.analysis.moves import (
    Dispatch,
    Handover,
    IllegalMoveError,
    Move,
    MoveLayers,
    MoveOp,
    MoveStage,
    SwapStages,
)
from octocp.bounds import load
from octocp.bounds.base import Bound
from octocp.bounds.registry import best_bound
from octocp.problem import B, Problem, W
from octocp.schedule import Layout, Op, Schedule
from octocp.timing import EXACT_SPAN_OPS

# Ops timed for one answer, some seconds: a bound on work and not on time, so that answers repeat themselves.
MOST_WORK = 600_000
# What an answer costs beside one pass over the ops.
SPAN_COST, DISPATCH_COST = 12, 30
# Share of the work for the same layout with a new order; with many ops that is most of it.
SHARE_ANEW = 0.6
# New orders are tried on the layouts that promise most.
MOST_DISPATCHED = 24
# Layers moved at once.
MOST_LAYERS = 4
# How far before its place a B of the path is tried.
MOST_BACK = 4
# Of each sort of change, and in all.
MOST_OF_A_SORT, MOST_TOLD = 3, 10


@dataclass(frozen=True)
class Suggestion:
    """A change that makes the plan better.

    Attributes
    ----------
    moves : tuple of Move
        What `octocp try` is to be given, in this order.
    value : int
        The objective after it, ticks; exact.
    kept_value : int or None
        For a change that comes with a new order: the value with the order kept; None where that is not legal.
    """

    moves: tuple[Move, ...]
    value: int
    kept_value: int | None = None

    @property
    def dispatched(self) -> bool:
        """Whether it comes with a new order."""
        return any(isinstance(move, Dispatch) for move in self.moves)

    def words(self) -> str:
        """Say what it does."""
        return "; ".join(move.words() for move in self.moves) or "start every op as early as its order allows"


@dataclass(frozen=True)
class Advice:
    """The best changes, and how many were looked at.

    Attributes
    ----------
    tried, left : int
        Changes timed or found illegal, and changes for which the allotted work was too little.
    """

    suggestions: tuple[Suggestion, ...]
    tried: int
    left: int


class _Trials:
    """Changes of one plan, timed within an allotted amount of work; those that help are kept."""

    def __init__(self, draft: Draft, schedule: Schedule, work: int) -> None:
        self.draft, self.before, self.work = draft, schedule.value, work
        self.ops = len(draft.sequence)
        self.tried = self.left = 0
        self.found: list[Suggestion] = []
        exact_span = draft.problem.objective == "span" and self.ops <= EXACT_SPAN_OPS
        self.once = self.ops * (SPAN_COST if exact_span else 1)
        # Layouts that changes lead to: over which one, and its value with the order kept.
        self.layouts: dict[Layout, tuple[Move, int | None]] = {}

    def value(self, *moves: Move, kept: int | None = None, least: int | None = None) -> int | None:
        """Return the value after changes; None where they are illegal or the work is used up.

        Parameters
        ----------
        kept : int, optional
            To note with it: the value with the order kept.
        least : int, optional
            What it must be below to be worth telling, if not the plan's own value.
        """
        cost = self.once + (self.ops * DISPATCH_COST if any(isinstance(move, Dispatch) for move in moves) else 0)
        if self.work < cost:
            self.left += 1
            return None
        self.work -= cost
        self.tried += 1
        try:
            value = self.draft.with_moves(moves).timed().value
        except IllegalMoveError:
            return None
        if value < min(self.before, self.before if least is None else least):
            self.found.append(Suggestion(moves, value, kept))
        return value

    def layout_value(self, move: Move) -> int | None:
        """Return the value after a change of the layout, with the order kept, and remember it if it is legal."""
        try:
            layout = self.draft.with_moves([move]).layout
        except IllegalMoveError:
            return None
        problem = self.draft.problem
        # Renumbering devices that are alike changes nothing.
        if layout.violation(problem) or layout.canonical(problem) == self.draft.layout.canonical(problem):
            return None
        if layout in self.layouts:
            return self.layouts[layout][1]
        value = self.value(move)
        self.layouts[layout] = move, value
        return value


def advise(draft: Draft, schedule: Schedule, path: Sequence[Step], *, work: int = MOST_WORK) -> Advice:
    """Return the single changes that lower a plan's value most, best first.

    Parameters
    ----------
    draft : Draft
        Made of `schedule`.
    path : sequence of Step
        A critical path of it: changes of the order are looked for there.
    work : int
        Ops that may be timed.
    """
    trials = _Trials(draft, schedule, work)
    # Each sort has its share of the work, so that none is left without; what one leaves is for the next.
    trials.work = int(SHARE_ANEW * work)
    anew = [schedule.value, trials.value()]
    if draft.fused:
        anew += [trials.value(Handover(False)), trials.value(Handover(False), Dispatch())]
    anew.append(trials.value(Dispatch()))
    whole, spare = work - int(SHARE_ANEW * work), trials.work
    sorts: tuple[tuple[Callable[[], None], float], ...] = (
        (lambda: _try_layers(trials, path), 0.25),
        (lambda: _try_orders(trials, path), 0.25),
        (lambda: _try_devices(trials), 0.2),
        (lambda: _try_layouts_anew(trials, min(value for value in anew if value is not None)), 0.3),
    )
    for run, share in sorts:
        trials.work = int(share * whole) + spare
        run()
        spare = trials.work
    return Advice(tuple(_best(trials.found)), trials.tried, trials.left)


def _try_layers(trials: _Trials, path: Sequence[Step]) -> None:
    """Move layers from any stage to any other, more of them while that helps; stages of the path's devices first."""
    layout, problem = trials.draft.layout, trials.draft.problem
    busy, _, _ = shares(path, problem)
    pairs = [(one, other) for one in range(layout.stages) for other in range(layout.stages) if one != other]
    pairs.sort(key=lambda pair: (-busy[layout.placement[pair[0]]], abs(pair[0] - pair[1])))
    if problem.partition is not None:
        return
    for source, target in pairs:
        best: int | None = None
        for count in range(1, min(MOST_LAYERS, layout.partition[source] - 1) + 1):
            value = trials.layout_value(MoveLayers(count, source, target))
            if value is not None:
                if best is not None and value >= best:
                    break
                best = value


def _try_devices(trials: _Trials) -> None:
    """Move every stage to every device, and swap the devices of every two stages."""
    layout, problem = trials.draft.layout, trials.draft.problem
    if problem.family != "free":
        return
    for one, other in combinations(range(layout.stages), 2):
        trials.layout_value(SwapStages(one, other))
    for stage in range(layout.stages):
        for device in range(problem.n_devices):
            trials.layout_value(MoveStage(stage, device))


def _try_orders(trials: _Trials, path: Sequence[Step]) -> None:
    for move in dict.fromkeys(_order_moves(trials.draft, path)):
        trials.value(move)


def _order_moves(draft: Draft, path: Sequence[Step]) -> Iterator[MoveOp]:
    """Yield changes of the order that could shorten a path.

    Any order of the ops of a stretch on one device takes as long. So unless another op comes to stand first or last in
    it, the same ops still lead into the stretch and out of it, and the path is as long as before. Hence every op is
    tried before the first and after the last. A stretch often hides what held it up, the wait just before; so
    neighbours are swapped too, and a B goes before the few ops that run ahead of it.
    """
    fused = draft.fused
    ops = [step.op for step in path if not (fused and step.op.kind == W)]
    device_of = draft.layout.placement

    def free(first: Op, second: Op) -> bool:
        same = first[1:] == second[1:]
        return not same and device_of[first.stage] == device_of[second.stage]

    for one, other in pairwise(ops):
        if free(one, other):
            yield MoveOp(other, one)
    place = 0
    while place < len(ops):
        stop = place
        while stop + 1 < len(ops) and device_of[ops[stop + 1].stage] == device_of[ops[place].stage]:
            stop += 1
        for inner in ops[place + 1 : stop + 1]:
            if free(ops[place], inner):
                yield MoveOp(inner, ops[place])
        for inner in ops[place:stop]:
            if free(inner, ops[stop]):
                yield MoveOp(inner, ops[stop], before=False)
        place = stop + 1
    # An op that arrives on the path late: let what its device ran just before go later, and W first of all.
    after: dict[Op, Op] = {}
    last: dict[int, Op] = {}
    for op in draft.sequence:
        if fused and op.kind == W:
            continue
        device = device_of[op.stage]
        if device in last:
            after[op] = last[device]
        last[device] = op
    for op in ops:
        earlier = after.get(op)
        for _ in range(MOST_BACK):
            if earlier is None:
                break
            if op.kind == B and free(earlier, op):
                yield MoveOp(op, earlier)
            earlier = after.get(earlier)


def _try_layouts_anew(trials: _Trials, least: int) -> None:
    """Give the most promising layouts a new order: it must beat the old order there, and a new order alone."""
    problem = trials.draft.problem
    bounds = [layout_bound(problem, layout, quick=True).value for layout in trials.layouts]
    ranked = sorted(zip(bounds, range(len(bounds)), trials.layouts, strict=True), key=lambda each: each[:2])
    for bound, _, layout in ranked[:MOST_DISPATCHED]:
        move, kept = trials.layouts[layout]
        if bound < least:
            trials.value(move, Dispatch(), kept=kept, least=min(least, least if kept is None else kept))
    trials.left += max(0, sum(bound < least for bound in bounds) - MOST_DISPATCHED)


def layout_bound(problem: Problem, layout: Layout, *, quick: bool = False) -> Bound:
    """Return the best bound on plans with this very partition and placement, whatever their order.

    Parameters
    ----------
    quick : bool
        Only by the loads of the devices and what must run before and after them.
    """
    fixed = replace(
        problem,
        partition=layout.partition,
        family="fixed",
        placement=layout.placement,
        min_stages=layout.stages,
        max_stages=layout.stages,
    )
    return (
        max((load.work(fixed), load.head_load_tail(fixed)), key=lambda bound: bound.value)
        if quick
        else best_bound(fixed)
    )


def _best(found: Sequence[Suggestion]) -> Iterator[Suggestion]:
    """Yield the best suggestions, only a few of each sort: five ways to move an op tell no more than three."""
    told: dict[tuple[type[Move], ...], set[int]] = {}
    given = 0
    for suggestion in sorted(found, key=lambda each: (each.value, len(each.moves))):
        values = told.setdefault(tuple(type(move) for move in suggestion.moves), set())
        # What reaches the same value in the same way is most often the same change in other words.
        if suggestion.value not in values and len(values) < MOST_OF_A_SORT and given < MOST_TOLD:
            given += 1
            values.add(suggestion.value)
            yield suggestion
