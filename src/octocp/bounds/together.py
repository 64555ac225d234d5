"""Bounds from layers that must run on one device: an uncuttable run, or a colocated group."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from octocp.bounds.base import Bound, head, run_work, tail
from octocp.problem import B, F, Problem


def _on_one_device(problem: Problem, runs: Sequence[tuple[int, int]]) -> int:
    """Bound the objective for runs of layers that share a device.

    Proof: let a be the first layer of the runs, v <= a the begin of its stage. Nothing of that stage or a
    later one starts before the forwards of the layers before v; the device then runs, for every microbatch,
    F and B of the stages that hold the runs, whose durations include those of the layers v..a. So all
    F and B of the runs' stages end no earlier than head(v) + work >= head(a) + work of the runs alone. What
    ends last among them is a B (each F is followed by its B), and tail(a) follows it. Without the
    tail, the W work counts as well (makespan). For the span the first form holds: it all lies in the
    window of stage 0's device, the last W of stage 0 included.
    """
    first = min(begin for begin, _ in runs)
    both = sum(run_work(problem, (F, B), begin, end) for begin, end in runs)
    value = head(problem, first) + both + tail(problem, first)
    if problem.objective == "makespan":
        value = max(value, head(problem, first) + sum(run_work(problem, problem.kinds, *run) for run in runs))
    else:
        value = max(value, sum(run_work(problem, problem.kinds, *run) for run in runs))
    return value


def _runs(problem: Problem) -> list[tuple[int, int]]:
    """Return the runs of layers that no plan cuts: whole stages when the partition is fixed."""
    return list(pairwise(problem.fixed_bounds)) if problem.fixed_bounds else list(problem.units)


def indivisible(problem: Problem) -> Bound:
    """Bound by the uncuttable run of layers that works longest with what precedes and follows it."""
    runs = _runs(problem)
    value, (begin, end) = max((_on_one_device(problem, [run]), run) for run in runs)
    layers = f"layer {begin}" if end == begin + 1 else f"layers {begin} to {end - 1}"
    return Bound("indivisible layer", value, f"{layers} on one device")


def shared_device(problem: Problem) -> Bound:
    """Bound by a group of layers that `colocate` puts on one device.

    Overhead is counted once per distinct run; groups whose layers fall in one run count it once.
    """
    best = Bound("shared device", 0, "no group shares a device")
    runs = _runs(problem)
    for group in problem.colocate:
        touched = sorted({run for layer in group for run in runs if run[0] <= layer < run[1]})
        # Two runs may end up in one stage, whose overhead and rounding then count once: merge what could be lost.
        if problem.overhead or problem.min_scale.denominator != 1:
            touched = [max(touched, key=lambda run: run_work(problem, problem.kinds, *run))]
        value = _on_one_device(problem, touched)
        if value > best.value:
            best = Bound("shared device", value, f"layers {list(group)} on one device")
    return best
