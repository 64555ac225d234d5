"""Two second opinions on the oracle, naive on purpose: nothing is pruned but by value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations, product
from math import factorial, prod

from octocp.problem import B, F, Problem, W
from octocp.schedule import Layout
from oracle import legal_layouts

Key = tuple[int, int, int]
Arcs = Sequence[tuple[Key, Key, int]]


def ops_of(problem: Problem, layout: Layout) -> dict[Key, int]:
    """Return the length of every op."""
    kinds = (F, B, W) if problem.split else (F, B)
    return {
        (kind, stage, m): problem.duration(
            kind, layout.bounds[stage], layout.bounds[stage + 1], layout.placement[stage], m
        )
        for kind, stage, m in product(kinds, range(layout.stages), range(problem.n_microbatches))
    }


def arcs_of(problem: Problem, layout: Layout) -> Arcs:
    """Return precedence as (op, op, ticks between the end of one and the start of the other)."""
    arcs: list[tuple[Key, Key, int]] = []
    last = layout.stages - 1
    for m in range(problem.n_microbatches):
        for stage in range(last):
            here, there = layout.placement[stage : stage + 2]
            delay = problem.delay(layout.bounds[stage + 1], here, there, m)
            arcs += [((F, stage, m), (F, stage + 1, m), delay), ((B, stage + 1, m), (B, stage, m), delay)]
        for stage in range(last + 1):
            arcs.append(((F, stage, m), (B, stage, m), 0))
            if problem.split:
                arcs.append(((B, stage, m), (W, stage, m), 0))
    return arcs


def memory_fits(problem: Problem, layout: Layout, start: dict[Key, int], length: dict[Key, int]) -> bool:
    """Whether every device stays within its limit: what is held at each instant, half-open, op by op."""
    for device, cap in enumerate(problem.capacity):
        if cap is None:
            continue
        held = []
        static = 0
        for stage, holder in enumerate(layout.placement):
            if holder != device:
                continue
            for m in range(problem.n_microbatches):
                own, activation, weight = problem.stage_memory(*layout.bounds[stage : stage + 2], m)
                b_end = start[B, stage, m] + length[B, stage, m]
                held.append((start[F, stage, m], b_end, activation))
                if problem.split:
                    held.append((b_end, start[W, stage, m] + length[W, stage, m], weight))
            static += own
        if static > cap:
            return False
        for instant in {begin for begin, _, _ in held}:
            if static + sum(size for begin, end, size in held if begin <= instant < end) > cap:
                return False
    return True


# ---- all permutations of every device's ops ----------------------------------------------------


def by_permutations(problem: Problem) -> int | None:
    """Return the optimum: every layout, every order on every device, longest paths.

    Ops start as early as their order allows, so plans where a device waits for ops of length zero
    to coincide are not seen (the oracle refuses them).
    """
    best: int | None = None
    for layout in legal_layouts(problem):
        length, arcs = ops_of(problem, layout), arcs_of(problem, layout)
        rows = [[op for op in length if layout.placement[op[1]] == d] for d in range(problem.n_devices)]
        for orders in product(*(list(_orders(row, arcs)) for row in rows)):
            tied = [*arcs, *((one, other, 0) for order in orders for one, other in pairwise(order))]
            if not _acyclic(length, tied):
                continue
            start = _earliest(length, tied)
            if start is None or not memory_fits(problem, layout, start, length):
                continue
            if problem.objective == "makespan":
                value = max(start[op] + length[op] for op in length)
            else:
                value = _least_span(length, tied, orders)
            best = value if best is None else min(best, value)
    return best


def permutations_to_try(problem: Problem) -> int:
    """Return how many combinations of orders `by_permutations` looks at, at most."""
    kinds = 3 if problem.split else 2
    return sum(
        prod(factorial(kinds * problem.n_microbatches * layout.placement.count(d)) for d in range(problem.n_devices))
        for layout in legal_layouts(problem)
    )


def _orders(row: list[Key], arcs: Arcs) -> Iterator[tuple[Key, ...]]:
    for order in permutations(row):
        place = {op: index for index, op in enumerate(order)}
        if all(place[one] < place[other] for one, other, _ in arcs if one in place and other in place):
            yield order


def _earliest(length: dict[Key, int], arcs: Arcs, extra: Arcs = ()) -> dict[Key, int] | None:
    """Return the least starts, or None where they run away (Bellman-Ford)."""
    start = dict.fromkeys(length, 0)
    for _ in range(len(length) + 1):
        before = dict(start)
        for one, other, delay in (*arcs, *extra):
            start[other] = max(start[other], start[one] + length[one] + delay)
        if start == before:
            return start
    return None


def _acyclic(length: dict[Key, int], arcs: Arcs) -> bool:
    left = set(length)
    while left:
        free = {op for op in left if not any(other == op and one in left for one, other, _ in arcs)}
        if not free:
            return False
        left -= free
    return True


def _least_span(length: dict[Key, int], arcs: Arcs, orders: tuple[tuple[Key, ...], ...]) -> int:
    low, high = 0, sum(length.values()) + sum(delay for _, _, delay in arcs)
    while low < high:
        middle = (low + high) // 2
        extra = [(order[-1], order[0], -middle) for order in orders]
        if _earliest(length, arcs, extra) is None:
            low = middle + 1
        else:
            high = middle
    return low


# ---- all start times ---------------------------------------------------------------------------


def by_start_times(problem: Problem, horizon: int) -> int | None:
    """Return the optimum over all integer starts up to `horizon`: the semantics, word for word."""
    best: int | None = None
    for layout in legal_layouts(problem):
        for value in _improving(problem, layout, horizon, best):
            best = value
    return best


def _improving(problem: Problem, layout: Layout, horizon: int, best: int | None) -> Iterator[int]:
    """Yield better and better values of one layout."""
    length, arcs = ops_of(problem, layout), arcs_of(problem, layout)
    sequence = sorted(length, key=lambda op: (op[0], -op[1] if op[0] == B else op[1], op[2]))
    needs = {op: [(one, delay) for one, other, delay in arcs if other == op] for op in sequence}
    start: dict[Key, int] = {}

    def on(device: int) -> list[Key]:
        return [op for op in start if layout.placement[op[1]] == device]

    def value() -> int:
        if problem.objective == "makespan":
            return max(start[op] + length[op] for op in start)
        used = [mine for device in range(problem.n_devices) if (mine := on(device))]
        return max(max(start[op] + length[op] for op in mine) - min(start[op] for op in mine) for mine in used)

    def place(index: int) -> Iterator[int]:
        nonlocal best
        if start and best is not None and value() >= best:
            return
        if index == len(sequence):
            if memory_fits(problem, layout, start, length):
                best = value()
                yield best
            return
        op = sequence[index]
        others = on(layout.placement[op[1]])
        soonest = max((start[one] + length[one] + delay for one, delay in needs[op]), default=0)
        for begin in range(soonest, horizon - length[op] + 1):
            end = begin + length[op]
            if all(end <= start[one] or start[one] + length[one] <= begin for one in others):
                start[op] = begin
                yield from place(index + 1)
                del start[op]

    yield from place(0)
