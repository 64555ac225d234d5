"""The local search over explicit orders: against the timing pass, rule by rule, and what it makes of bad orders."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from octocp.checker import check_plan
from octocp.costs import build_problem
from octocp.decode import to_plan
from octocp.errors import InfeasibleError
from octocp.heuristics import ONE_F_ONE_B
from octocp.problem import B, F, Problem, W
from octocp.progress import Progress
from octocp.schedule import Layout, Op, Schedule
from octocp.search.evaluator import NEVER, new_scratch
from octocp.search.local import LocalSearch
from octocp.search.measure import measure
from octocp.search.orders import KIND_BITS, KIND_MASK, critical_path, run_orders
from octocp.search.polish import Polish
from octocp.timing import DeadlockError, time_orders
from oracle import optimum
from random_instances import random_instance
from tiny import problem


def made(seed: int) -> Problem | None:
    try:
        return build_problem(random_instance(seed, 60))
    except InfeasibleError:
        return None


class Run:
    """One run of `run_orders` and what it filled in."""

    def __init__(self, local: LocalSearch, layout: Layout, orders: list[list[Op]]) -> None:
        given = local.problem
        self.local, self.stages = local, layout.stages
        self.devices, self.microbatches, kinds = given.n_devices, given.n_microbatches, len(given.kinds)
        cuts = np.array([local.unit_of[bound] for bound in layout.bounds], dtype=np.int64)
        self.place = np.array(layout.placement, dtype=np.int64)
        self.length = np.array([len(ops) for ops in orders], dtype=np.int64)
        self.tokens = np.zeros((self.devices, max(self.length)), dtype=np.int64)
        for device, ops in enumerate(orders):
            self.tokens[device, : len(ops)] = [(op.stage << KIND_BITS) + op.kind for op in ops]
        self.duration = np.zeros((3, self.stages), dtype=np.int64)
        self.entry = np.zeros(self.stages + 1, dtype=np.int64)
        sizes, room = np.zeros((2, self.stages), dtype=np.int64), np.zeros(self.devices, dtype=np.int64)
        scratch = new_scratch(self.stages, self.devices)
        assert measure(
            local.shape, local.scaling, local.prefix, local.link_class, local.delays, local.capacity, local.groups,
            self.stages, cuts, self.place, self.duration, self.entry, sizes, room, scratch[4],
        )  # fmt: skip
        ops = self.stages * kinds * self.microbatches
        self.start = np.zeros((3, self.stages, self.microbatches), dtype=np.int64)
        self.position, self.at = np.zeros_like(self.start), np.zeros_like(self.tokens)
        self.value = run_orders(
            self.stages, self.microbatches, kinds, self.devices, self.duration, self.place, self.entry, sizes, room,
            given.has_memory_limit, self.tokens, self.length, NEVER - 1, self.start, self.at, self.position,
            np.zeros(ops, dtype=np.int64), np.zeros((3, self.stages), dtype=np.int64),
            np.zeros(self.devices + ops + 1, dtype=np.int64), scratch,
        )  # fmt: skip

    def path(self) -> list[tuple[int, int]]:
        """Return a critical path as (device, place), the last op first."""
        found = np.zeros((2, int(self.length.sum()) + 1), dtype=np.int64)
        count = critical_path(
            self.stages, self.devices, False, self.value, self.duration, self.place, self.entry, self.tokens,
            self.length, self.start, self.at, self.position, found,
        )  # fmt: skip
        return [(int(device), int(place)) for device, place in found[:, :count].T]

    def op(self, device: int, place: int) -> Op:
        token = int(self.tokens[device, place])
        return Op(token & KIND_MASK, token >> KIND_BITS, int(self.at[device, place]))


def shuffled(orders: list[list[Op]], draw: random.Random) -> list[list[Op]]:
    """Return the orders with some ops elsewhere; microbatches in order within each (stage, kind)."""
    moved = []
    for ops in orders:
        tokens = [(op.kind, op.stage) for op in ops]
        for _ in range(draw.randrange(4)):
            token = tokens.pop(draw.randrange(len(tokens)))
            tokens.insert(draw.randrange(len(tokens) + 1), token)
        seen = Counter[tuple[int, int]]()
        row = []
        for kind, stage in tokens:
            row.append(Op(kind, stage, seen[kind, stage]))
            seen[kind, stage] += 1
        moved.append(row)
    return moved


def test_orders_run_as_the_timing_pass_runs_them() -> None:
    """Starts, deadlocks and memory, op for op, on random instances and random orders."""
    seen = Counter[str]()
    for seed in range(300):
        given = made(seed)
        if given is None:
            continue
        local, draw = LocalSearch(given, 6), random.Random(seed)
        for state in local.starts():
            schedule = local.schedule(state)
            if schedule is None:
                continue
            for _ in range(3):
                orders = shuffled(schedule.orders(), draw)
                run = Run(local, schedule.layout, orders)
                try:
                    timed = time_orders(given, schedule.layout, orders)
                except DeadlockError:
                    assert run.value >= NEVER
                    seen["deadlock"] += 1
                    continue
                if run.value >= NEVER:
                    # Ops of length zero hold memory here that the rules do not count.
                    assert timed.memory_excess() is not None or (schedule.layout.durations(given) == 0).any()
                    seen["memory"] += 1
                    continue
                assert timed.memory_excess() is None
                if given.objective == "makespan":
                    assert run.value == timed.makespan
                    assert np.array_equal(run.start[: len(given.kinds)], timed.start)
                    seen["delayed"] += given.has_delay
                    seen["timed"] += 1
    assert all(seen[what] > 20 for what in ("deadlock", "memory", "delayed", "timed")), seen


def test_a_critical_path_has_no_slack() -> None:
    """Each op of it starts when the one before it ends, plus the transfer; the first at zero, the last ends last."""
    for seed in range(80):
        given = made(seed)
        if given is None or given.objective != "makespan":
            continue
        local = LocalSearch(given, 6)
        for state in local.starts():
            schedule = local.schedule(state)
            if schedule is None:
                continue
            run = Run(local, schedule.layout, schedule.orders())
            if run.value >= NEVER:
                continue
            ops = [run.op(*here) for here in reversed(run.path())]
            assert run.start[ops[0]] == 0
            assert run.start[ops[-1]] + run.duration[ops[-1].kind, ops[-1].stage] == run.value
            for one, other in zip(ops, ops[1:], strict=False):
                gap = int(run.start[other] - run.start[one] - run.duration[one.kind, one.stage])
                transfer = int(run.entry[max(one.stage, other.stage)]) if one.kind == other.kind else 0
                same_device = run.place[one.stage] == run.place[other.stage]
                assert gap == 0 if same_device and one.stage == other.stage else gap in (0, transfer)


def polished(schedule: Schedule, seed: int = 0, moves: int = 4_000) -> Schedule:
    local = LocalSearch(schedule.problem, schedule.layout.stages)
    better = Polish(local, seed).improve(schedule, moves, 0.01, 0, seed)
    return schedule if better is None else better


def test_gpipe_becomes_optimal() -> None:
    """Two equal layers on two devices, F 1, B 1, W 1, two microbatches: 7 is optimal; GPipe takes 8."""
    given = problem("ab", {"a": (1, 1, 1), "b": (1, 1, 1)}, devices=2, microbatches=2)
    layout = Layout((0, 1, 2), (0, 1))
    rows = [[Op(kind, stage, m) for kind in (F, B, W) for m in range(2)] for stage in range(2)]
    before = time_orders(given, layout, rows)
    exact = optimum(given)
    assert exact is not None
    assert (before.makespan, exact.value, polished(before).makespan) == (8, 7, 7)


def test_what_is_polished_keeps_every_rule() -> None:
    """Random instances, orders of 1F1B or of the list scheduler: never worse, and the checker takes all of it."""
    seen = Counter[str]()
    for seed in range(120):
        given = made(seed)
        if given is None:
            continue
        local = LocalSearch(given, 6)
        for state in list(local.starts())[:4]:
            schedule = local.schedule(state)
            if schedule is None:
                continue
            after = polished(schedule, seed, 600)
            assert after.value <= schedule.value
            if after is schedule:
                continue
            assert after.layout.placement == schedule.layout.placement
            seen[given.objective] += 1
            seen["limited"] += given.has_memory_limit
            seen["cut"] += after.layout.bounds != schedule.layout.bounds
            if after.memory_excess() is None:
                assert check_plan(to_plan(after, random_instance(seed, 60), method="test", lower_bound=0)) == []
    assert all(seen[what] for what in ("makespan", "span", "limited", "cut")), seen


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_seed_polishes_the_same(seed: int) -> None:
    given = problem("abcd", {"a": (1, 2, 1), "b": (2, 2, 1), "c": (1, 1, 1), "d": (3, 2, 2)}, devices=2, microbatches=4)
    schedule = ONE_F_ONE_B.run(given, Layout((0, 1, 4), (0, 1)))
    one, other = polished(schedule, seed), polished(schedule, seed)
    assert one.layout == other.layout
    assert np.array_equal(one.start, other.start)
    assert one.value < schedule.value


def test_a_polished_plan_is_offered() -> None:
    """`run` gives the incumbent what it finds, and ends by itself once it finds no more."""
    given = problem("abcd", {"a": (1, 2, 1), "b": (2, 2, 1), "c": (1, 1, 1), "d": (3, 2, 2)}, devices=2, microbatches=4)
    schedule = ONE_F_ONE_B.run(given, Layout((0, 1, 4), (0, 1)))
    progress = Progress(60)
    progress.offer(schedule)
    found = Polish(LocalSearch(given, 2), 0).run(schedule, progress, 60)
    assert found is not None
    assert progress.value == found.value < schedule.value
