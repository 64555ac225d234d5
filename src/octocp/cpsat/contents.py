"""Every layout that can beat a known plan: what one device may hold, and how such contents cover the layers.

A device's content, a few stages, bounds the objective whatever the other devices hold: the layers below and above it
are the same. Few contents stay below a good plan, and of these few sets cover every layer once. Where devices are alike
and hold few stages, all layouts that are left can be listed; `octocp.strategy` then has each one ordered exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import comb

from octocp.cpsat.assignment import activation_is_held
from octocp.problem import F, Problem
from octocp.schedule import Layout

# Steps through contents, and of the cover, before the list is given up: a second or two each.
MOST_CONTENTS = 800_000
MOST_STEPS = 10_000_000
MOST_LAYOUTS = 50_000
# Ways to choose a device's cuts beyond which it is not tried.
MOST_CHOICES = 100_000_000

Blocks = tuple[tuple[int, int], ...]  # of runs of layers [begin, end), upwards


@dataclass(frozen=True)
class Content:
    """What a device may hold, and the bound that this gives.

    Attributes
    ----------
    blocks : tuple of (int, int)
        Its stages, as ranges of indivisible runs; two may be adjacent.
    runs : int
        The same as a set of bits.
    bound : int
        Ticks.
    """

    blocks: Blocks
    runs: int
    bound: int


def listable(problem: Problem) -> bool:
    """Whether layouts differ by contents alone: devices and microbatches are alike, the placement is free.

    And whether a device has few enough stages to choose their cuts in every way.
    """
    cuts = len(problem.units) + 1
    return (
        comb(cuts, min(2 * problem.max_per_device, cuts // 2)) <= MOST_CHOICES
        and problem.family == "free"
        and problem.uniform_microbatches
        and problem.n_devices > 1
        and len(set(problem.device_class)) == 1
    )


def layouts_below(problem: Problem, value: int) -> list[tuple[int, Layout]] | None:
    """List all layouts that are not shown to be no better than a value, but for the numbers of devices.

    Parameters
    ----------
    value : int
        Of a known plan, ticks.

    Returns
    -------
    list of (bound, layout) or None
        By rising bound on the objective, in ticks; every plan below `value` has one of these layouts, once devices are
        numbered by their first stage. None where there are too many to list.
    """
    contents = _contents(problem, value)
    return None if contents is None else _covers(problem, contents)


def _contents(problem: Problem, value: int) -> list[Content] | None:
    """List the contents whose bound is below a value; None where there are too many to look at.

    A content's load is at most the value; the others hold no more, so it is at least all work less theirs.
    """
    limits = _Limits(problem, value)
    if limits.most < 0:
        return []
    found: list[Content] = []
    looked = 0
    stack: list[tuple[Blocks, int, int]] = [((), 0, 0)]  # blocks, runs, load
    while stack:
        blocks, runs, load = stack.pop()
        firsts = range(blocks[-1][1] if blocks else 0, limits.n)
        looked += len(firsts)
        if looked > MOST_CONTENTS:
            return None
        for begin in firsts:
            for end in limits.ends(begin):
                total = load + limits.load(begin, end)
                together = (*blocks, (begin, end))
                if limits.too_much(total, together):
                    break
                looked += 1
                held = runs | (1 << end) - (1 << begin)
                if total >= limits.least and limits.groups_whole(held):
                    looked += limits.n // 4  # which is what a bound takes
                    bound = limits.bound(together, total)
                    if bound < value:
                        found.append(Content(together, held, bound))
                if len(together) < problem.max_per_device and end < limits.n:
                    stack.append((together, held, total))
    return found


class _Limits:
    """A problem by runs of layers, and what its contents must keep."""

    def __init__(self, problem: Problem, value: int) -> None:
        self.problem = problem
        edges = [begin for begin, _ in problem.units] + [problem.n_layers]
        self.n = len(problem.units)
        self.prefix = [[row[edge] for edge in edges] for row in problem.prefix_ticks]
        # Durations are at least the scaled sums: what is left of a value after scaling bounds the sums.
        self.most = int((value - 1) / problem.min_scale)
        M = problem.n_microbatches
        self.every = [M * sum(row) for row in zip(*self.prefix, strict=True)]
        self.least = self.every[-1] - (problem.n_devices - 1) * self.most
        sizes = [sum(problem.stage_memory(*unit)[: 2 if activation_is_held(problem) else 1]) for unit in problem.units]
        self.size = list(accumulate(sizes, initial=0))
        self.capacity = problem.capacity[0]
        unit_of = [u for u, (begin, end) in enumerate(problem.units) for _ in range(begin, end)]
        self.groups = [sum({1 << unit_of[layer] for layer in group}) for group in problem.colocate]
        self.fixed: dict[int, int] | None = None
        if problem.fixed_bounds is not None:
            cuts = [edges.index(bound) for bound in problem.fixed_bounds]
            self.fixed = dict(zip(cuts, cuts[1:], strict=False))

    def load(self, begin: int, end: int) -> int:
        """Ticks of all microbatches of some runs."""
        ticks: int = self.every[end] - self.every[begin]
        return ticks

    def ends(self, begin: int) -> Sequence[int]:
        """Where a stage that begins at a run may end."""
        if self.fixed is None:
            return range(begin + 1, self.n + 1)
        return [self.fixed[begin]] if begin in self.fixed else []

    def too_much(self, load: int, blocks: Blocks) -> bool:
        """Whether a content, and every one that holds more, is too long or does not fit in memory."""
        first = blocks[0][0]
        head = 0 if self.problem.objective == "span" else self.prefix[F][first]
        if head + load > self.most:
            return True
        return self.capacity is not None and sum(self.size[end] - self.size[begin] for begin, end in blocks) > (
            self.capacity
        )

    def groups_whole(self, runs: int) -> bool:
        """Whether layers that share a device are all there, or none of them."""
        return all(runs & group in (0, group) for group in self.groups)

    def bound(self, blocks: Blocks, load: int) -> int:
        """Bound the objective, in ticks, by what a device with this content waits and does.

        For the makespan: what it waits before its first B or before a run arrives, its load, and what it waits
        at the end (proofs in `octocp.cpsat.assignment_waits`); and head, all F and B, and tail.
        For the span: its load.
        """
        problem, (f, b, w) = self.problem, self.prefix
        if problem.objective == "span":
            return self._scaled(load)
        M, first, last = problem.n_microbatches, blocks[0][0], blocks[-1][1]
        # Work of all microbatches below each run, on this device.
        own_f, own_b, own_w = ([0] * (self.n + 1) for _ in range(3))
        for begin, end in blocks:
            for u in range(begin, end):
                own_f[u + 1], own_b[u + 1], own_w[u + 1] = (row[u + 1] - row[u] for row in (f, b, w))
        own_f, own_b = ([M * ticks for ticks in accumulate(row)] for row in (own_f, own_b))
        weight = M * sum(own_w)
        back = w[1]  # the first run's W, after every other B
        wait = max(f[-1] + b[-1] - b[last] - own_f[-1], *(f[v] - own_f[v] for v in range(1, self.n + 1)))
        rest = max(0, *(b[v] + back - own_b[v] - weight for v in range(1, last + 1)))
        chain = f[first] + own_f[-1] + own_b[-1] + b[first] + (back if first else 0)
        return self._scaled(max(max(0, wait) + load + rest, chain))

    def _scaled(self, ticks: int) -> int:
        return int(-(-(ticks * self.problem.min_scale) // 1))


def _covers(problem: Problem, contents: list[Content]) -> list[tuple[int, Layout]] | None:
    """List how as many contents as there are devices cover every run once; None where there are too many ways."""
    n = len(problem.units)
    whole = (1 << n) - 1
    beginning: list[list[Content]] = [[] for _ in range(n)]
    holding: dict[int, list[Content]] = {}
    for content in contents:
        beginning[content.blocks[0][0]].append(content)
        holding.setdefault(content.runs, []).append(content)
    found: list[tuple[int, Layout]] = []
    steps = 0
    stack: list[tuple[int, tuple[Content, ...]]] = [(0, ())]
    while stack:
        covered, chosen = stack.pop()
        lowest = (~covered & (covered + 1)).bit_length() - 1
        last = len(chosen) == problem.n_devices - 1
        following = holding.get(whole & ~covered, []) if last else beginning[lowest]
        steps += len(following)
        if steps > MOST_STEPS or len(found) > MOST_LAYOUTS:
            return None
        for content in following:
            if content.runs & covered:
                continue
            together, held = (*chosen, content), covered | content.runs
            if not last:
                if held != whole:
                    stack.append((held, together))
                continue
            layout = _layout(problem, together)
            if problem.min_stages <= layout.stages <= problem.max_stages:
                found.append((max(one.bound for one in together), layout))
    return sorted(found, key=lambda pair: (pair[0], pair[1].bounds, pair[1].placement))


def _layout(problem: Problem, contents: Sequence[Content]) -> Layout:
    blocks = sorted((*block, device) for device, content in enumerate(contents) for block in content.blocks)
    bounds = [problem.units[begin][0] for begin, _, _ in blocks]
    return Layout((*bounds, problem.n_layers), tuple(device for *_, device in blocks))
