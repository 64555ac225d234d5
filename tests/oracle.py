"""Exhaustive search for the true optimum of tiny instances: no CP-SAT, no timing pass.

Every legal layout (number of stages, cuts, placement) is visited; per layout a branch and bound appends
ops to devices. It shares nothing with the solver but `Problem` (durations, sizes, delays) and `Layout`.

**Clocks.** For fixed device orders all times are longest paths. The search keeps, per *clock*, the longest
path from the clock's source to each device's last end (`free`) and to each op that waits (`ready`).

* makespan: one clock whose source is time 0.
* span: one clock per device, whose source is the start of the device's first op. With L[d][e] the longest
  path from the first start on d to the last end on e, a span of T needs first starts x with
  ``x_d + L[d][e] - T <= x_e`` for all d and e, so the least T is the largest mean over the cycles of L,
  rounded up.

Both grow with the clocks, so a state (set of appended ops) whose clocks are all at least those of a fully
explored state of the same ops cannot be better.

**Branching.** All orders are enumerated, but for dominated ones. An op is *harmless* if moving it to an
earlier place in its device's order, everything else keeping its time, cannot break the memory limit: W; B
when it hands over no more than it frees; anything where memory cannot bind.

1. If a harmless available op ends, on every clock, no later than any available op could, then whatever is not
   available yet starts after that end. So the next op on its device is that op, or an available one
   that starts before that end: branch on those.
2. Else, if every op that could come next on some device is available, branch on that device alone.
3. Else branch on all available ops.

In each case a candidate is skipped when a harmless one fits before it.

**Memory.** A device's level changes at its own ops only, so it depends on its order. What is freed at t can
be taken at t, so the level counts after all events of an instant; only ops of length zero can share one.
Two cases where a device would have to *wait* until ops of length zero coincide are refused
(`OutOfScopeError`): a stage with ``weight_activation > activation`` on a limited device that also runs B or W
ops of length zero, and a round trip F .. B of length zero that leaves a limited device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise, permutations, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octocp.problem import B, F, Problem, W
from octocp.schedule import Layout

NEVER = float("-inf")
DIVES = 24


class OutOfScopeError(NotImplementedError):
    """Ops of length zero whose coincidence would matter for memory; see the module's text."""


@dataclass(frozen=True, eq=False)
class Answer:
    """An optimal plan.

    Attributes
    ----------
    value : int
        The objective in ticks.
    start : array of int64, shape (kinds, stages, microbatches)
        Starts that attain it.
    nodes : int
        Branch-and-bound nodes that the whole search took.
    """

    value: int
    layout: Layout
    start: NDArray[np.int64]
    nodes: int


def optimum(problem: Problem, fifo: bool = True, *, symmetry: bool = False) -> Answer | None:
    """Return an optimal plan over all layouts and orders, or None where no plan is legal.

    Parameters
    ----------
    fifo : bool
        Keep every (stage, kind) in microbatch order: free for equal microbatches, wrong for others.
        False enumerates all orders: for about 12 ops.
    symmetry : bool
        Visit only layouts whose interchangeable devices are numbered by first use (`Layout.canonical`).
    """
    if fifo and not problem.uniform_microbatches:
        raise ValueError("fifo is only free for equal microbatches")
    networks = []
    seen = set()
    for layout in legal_layouts(problem):
        if symmetry and layout != layout.canonical(problem):
            continue
        network = _Network(problem, layout, fifo)
        if network.key in seen or not network.static_fits:
            continue
        seen.add(network.key)
        networks.append(network)
    networks.sort(key=lambda network: network.bound)
    best: tuple[int, _Network, list[list[int]]] | None = None
    limit = 1 + max((network.serial for network in networks), default=0)
    nodes = 0
    for budget, chosen in ((1, networks[:DIVES]), (None, networks)):
        for network in chosen:
            if network.bound >= limit:
                break
            search = _Search(network, limit, leaves=budget)
            search.run()
            nodes += search.nodes
            if search.orders is not None:
                limit, best = search.limit, (search.limit, network, search.orders)
    if best is None:
        return None
    value, network, orders = best
    start = network.times(orders, value)
    if start is None or network.times(orders, value - 1) is not None:
        raise AssertionError("the clocks and the difference constraints disagree")
    return Answer(value, network.layout, start, nodes)


