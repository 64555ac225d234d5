"""V-Min, V-Half and V-ZB: memory set by a building block (Qi et al., Controllable Memory, NeurIPS 2024, 4).

Two stages per device in V placement. A building block is when one microbatch passes every device, in units of one op at
F = B = W: a fixed offset from device to device for each of its four passes (F down and up the V, B down and up), and
gaps where it turns. Repeated every 6 units it must not collide on any device; how long activations live, and so the
memory, follows from the offsets alone. W takes what is left of the 6 units, the first slot after its B.

The order of the repeated blocks is then run on the instance's own costs: idle time is squeezed out by running early
what memory allows, and W fills gaps (`octocp.heuristics.fill`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import permutations, product

from octocp.heuristics.base import Heuristic, chunked, require_split
from octocp.heuristics.fill import Choices, Try, best_fill
from octocp.problem import B, F, Problem, W
from octocp.schedule import Layout, Op, Orders

PERIOD = 6
Times = dict[tuple[int, int], int]
"""When a device runs (kind, stage) for microbatch 0, in units."""


@dataclass(frozen=True)
class Block:
    """A building block.

    Attributes
    ----------
    offsets : tuple of 4 int
        Units from one device to the next: F of the first stages, F of the second ones, B of those, B of the first.
    turns : int
        How many sets of gaps at the three turns to try, shortest first.
    choices : tuple of Choices
        What may run before its turn.
    """

    offsets: tuple[int, int, int, int]
    turns: int
    choices: tuple[Choices, ...]

    def patterns(self, devices: int) -> Iterator[list[Times]]:
        """Yield the blocks that do not collide, by total gap at the turns: per device, when it runs what."""
        yielded = 0
        for first, second, third in sorted(product(range(PERIOD), repeat=3), key=lambda gaps: (sum(gaps), gaps)):
            times = self._times(devices, (first, second, third))
            if times is not None:
                yield times
                yielded += 1
            if yielded == self.turns:
                return

    def _times(self, devices: int, gaps: tuple[int, int, int]) -> list[Times] | None:
        down, up, back_down, back_up = self.offsets
        last = devices - 1
        turn = down * last + 1 + gaps[0]
        backward = turn + up * last + 1 + gaps[1]
        returning = backward + back_down * last + 1 + gaps[2]
        found = []
        for device in range(devices):
            first, second = device, 2 * devices - 1 - device
            times = {
                (F, first): down * device,
                (F, second): turn + up * (last - device),
                (B, second): backward + back_down * device,
                (B, first): returning + back_up * (last - device),
            }
            left = set(range(PERIOD)) - {time % PERIOD for time in times.values()}
            if len(left) > 2:
                return None
            slots = []
            for one in permutations(sorted(left)):
                after = (times[B, second] + 1, times[B, first] + 1)
                slots.append([time + (slot - time) % PERIOD for time, slot in zip(after, one, strict=True)])
            times[W, second], times[W, first] = min(slots, key=sum)
            found.append(times)
        return found


def repeated(times: list[Times], microbatches: int) -> Orders:
    """Return the orders of a block repeated for every microbatch, without what is squeezed."""
    orders = []
    for device in times:
        ops = [
            (time + PERIOD * microbatch, Op(kind, stage, microbatch))
            for (kind, stage), time in device.items()
            for microbatch in range(microbatches)
        ]
        orders.append([op for _, op in sorted(ops)])
    return orders


def most_held(orders: Orders) -> int:
    """Return the largest number of stage activations, from F to W, that any device holds."""
    peak = 0
    for order in orders:
        level = 0
        for op in order:
            level += (op.kind == F) - (op.kind == W)
            peak = max(peak, level)
    return peak


def v_schedule(problem: Problem, layout: Layout, block: Block, most: int | None) -> Orders:
    """Run a building block within `most` stage activations per device (default: what the block itself holds)."""
    patterns = [repeated(times, problem.n_microbatches) for times in block.patterns(problem.n_devices)]
    limit = most_held(patterns[0]) if most is None else most
    held: list[tuple[float, float]] = [(1, 1)] * layout.stages
    limits: list[float] = [limit] * problem.n_devices
    tries = (Try(pattern, held, limits, choices) for pattern in patterns for choices in block.choices)
    found = best_fill(problem, layout, tries)
    return patterns[0] if found is None else found


IN_TURN = (Choices(), Choices(weight="fits"))
V_MIN_BLOCK = Block((1, 1, 1, 1), 1, IN_TURN)
V_HALF_BLOCK = Block(
    (2, 1, 2, 1),
    20,
    (
        Choices(backward="always"),
        Choices(backward="always", weight="fits"),
        Choices(forward="always", backward="always", reserve=2),
        Choices(forward="always", backward="always", reserve=2, weight="fits"),
    ),
)
V_ZB_BLOCK = Block(
    (3, 3, 3, 3),
    1,
    tuple(
        Choices(forward=forward, backward=backward, weight=weight, reserve=1)
        for forward in ("always", "fits")
        for backward in ("never", "always")
        for weight in ("always", "fits", "idlest")
    ),
)


def v_min(problem: Problem, layout: Layout) -> Orders:
    """Hold about (P + 4) / 3 microbatches: every pass moves on by one unit, the shortest life there is."""
    return v_schedule(problem, layout, V_MIN_BLOCK, None)


def v_half(problem: Problem, layout: Layout) -> Orders:
    """Hold at most (P + 2) / 2 microbatches, half of 1F1B."""
    return v_schedule(problem, layout, V_HALF_BLOCK, problem.n_devices + 2)


def v_zb(problem: Problem, layout: Layout) -> Orders:
    """Hold at most P microbatches, as 1F1B: no bubble in span at F = B = W."""
    return v_schedule(problem, layout, V_ZB_BLOCK, 2 * problem.n_devices)


def v_placements(problem: Problem) -> list[tuple[int, ...]]:
    """Return the V: two stages per device, down the devices and up again."""
    require_split(problem)
    return [chunked(problem, "wave", 2)]


SOURCE = "Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024, 4"
_v = partial(
    Heuristic, source=SOURCE, placements=v_placements, fused=False, needs="split backward, two stages per device in V"
)
V_MIN = _v("v-min", orders=v_min)
V_HALF = _v("v-half", orders=v_half)
V_ZB = _v("v-zb", orders=v_zb)
