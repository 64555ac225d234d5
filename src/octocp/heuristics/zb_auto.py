"""Zero-bubble's automatic scheduler at a memory limit (Qi et al., Zero Bubble, ICLR 2024, 3.1).

As many F as memory allows before the first B, then B and F in turn, W in gaps that it fits into and where memory is
full, and the rest of W at the end. What the text leaves open as choices is tried, and the best kept: whether an F
that delays a B may run, whether F and B take turns or B goes first, and whether W also fills gaps shorter than itself,
always or on the device that has been idle longest.

On the paper's ten profiles (tests/test_schedules.py) the spans are the published ones to the tick.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from math import inf
from typing import Literal

from octocp.heuristics.base import Heuristic
from octocp.heuristics.fill import Choices, Try, best_fill
from octocp.heuristics.serial import serial
from octocp.heuristics.zb_h1 import split_placements, zb_h1
from octocp.problem import Problem
from octocp.schedule import Layout, Orders

WEIGHTS: tuple[Literal["fits", "always", "idlest"], ...] = ("idlest", "fits", "always")
FORWARDS: tuple[Literal["fits", "always"], ...] = ("fits", "always")
CHOICES = tuple(
    Choices(forward=forward, backward="always", weight=weight, alternate=alternate)
    for forward, weight, alternate in product(FORWARDS, WEIGHTS, (True, False))
)


def zb_auto(problem: Problem, layout: Layout, in_flight: int | None = None) -> Orders:
    """Order by simulation within the instance's memory limits.

    Where not even one microbatch fits, the order is serial and breaks the limit by the least.

    Parameters
    ----------
    in_flight : int, optional
        Also hold no more than the activations of that many microbatches, as ZB-1p (P) and ZB-2p (2P) do.
    """
    held, limits = _memory(problem, layout, in_flight)
    pattern = zb_h1(problem, layout)
    found = best_fill(problem, layout, (Try(pattern, held, limits, choices) for choices in CHOICES))
    return serial(problem, layout) if found is None else found


def _memory(problem: Problem, layout: Layout, in_flight: int | None) -> tuple[list[tuple[float, float]], list[float]]:
    """Return what a microbatch of each stage holds from F to B and from B to W, and each device's limit without static.

    In memory units; without sizes, in activations, as the paper has them: 2 from F to B, 1 to W.
    """
    held: list[tuple[float, float]] = []
    limits: list[float] = [inf] * problem.n_devices
    for stage, device in enumerate(layout.placement):
        begin, end = layout.bounds[stage : stage + 2]
        parts = [problem.stage_memory(begin, end, microbatch) for microbatch in range(problem.n_microbatches)]
        activation, weight = max(part[1] for part in parts), max(part[2] for part in parts)
        capacity = problem.capacity[device]
        if not activation and not weight:
            held.append((2, 1))
            limits[device] = inf if in_flight is None else 2 * in_flight
            continue
        held.append((activation, weight))
        limits[device] = inf if capacity is None else capacity - parts[0][0]
        if in_flight is not None:
            limits[device] = min(limits[device], in_flight * max(activation, weight))
    return held, limits


def _limited(problem: Problem, layout: Layout, rounds: int) -> Orders:
    return zb_auto(problem, layout, rounds * layout.stages)


SOURCE = "Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, 3.1"
NEEDS = "split backward, one stage per device"
ZB_AUTO = Heuristic("zb-auto", SOURCE, split_placements, zb_auto, fused=False, needs=NEEDS)
ZB_1P = Heuristic("zb-1p", SOURCE, split_placements, partial(_limited, rounds=1), fused=False, needs=NEEDS)
ZB_2P = Heuristic("zb-2p", SOURCE, split_placements, partial(_limited, rounds=2), fused=False, needs=NEEDS)