# ---- layouts ---------------------------------------------------------------------------------


def legal_layouts(problem: Problem) -> Iterator[Layout]:
    """Yield every legal partition and placement; interchangeable devices are not identified."""
    layers, devices = problem.n_layers, problem.n_devices
    inner = [layer for layer in range(1, layers) if problem.cuttable[layer]]
    for stages in range(problem.min_stages, problem.max_stages + 1):
        placements = list(_placements(problem, stages))
        for cuts in combinations(inner, stages - 1):
            bounds = (0, *cuts, layers)
            sizes = tuple(bounds[stage + 1] - bounds[stage] for stage in range(stages))
            if problem.partition is not None and sizes != problem.partition:
                continue
            stage_of = [stage for stage, size in enumerate(sizes) for _ in range(size)]
            for placement in placements:
                held = [placement.count(device) for device in range(devices)]
                if min(held) < 1 or max(held) > problem.max_per_device:
                    continue
                if all(len({placement[stage_of[layer]] for layer in group}) == 1 for group in problem.colocate):
                    yield Layout(bounds, placement)


def _placements(problem: Problem, stages: int) -> Iterator[tuple[int, ...]]:
    devices = problem.n_devices
    if problem.family == "free":
        yield from product(range(devices), repeat=stages)
    elif problem.family == "fixed":
        if problem.placement is not None and len(problem.placement) == stages:
            yield problem.placement
    elif problem.family == "linear":
        if stages == devices:
            yield tuple(range(devices))
    elif problem.family == "interleaved":
        yield tuple(stage % devices for stage in range(stages))
    else:
        there_and_back = [*range(devices), *reversed(range(devices))]
        yield tuple(there_and_back[stage % (2 * devices)] for stage in range(stages))


# ---- one layout ------------------------------------------------------------------------------


class _Arc(NamedTuple):
    target: int
    delay: int


