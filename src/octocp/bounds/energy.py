"""An energy bound over time windows: how much work can be done at all before some time, and after some time.

Think of every op as its layers' pieces run one after the other, F upwards, B downwards; the layers' precedences then
hold between pieces. Let u be an uncuttable run of layers, so that one device runs its pieces of all microbatches,
and let f, b be its F and B pieces.

*Before.* No piece of u starts before the forwards below it have run once (`below`). When the j-th B of u ends, its
device has run j F and j B of u: not before ``below + j (f + b)``; nor before ``below + f + middle + j b``, where
`middle` is the chain through the layers above u. Only then can the j-th microbatch go down through the
layers below u, one piece at a time, and the W of a layer follow its B. So the work done by time t is at most

    all forwards below u, of microbatch j at most t - (j - 1) x (first layer's F)
    + u's own pieces: at most t - below
    + above u: microbatch j at most t - (below + j f), and the W released by then
    + below u: microbatch j at most t - (time of the j-th B of u), and the W released by then.

*After.* The mirror image, counted back from the end: W may all come last, the B below u take the
place of the forwards below u.

If at most e(t) work can be done in the first t ticks and at most l(t') in the last t', and t + t' <= makespan, then
P devices idle P t - e(t) and P t' - l(t') there, so

    P x makespan >= total work + (P t - e(t)) + (P t' - l(t')).

Any t and t' give a valid bound. Overhead and rounding only lengthen ops: they are left out of
both sides. Valid for the makespan; and for the span without W, where the two have the same optimum: every op lies in
the window of stage 0's device, so the span is at least the makespan counted from the first start.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from octocp.bounds.base import Bound
from octocp.problem import Problem

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class _Direction:
    """One reading direction of the step: the pieces as they can come, counted from that end."""

    up: tuple[int, ...]  # prefix sums of the pieces on the way to u
    down: tuple[int, ...]  # prefix sums of the pieces on the way back
    late: tuple[int, ...]  # prefix sums of what each layer releases when its `down` piece is done
    free: int  # work that may be done at any time, all microbatches
    lead: int  # ticks before the first piece


def energy(problem: Problem, known: int = 0) -> Bound:
    """Bound by the work that can be done early and late.

    Parameters
    ----------
    known : int
        A proven bound in ticks: the two windows together may not be longer.
    """
    if not problem.uniform_microbatches or (problem.objective == "span" and problem.split):
        return Bound("energy", 0, "makespan only")
    forward, backward, weight = problem.prefix_ticks
    M, P = problem.n_microbatches, problem.n_devices
    nothing = (0,) * len(weight)
    first = problem.units[0][1]
    early = _Direction(forward, backward, weight, 0, 0)
    late = _Direction(backward, forward, nothing, M * weight[-1], weight[first])
    total = M * (forward[-1] + backward[-1] + weight[-1])
    longest = max(int(known / problem.min_scale), total // P)
    before, after = _idle(problem, early), _idle(problem, late)
    idle, detail = 0, "no window binds"
    for t, at_start, run in before:
        fits = bisect_right(after, longest - t, key=lambda entry: entry[0])
        if not fits:
            break
        t_late, at_end, _ = after[fits - 1]
        if at_start + at_end > idle:
            idle = at_start + at_end
            detail = f"work possible in the first {t} and last {t_late} ticks, around layer {run}"
    value = -(-(total + idle) * problem.min_scale // P)
    return Bound("energy", int(value), detail)


def _idle(problem: Problem, way: _Direction) -> list[tuple[int, int, int]]:
    """Return (window, idle ticks of all devices in it, first layer of u), Pareto-best: longer windows, more idle."""
    found = [(0, 0, 0)]
    runs = list(pairwise(problem.fixed_bounds)) if problem.fixed_bounds else problem.units
    heads = sorted(way.up[begin] for begin, _ in problem.units)[: problem.n_devices]
    for begin, end in runs:
        times = _times(problem, way, begin, end)
        possible = _possible(problem, way, begin, end, times)
        started = (
            sum(np.maximum(times - head - (way.lead if head else 0), 0) for head in heads) if way.free == 0 else None
        )
        if started is not None:
            possible = np.minimum(possible, started)
        idle = problem.n_devices * times - possible
        found += [(int(t), int(i), begin) for t, i in zip(times, idle, strict=True) if i > 0]
    best: list[tuple[int, int, int]] = []
    for entry in sorted(found, key=lambda item: (item[0], -item[1])):
        if not best or entry[1] > best[-1][1]:
            best.append(entry)
    return best


def _releases(problem: Problem, way: _Direction, begin: int, end: int) -> tuple[int, Numbers, Numbers]:
    """Return `below`, and for j = 1..M the earliest end of the j-th `up` and `down` piece of u."""
    below = way.lead + way.up[begin]
    up, down = way.up[end] - way.up[begin], way.down[end] - way.down[begin]
    middle = way.up[-1] - way.up[end] + way.down[-1] - way.down[end]
    count = np.arange(1, problem.n_microbatches + 1, dtype=np.int64)
    return below, below + count * up, np.maximum(below + count * (up + down), below + up + middle + count * down)


def _times(problem: Problem, way: _Direction, begin: int, end: int) -> Numbers:
    """Return windows worth trying: where the work possible begins or stops to grow faster."""
    below, up_ends, down_ends = _releases(problem, way, begin, end)
    full = down_ends + way.down[begin]
    return np.unique(np.concatenate([[below], up_ends, down_ends, full]))


def _possible(problem: Problem, way: _Direction, begin: int, end: int, times: Numbers) -> Numbers:
    """Return, for each window, the most work that can be done in it."""
    M = problem.n_microbatches
    below, up_ends, down_ends = _releases(problem, way, begin, end)
    up, down, late = np.array(way.up), np.array(way.down), np.array(way.late)
    t = times[:, None]
    entries = way.lead + np.arange(M, dtype=np.int64) * int(up[problem.units[0][1]])
    on_the_way = np.clip(t - entries[None, :], 0, up[begin]).sum(axis=1)
    own = M * (up[end] - up[begin] + down[end] - down[begin] + late[end] - late[begin])
    at_u = np.clip(times - below, 0, own)
    # Above u: F up to the last layer, then B back down to u; a W is released when its B is done.
    rise = int(up[-1] - up[end])
    above = np.clip(t - up_ends[None, :], 0, rise + int(down[-1] - down[end]))
    released = _released(above - rise, down[-1] - down[end:][::-1], late[-1] - late[end:][::-1])
    # Below u: B from u down to layer 0.
    back = np.clip(t - down_ends[None, :], 0, int(down[begin]))
    released_below = _released(back, down[begin] - down[: begin + 1][::-1], late[begin] - late[: begin + 1][::-1])
    work: Numbers = on_the_way + at_u + (above + released + back + released_below).sum(axis=1) + way.free
    return work


def _released(progress: Numbers, done: Numbers, releases: Numbers) -> Numbers:
    """Return what is released once `progress` ticks of a chain have run; `done` are its pieces' ends, from 0.

    A piece counts only when its end lies strictly before: what it releases at that moment has had no time to run.
    The last piece is the exception where the chain is over: its release may have come long before.
    """
    index = np.searchsorted(done, progress, side="left") - 1
    over = progress >= done[-1]
    released: Numbers = np.where(over, releases[-1], releases[np.maximum(index, 0)])
    return released
