"""Plans to write for runtimes and read back: handmade ones, and random ones of known schedules."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate

from octocp.checker import check_plan
from octocp.costs import build_problem
from octocp.decode import to_plan
from octocp.errors import InfeasibleError
from octocp.heuristics.dispatch import Rule, Tables, dispatch
from octocp.problem import Problem
from octocp.schedule import Layout
from octocp.schema import Instance, Plan
from octocp.timing import time_orders
from random_instances import random_instance


def random_plans(seeds: range) -> Iterator[tuple[Instance, Problem, Plan]]:
    """Yield valid plans with an order of their own on random instances whose memory limits are lifted."""
    for seed in seeds:
        instance = unlimited(random_instance(seed))
        try:
            problem = build_problem(instance)
        except InfeasibleError:
            continue
        layout = random_layout(problem, seed)
        if layout is None:
            continue
        draw = random.Random(seed)
        made = dispatch(Tables(problem, layout, admission=False), Rule(draw.random() < 0.5, draw.random() < 0.5))
        assert made is not None
        schedule = time_orders(problem, layout, made.orders, fused=False)
        plan = to_plan(schedule, instance, method="random", lower_bound=0)
        assert check_plan(plan) == []
        yield instance, problem, plan


def unlimited(instance: Instance) -> Instance:
    """Return the instance without memory limits."""
    cluster = instance.cluster
    devices = cluster.devices
    if not isinstance(devices, int):
        devices = [device.model_copy(update={"memory_gb": None}) for device in devices]
    return instance.model_copy(
        update={"cluster": cluster.model_copy(update={"devices": devices, "memory_gb": None}), "objective": "makespan"}
    )


def random_layout(problem: Problem, seed: int) -> Layout | None:
    """Draw a layout that the problem allows, if a few draws find one."""
    draw = random.Random(seed)
    begins = [boundary for boundary in range(1, problem.n_layers) if problem.cuttable[boundary]]
    for _ in range(200):
        stages = draw.randint(problem.min_stages, min(problem.max_stages, len(begins) + 1))
        bounds = problem.fixed_bounds or (0, *sorted(draw.sample(begins, stages - 1)), problem.n_layers)
        stages = len(bounds) - 1
        placement = problem.placement_for(stages) or tuple(draw.randrange(problem.n_devices) for _ in range(stages))
        layout = Layout(tuple(bounds), placement)
        if len(placement) == stages and layout.violation(problem) is None:
            return layout
    return None


def plan_of(instance: Instance, partition: tuple[int, ...], placement: tuple[int, ...], orders, fused=False) -> Plan:
    """Time orders on an instance and return the plan."""
    problem = build_problem(instance)
    layout = Layout((0, *accumulate(partition)), placement)
    plan = to_plan(time_orders(problem, layout, orders, fused=fused), instance, method="made", lower_bound=0)
    assert check_plan(plan) == []
    return plan