class _Network:
    """The ops of one layout with their precedence, sizes and static longest paths."""

    def __init__(self, problem: Problem, layout: Layout, fifo: bool) -> None:
        self.problem, self.layout, self.fifo = problem, layout, fifo
        self.span = problem.objective == "span"
        kinds, stages, microbatches = len(problem.kinds), layout.stages, problem.n_microbatches
        self.shape = (kinds, stages, microbatches)
        self.devices = problem.n_devices
        self.ops = list(product(range(kinds), range(stages), range(microbatches)))
        number = {op: index for index, op in enumerate(self.ops)}
        place, bounds = layout.placement, layout.bounds
        self.device = [place[stage] for _, stage, _ in self.ops]
        self.kind = [kind for kind, _, _ in self.ops]
        self.length = [
            problem.duration(kind, bounds[stage], bounds[stage + 1], place[stage], microbatch)
            for kind, stage, microbatch in self.ops
        ]
        self.serial = sum(self.length)
        self.arcs: list[list[_Arc]] = [[] for _ in self.ops]

        def arc(one: tuple[int, int, int], other: tuple[int, int, int], delay: int = 0) -> None:
            self.arcs[number[one]].append(_Arc(number[other], delay))

        for stage, microbatch in product(range(stages), range(microbatches)):
            if stage:
                delay = 0
                if place[stage - 1] != place[stage]:
                    delay = problem.delay(bounds[stage], place[stage - 1], place[stage], microbatch)
                self.serial += 2 * delay
                arc((F, stage - 1, microbatch), (F, stage, microbatch), delay)
                arc((B, stage, microbatch), (B, stage - 1, microbatch), delay)
            arc((F, stage, microbatch), (B, stage, microbatch))
            if problem.split:
                arc((B, stage, microbatch), (W, stage, microbatch))
        self.true_arcs = [list(arcs) for arcs in self.arcs]
        if fifo:
            for kind, stage, microbatch in self.ops:
                if microbatch + 1 < microbatches:
                    arc((kind, stage, microbatch), (kind, stage, microbatch + 1))
        # F by stage, then B by falling stage, then W: a topological order, chains included.
        self.topological = sorted(
            range(len(self.ops)),
            key=lambda op: (
                self.kind[op],
                (-1 if self.kind[op] == B else 1) * self.ops[op][1],
                self.ops[op][2],
            ),
        )
        self._memory()
        self._paths()
        self.key = (
            tuple(self.length),
            tuple(self._relabelled()),
            tuple(tuple(arcs) for arcs in self.arcs),
            tuple(self.rise),
            tuple((self.static[device], self.capacity[device]) for device in dict.fromkeys(place)),
        )
        # Span: what the first start on each device precedes, by device.
        self.root_reach: list[list[float]] = [[NEVER] * self.devices for _ in range(self.devices)]
        self.bound = self._root_bound()

    def _relabelled(self) -> list[int]:
        """Return each op's device, devices numbered by first use: all that the sub-problem depends on."""
        names: dict[int, int] = {}
        return [names.setdefault(device, len(names)) for device in self.device]

    def _memory(self) -> None:
        """Prepare memory: what each op adds at its start (F) or end, and where the limit cannot bind."""
        problem, layout = self.problem, self.layout
        self.capacity = list(problem.capacity)
        self.static = [0] * self.devices
        most = [0] * self.devices
        self.rise = []
        sizes = {}
        for stage, device in enumerate(layout.placement):
            for microbatch in range(problem.n_microbatches):
                static, activation, weight = problem.stage_memory(*layout.bounds[stage : stage + 2], microbatch)
                sizes[stage, microbatch] = activation, weight
                most[device] += max(activation, weight if problem.split else 0)
            self.static[device] += static
        self.static_fits = all(
            cap is None or static <= cap for static, cap in zip(self.static, self.capacity, strict=True)
        )
        for kind, stage, microbatch in self.ops:
            activation, weight = sizes[stage, microbatch]
            if not problem.split:
                weight = 0
            self.rise.append((activation, weight - activation, -weight)[kind])
        for device in range(self.devices):
            cap = self.capacity[device]
            if cap is not None and self.static[device] + most[device] <= cap:
                self.capacity[device] = None
        self.harmless = [self.rise[op] <= 0 or self.capacity[self.device[op]] is None for op in range(len(self.ops))]
        self.zero_on = [
            any(self.device[op] == device and self.length[op] == 0 for op in range(len(self.ops)))
            for device in range(self.devices)
        ]
        if self.static_fits:
            self._refuse_waiting_for_memory()

    def _refuse_waiting_for_memory(self) -> None:
        length = dict(zip(self.ops, self.length, strict=True))
        stages = self.layout.stages
        for op, (kind, stage, microbatch) in enumerate(self.ops):
            device = self.device[op]
            if self.capacity[device] is None:
                continue
            if kind == B and self.rise[op] > 0:
                for other in range(len(self.ops)):
                    if self.device[other] == device and self.kind[other] != F and self.length[other] == 0:
                        raise OutOfScopeError("B takes more than it frees next to ops of length zero")
            if kind == F and self.rise[op] > 0 and len(set(self.layout.placement[stage:])) > 1:
                round_trip = [(k, s, microbatch) for k in (F, B) for s in range(stage, stages)]
                if all(length[one] == 0 for one in round_trip):
                    raise OutOfScopeError("a round trip of length zero")

    def _paths(self) -> None:
        """Longest static paths: head of every op, and from its end to the end of any op on each device."""
        count = len(self.ops)
        self.head = [0] * count
        for one in self.topological:
            for other, delay in self.arcs[one]:
                self.head[other] = max(self.head[other], self.head[one] + self.length[one] + delay)
        self.tails: list[list[float]] = [[NEVER] * self.devices for _ in range(count)]
        for one in reversed(self.topological):
            row = self.tails[one]
            row[self.device[one]] = 0
            for other, delay in self.arcs[one]:
                for device in range(self.devices):
                    row[device] = max(row[device], delay + self.length[other] + self.tails[other][device])
        ancestors = [0] * count
        for one in self.topological:
            for other, _ in self.arcs[one]:
                ancestors[other] |= ancestors[one] | 1 << one
        here = [sum(1 << op for op in range(count) if self.device[op] == device) for device in range(self.devices)]
        self.above = [ancestors[op] & here[self.device[op]] for op in range(count)]
        self.on = [[op for op in range(count) if self.device[op] == device] for device in range(self.devices)]
        self.load = [sum(self.length[op] for op in ops) for ops in self.on]
        self.least_tail = [min((max(self.tails[op]) for op in ops), default=0) for ops in self.on]
        self.least_head = [min((self.head[op] for op in ops), default=0) for ops in self.on]
        self.waits = [0] * count
        for arcs in self.arcs:
            for other, _ in arcs:
                self.waits[other] += 1
        self.crossing = [
            arc.target
            for one, arcs in enumerate(self.arcs)
            for arc in arcs
            if self.device[arc.target] != self.device[one]
        ]

    def _root_bound(self) -> int:
        if self.span:
            for device, ops in enumerate(self.on):
                row = self.root_reach[device]
                if self.fifo:
                    # The first op is F of the device's first stage and microbatch: all others here follow it.
                    first = min(ops, key=lambda op: (self.kind[op], *self.ops[op][1:]))
                    row[:] = [self.length[first] + tail for tail in self.tails[first]]
                row[device] = max(row[device], self.load[device])
            return _cycle_value(self.root_reach)
        paths = max(self.head[op] + self.length[op] + max(self.tails[op]) for op in range(len(self.ops)))
        loads = max(
            head + load + tail for head, load, tail in zip(self.least_head, self.load, self.least_tail, strict=True)
        )
        return int(max(paths, loads))

    def times(self, orders: list[list[int]], value: int) -> NDArray[np.int64] | None:
        """Return starts that attain `value` with these device orders, or None: Bellman-Ford, no search."""
        arcs = [
            (one, other, self.length[one] + delay) for one, row in enumerate(self.true_arcs) for other, delay in row
        ]
        for order in orders:
            arcs += [(one, other, self.length[one]) for one, other in pairwise(order)]
            if self.span and order:
                arcs.append((order[-1], order[0], self.length[order[-1]] - value))
        start = [0] * len(self.ops)
        for _ in range(len(self.ops) + 1):
            changed = False
            for one, other, least in arcs:
                if start[one] + least > start[other]:
                    start[other] = start[one] + least
                    changed = True
            if not changed:
                break
        else:
            return None
        if not self.span and max(start[op] + self.length[op] for op in range(len(self.ops))) > value:
            return None
        return np.array(start, dtype=np.int64).reshape(self.shape)


