"""A plan in the making: a layout and one sequence of all ops, changed step by step, then timed and judged.

Every device's order is the sequence with the other devices' ops left out. Because the sequence begins as the
ops by start, which keeps all precedences, a stage that goes to another device can be merged there without
ever making a cycle.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from octocp.analysis.dispatch import dispatched
from octocp.analysis.graph import by_device, cycle, glued, inputs, name, sequence_of
from octocp.analysis.moves import (
    Dispatch,
    Handover,
    IllegalMoveError,
    Move,
    MoveCut,
    MoveLayers,
    MoveOp,
    MoveStage,
    SwapStages,
)
from octocp.heuristics.base import describe_excess
from octocp.problem import B, F, Problem, W
from octocp.schedule import Layout, Op, Schedule
from octocp.timing import DeadlockError, time_orders


@dataclass(frozen=True)
class Draft:
    """Partition, placement and order, not timed yet.

    Attributes
    ----------
    sequence : tuple of Op
        Every op once; a device runs its own in this order.
    fused : bool
        Whether gradients are handed on when W ends; every W then follows its B in the sequence.
    """

    problem: Problem
    layout: Layout
    sequence: tuple[Op, ...]
    fused: bool

    def with_moves(self, moves: Iterable[Move]) -> Draft:
        """Return the draft after changes, made one after the other.

        Raises
        ------
        IllegalMoveError
            One of them names what is not there, or empties a stage.
        """
        made = self
        for move in moves:
            try:
                made = made._after(move)
            except IllegalMoveError as error:
                raise IllegalMoveError(error.problem, place=error.place or str(move), right=error.right) from None
        return made

    def timed(self) -> Schedule:
        """Return the schedule, with the plan's order timed by the one timing pass.

        Raises
        ------
        IllegalMoveError
            The layout breaks a rule of the instance, devices wait for each other, or memory is passed.
        """
        self._check_layout()
        orders = by_device(self.layout, self.sequence, self.problem.n_devices)
        try:
            schedule = time_orders(self.problem, self.layout, orders, fused=self.fused)
        except DeadlockError:
            circle = cycle(self.problem, self.layout, orders, fused=self.fused)
            raise IllegalMoveError(f"ops wait for each other: {circle}") from None
        excess = schedule.memory_excess()
        if excess is not None:
            raise IllegalMoveError(f"memory: {describe_excess(self.problem, *excess[:2])}")
        return schedule

    def _check_layout(self) -> None:
        problem, layout = self.problem, self.layout
        if problem.partition is not None and layout.partition != problem.partition:
            raise IllegalMoveError("the instance fixes the partition (stages.partition)")
        dictated = problem.placement_for(layout.stages)
        if dictated is not None and layout.placement != dictated:
            raise IllegalMoveError(f"the instance fixes the placement (stages.placement: {problem.family})")
        for stage, boundary in enumerate(layout.bounds):
            if not problem.cuttable[boundary]:
                run = next((begin, end) for begin, end in problem.units if begin < boundary < end)
                raise IllegalMoveError(
                    f"the cut before stage {stage} would part layers {run[0]} to {run[1] - 1} (stages.keep_together)"
                )
        broken = layout.violation(problem)
        if broken:
            raise IllegalMoveError(broken)

    # ---- one change ------------------------------------------------------------------------

    def _after(self, move: Move) -> Draft:
        if isinstance(move, MoveLayers):
            return self._layers_moved(move)
        if isinstance(move, MoveCut):
            return self._cut_moved(move)
        if isinstance(move, MoveStage):
            return self._stage_moved(move)
        if isinstance(move, SwapStages):
            return self._swapped(move)
        if isinstance(move, MoveOp):
            return self._op_moved(move)
        if isinstance(move, Dispatch):
            return self._dispatched()
        assert isinstance(move, Handover)
        return self._handed_over(move)

    def _layers_moved(self, move: MoveLayers) -> Draft:
        self._need_stage(move.source)
        self._need_stage(move.target)
        if move.source == move.target or not move.count:
            raise IllegalMoveError("changes nothing")
        by = move.count if move.target < move.source else -move.count
        low, high = sorted((move.source, move.target))
        bounds = [bound + by if low < stage <= high else bound for stage, bound in enumerate(self.layout.bounds)]
        return self._with_bounds(bounds)

    def _cut_moved(self, move: MoveCut) -> Draft:
        stages = self.layout.stages
        if stages == 1:
            raise IllegalMoveError("a plan of one stage has no cut")
        if not 1 <= move.stage < stages:
            raise IllegalMoveError(
                f"there is no cut before stage {move.stage}", right=f"a stage from 1 to {stages - 1}"
            )
        if not move.by:
            raise IllegalMoveError("changes nothing")
        bounds = list(self.layout.bounds)
        bounds[move.stage] += move.by
        return self._with_bounds(bounds)

    def _with_bounds(self, bounds: list[int]) -> Draft:
        for stage, (begin, end) in enumerate(zip(bounds, bounds[1:], strict=False)):
            if end <= begin:
                had = self.layout.partition[stage]
                raise IllegalMoveError(f"stage {stage} has {had} layer{'s'[: had != 1]}: none would be left")
        return replace(self, layout=Layout(tuple(bounds), self.layout.placement))

    def _stage_moved(self, move: MoveStage) -> Draft:
        self._need_stage(move.stage)
        devices = self.problem.n_devices
        if move.device >= devices:
            raise IllegalMoveError(f"there is no device {move.device}", right=f"0 to {devices - 1}")
        placement = list(self.layout.placement)
        if placement[move.stage] == move.device:
            raise IllegalMoveError(f"stage {move.stage} is on device {move.device} already")
        placement[move.stage] = move.device
        return replace(self, layout=Layout(self.layout.bounds, tuple(placement)))

    def _swapped(self, move: SwapStages) -> Draft:
        self._need_stage(move.one)
        self._need_stage(move.other)
        placement = list(self.layout.placement)
        one, other = placement[move.one], placement[move.other]
        if one == other:
            raise IllegalMoveError(f"stages {move.one} and {move.other} are both on device {one}")
        placement[move.one], placement[move.other] = other, one
        return replace(self, layout=Layout(self.layout.bounds, tuple(placement)))

    def _op_moved(self, move: MoveOp) -> Draft:
        op, other = move.op, move.other
        self._need_op(op)
        self._need_op(other)
        if op == other:
            raise IllegalMoveError("changes nothing")
        device, elsewhere = (self.layout.placement[one.stage] for one in (op, other))
        if device != elsewhere:
            raise IllegalMoveError(f"{name(op)} runs on device {device}, {name(other)} on device {elsewhere}")
        if self.fused and W in (op.kind, other.kind):
            raise IllegalMoveError("the plan's backward is fused: W runs with its B", right="first: split")
        first, second = (op, other) if move.before else (other, op)
        if any(link.before == second for link in inputs(self.problem, self.layout, first, fused=self.fused)):
            raise IllegalMoveError(f"{name(first)} needs {name(second)} and cannot run before it")
        moved = [op, Op(W, op.stage, op.microbatch)] if self.fused and op.kind == B else [op]
        rest = [one for one in self.sequence if one not in moved]
        place = rest.index(other)
        if not move.before:
            place += 2 if self.fused and other.kind == B else 1
        sequence = (*rest[:place], *moved, *rest[place:])
        devices = self.problem.n_devices
        if by_device(self.layout, sequence, devices)[device] == by_device(self.layout, self.sequence, devices)[device]:
            raise IllegalMoveError(
                f"{name(op)} runs right {'before' if move.before else 'after'} {name(other)} already"
            )
        return replace(self, sequence=sequence)

    def _dispatched(self) -> Draft:
        self._check_layout()
        microbatches = [op.microbatch for op in self.sequence if op.kind == F and op.stage == 0]
        found = dispatched(self.problem, self.layout, microbatches, fused=self.fused)
        if found is None:
            raise IllegalMoveError("found no order that keeps within the memory limits")
        return replace(self, sequence=tuple(found[0]))

    def _handed_over(self, move: Handover) -> Draft:
        if not self.problem.split:
            raise IllegalMoveError("the instance has no W of its own (training.split_backward)")
        if move.fused == self.fused:
            raise IllegalMoveError(f"gradients are handed on after {'W' if self.fused else 'B'} already")
        sequence = tuple(glued(self.sequence)) if move.fused else self.sequence
        return replace(self, sequence=sequence, fused=move.fused)

    def _need_stage(self, stage: int) -> None:
        if stage >= self.layout.stages:
            raise IllegalMoveError(f"there is no stage {stage}", right=f"0 to {self.layout.stages - 1}")

    def _need_op(self, op: Op) -> None:
        if op.kind not in self.problem.kinds:
            raise IllegalMoveError(
                f"there is no {name(op)}: the instance has no W of its own (training.split_backward)"
            )
        if op.stage >= self.layout.stages or op.microbatch >= self.problem.n_microbatches:
            raise IllegalMoveError(
                f"there is no {name(op)}",
                right=f"stages 0 to {self.layout.stages - 1}, microbatches 0 to {self.problem.n_microbatches - 1}",
            )


def draft_of(schedule: Schedule, *, fused: bool) -> Draft:
    """Return the draft whose order is that of a schedule."""
    sequence = sequence_of(schedule)
    return Draft(schedule.problem, schedule.layout, tuple(glued(sequence) if fused else sequence), fused)


def runs_fused(schedule: Schedule) -> bool:
    """Tell whether a schedule is one of a fused backward, which holds its gradients until W ends.

    A plan does not say so. It is one if every W comes right after its B, no B starts before the W of
    the stage after it has ended and handed on, and this makes a difference: with gradients handed on after B,
    some op of the same order would start earlier.
    """
    problem, layout = schedule.problem, schedule.layout
    if not problem.split:
        return False
    start, end = schedule.start, schedule.end
    for order in schedule.orders():
        open_one: Op | None = None
        for op in order:
            if op.kind == W and open_one is not None and op[1:] == open_one[1:]:
                open_one = None
            elif end[op] > start[op] and open_one is not None:
                return False
            # A B of no length comes before the ops at its start, so it opens just as well.
            if op.kind == B:
                open_one = op
    for stage in range(layout.stages - 1):
        for microbatch in range(problem.n_microbatches):
            op = Op(B, stage, microbatch)
            link = inputs(problem, layout, op, fused=True)[1]
            if start[op] < end[link.before] + link.delay:
                return False
    draft = draft_of(schedule, fused=True)
    orders = by_device(layout, draft.sequence, problem.n_devices)
    try:
        held, free = (time_orders(problem, layout, orders, fused=fused) for fused in (True, False))
    except DeadlockError:
        return False
    return bool((held.start != free.start).any())