@cache
def _cycles(devices: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Every simple cycle of the complete graph on the devices, loops included, as its arcs."""
    found = []
    for count in range(1, devices + 1):
        for path in permutations(range(devices), count):
            if path[0] == min(path):
                found.append(tuple(zip(path, (*path[1:], path[0]), strict=True)))
    return tuple(found)


def _cycle_value(rows: list[list[float]]) -> int:
    """Return the largest cycle mean of a matrix, rounded up."""
    means = []
    for cycle in _cycles(len(rows)):
        total = sum(rows[d][e] for d, e in cycle)
        if total != NEVER:
            means.append(-(-int(total) // len(cycle)))
    return max(means, default=0)


# ---- branch and bound over orders ------------------------------------------------------------


class _Search:
    """Branch and bound over the device orders of one network, for values below `limit`."""

    def __init__(self, network: _Network, limit: int, leaves: int | None = None) -> None:
        self.net, self.limit, self.leaves = network, limit, leaves
        self.orders: list[list[int]] | None = None
        self.nodes = 0
        devices, count = network.devices, len(network.ops)
        self.clocks = devices if network.span else 1
        # One more clock for the span, from time 0: it only ranks the children.
        self.rank = self.clocks if network.span else 0
        total = self.clocks + (1 if network.span else 0)
        self.free: list[list[float]] = [[NEVER] * devices for _ in range(total)]
        self.ready: list[list[float]] = [[NEVER] * count for _ in range(total)]
        self.free[self.rank] = list(network.least_head)
        self.ready[self.rank] = [0] * count
        self.reach: list[list[float]] = (
            [list(row) for row in network.root_reach] if network.span else [[NEVER] * devices]
        )
        self.left = list(network.load)
        self.level = list(network.static)
        self.waits = list(network.waits)
        self.built: list[list[int]] = [[] for _ in range(devices)]
        self.explored: dict[int, list[tuple[float, ...]]] = {}
        self.completes: dict[int, bool] = {}
        self.everything = (1 << count) - 1
        self.limited = [device for device in range(devices) if network.capacity[device] is not None]
        self.check_completes = bool(self.limited) and not any(network.zero_on[device] for device in self.limited)

    def run(self) -> None:
        """Search; leaves the best orders in `orders` and their value in `limit`."""
        available = [op for op, waits in enumerate(self.waits) if not waits]
        if self.check_completes and not self._completes(0):
            return
        self._descend(0, available)

    # Returns True to stop the whole search.
    def _descend(self, mask: int, available: list[int]) -> bool:
        self.nodes += 1
        if mask == self.everything:
            value = self._value()
            if value >= self.limit:
                return False
            self.limit, self.orders = value, [list(order) for order in self.built]
            if self.leaves is not None:
                self.leaves -= 1
                return self.leaves <= 0
            return self.limit <= self.net.bound
        net = self.net
        settled = all(self.level[device] <= net.capacity[device] for device in self.limited)  # type: ignore[operator]
        vector = self._vector(mask) if settled else ()
        if settled and self._dominated(mask, vector):
            return False
        for op in self._candidates(mask, available):
            undo = self._append(op)
            if undo is None:
                continue
            following = [other for other in available if other != op]
            for other, _ in net.arcs[op]:
                self.waits[other] -= 1
                if not self.waits[other]:
                    following.append(other)
            after = mask | 1 << op
            stop = False
            if not self._hopeless() and (net.harmless[op] or not self.check_completes or self._completes(after)):
                stop = self._descend(after, following)
            for other, _ in net.arcs[op]:
                self.waits[other] += 1
            self._undo(op, undo)
            if stop:
                return True
        if settled:
            self._remember(mask, vector)
        return False

    # ---- values and bounds

    def _value(self) -> int:
        if not self.net.span:
            return int(max(self.free[0]))
        return _cycle_value([self.free[clock] for clock in range(self.clocks)])

    def _hopeless(self) -> bool:
        """Whether no completion beats the limit."""
        most = self.limit - 1
        if not self.net.span:
            return max(self.reach[0]) > most
        reach = self.reach
        for cycle in _cycles(self.net.devices):
            total = 0.0
            for d, e in cycle:
                total += reach[d][e]
            if total > most * len(cycle):
                return True
        return False

    # ---- states

    def _vector(self, mask: int) -> tuple[float, ...]:
        values: list[float] = []
        device = self.net.device
        waiting = [op for op in self.net.crossing if not mask >> op & 1]
        for clock in range(self.clocks):
            free, ready = self.free[clock], self.ready[clock]
            values += free
            for op in waiting:
                soonest = free[device[op]]
                values.append(ready[op] if ready[op] > soonest else soonest)
        return tuple(values)

    def _dominated(self, mask: int, vector: tuple[float, ...]) -> bool:
        for known in self.explored.get(mask, ()):
            for one, other in zip(known, vector, strict=True):
                if one > other:
                    break
            else:
                return True
        return False

    def _remember(self, mask: int, vector: tuple[float, ...]) -> None:
        kept = [
            known
            for known in self.explored.get(mask, ())
            if any(one < other for one, other in zip(known, vector, strict=True))
        ]
        kept.append(vector)
        self.explored[mask] = kept

    # ---- branching

    def _candidates(self, mask: int, available: list[int]) -> list[int]:
        net, clocks = self.net, range(self.clocks)
        device, length = net.device, net.length
        starts = {
            op: [max(self.free[clock][device[op]], self.ready[clock][op]) for clock in clocks] for op in available
        }
        ends = {op: [start + length[op] for start in starts[op]] for op in available}
        soonest = [min(ends[op][clock] for op in available) for clock in clocks]
        chosen = None
        for op in available:
            if net.harmless[op] and ends[op] == soonest:
                chosen = [other for other in available if device[other] == device[op]]
                break
        if chosen is None:
            chosen = self._closed_device(mask, available) or list(available)
        # Skip what a kept harmless op fits before.
        kept: list[int] = []
        chosen.sort(key=lambda op: (not net.harmless[op], ends[op], op))
        for op in chosen:
            if not any(
                net.harmless[other]
                and device[other] == device[op]
                and all(end <= start for end, start in zip(ends[other], starts[op], strict=True))
                for other in kept
            ):
                kept.append(op)
        free, ready = self.free[self.rank], self.ready[self.rank]
        kept.sort(key=lambda op: (max(free[device[op]], ready[op]), -max(net.tails[op]), op))
        return kept

    def _closed_device(self, mask: int, available: list[int]) -> list[int] | None:
        """Return the available ops of the device with the fewest whose next op must be among them, if any."""
        net = self.net
        open_ops = set(available)
        best: list[int] | None = None
        for ops in net.on:
            here = []
            for op in ops:
                if mask >> op & 1:
                    continue
                if op in open_ops:
                    here.append(op)
                elif not net.above[op] & ~mask:
                    break
            else:
                if here and (best is None or len(here) < len(best)):
                    best = here
        return best

    # ---- appending

    def _append(self, op: int) -> tuple[list[float], list[list[float]], list[list[float]], int] | None:
        """Append an op to its device's order, or return None where memory forbids it."""
        net = self.net
        device, length = net.device[op], net.length[op]
        capacity, level = net.capacity[device], self.level[device]
        starts = [max(free[device], ready[op]) for free, ready in zip(self.free, self.ready, strict=True)]
        if net.span and not self.built[device]:
            starts[device] = 0
        if capacity is not None:
            together = length == 0 and all(starts[clock] == self.free[clock][device] for clock in range(self.clocks))
            if level > capacity and not together:
                return None
            raised = level + net.rise[op]
            if raised > capacity and ((length and net.kind[op] == F) or not net.zero_on[device]):
                return None
        old_free = [free[device] for free in self.free]
        old_reach = [list(row) for row in self.reach]
        old_ready = []
        self.level[device] += net.rise[op]
        self.left[device] -= length
        self.built[device].append(op)
        left = self.left[device] + (0 if net.span else net.least_tail[device])
        tails = net.tails[op]
        for clock, start in enumerate(starts):
            end = start + length
            self.free[clock][device] = end
            ready = self.ready[clock]
            old = []
            for other, delay in net.arcs[op]:
                old.append(ready[other])
                if end + delay > ready[other]:
                    ready[other] = end + delay
            old_ready.append(old)
            if clock < self.clocks and end != NEVER:
                row = self.reach[clock]
                row[device] = max(row[device], end + left)
                for target in range(net.devices):
                    if end + tails[target] > row[target]:
                        row[target] = end + tails[target]
        return old_free, old_reach, old_ready, device

    def _undo(self, op: int, undo: tuple[list[float], list[list[float]], list[list[float]], int]) -> None:
        net = self.net
        old_free, self.reach, old_ready, device = undo
        for clock, value in enumerate(old_free):
            self.free[clock][device] = value
            ready = self.ready[clock]
            for (other, _), before in zip(net.arcs[op], old_ready[clock], strict=True):
                ready[other] = before
        self.level[device] -= net.rise[op]
        self.left[device] += net.length[op]
        self.built[device].pop()

    # ---- memory alone

    def _completes(self, mask: int) -> bool:
        """Whether some order of the rest respects memory, times aside; needs ops of positive length."""
        if mask in self.completes:
            return self.completes[mask]
        net = self.net
        level = list(net.static)
        waits = list(net.waits)
        for op in range(len(net.ops)):
            if mask >> op & 1:
                level[net.device[op]] += net.rise[op]
                for other, _ in net.arcs[op]:
                    waits[other] -= 1
        done = mask
        progress = True
        while progress:
            progress = False
            for op in range(len(net.ops)):
                if not done >> op & 1 and not waits[op] and net.harmless[op]:
                    done |= 1 << op
                    level[net.device[op]] += net.rise[op]
                    for other, _ in net.arcs[op]:
                        waits[other] -= 1
                    progress = True
        answer = done == self.everything
        for op in range(len(net.ops)):
            if answer:
                break
            if not done >> op & 1 and not waits[op]:
                capacity = net.capacity[net.device[op]]
                if capacity is None or level[net.device[op]] + net.rise[op] <= capacity:
                    answer = self._completes(done | 1 << op)
        self.completes[mask] = answer
        return answer
