"""Plans to write for runtimes and read back: handmade ones, and random ones of known schedules."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from octocp.checker import check_plan
from octocp.costs import build_problem
from octocp.decode import to_plan
from octocp.errors import InfeasibleError, InputError
from octocp.heuristics.dispatch import Rule, Tables, dispatch
from octocp.heuristics.interleaved import interleaved
from octocp.problem import Problem
from octocp.report.export.runtime import runtime_files
from octocp.schedule import Layout
from octocp.schema import Instance, Plan
from octocp.timing import DeadlockError, time_orders
from random_instances import random_instance


def random_plans(seeds: range, *, zeros: bool = False, fused: bool = False) -> Iterator[tuple[Instance, Problem, Plan]]:
    """Yield valid plans with an order of their own on random instances whose memory limits are lifted.

    With `zeros`, most durations are zero, so that much happens at the same time; `fused` hands gradients on after W.
    """
    for seed in seeds:
        instance = unlimited(random_instance(seed))
        if zeros:
            instance = _with_zeros(instance, seed)
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
        try:
            schedule = time_orders(problem, layout, made.orders, fused=fused)
        except DeadlockError:  # an order that lives from the halves
            continue
        plan = to_plan(schedule, instance, method="random", lower_bound=0)
        assert check_plan(plan) == []
        yield instance, problem, plan


def _with_zeros(instance: Instance, seed: int) -> Instance:
    """Return the instance with most durations zero, and no overhead that would make them longer."""
    draw = random.Random(seed)
    times = ("forward_ms", "backward_input_ms", "backward_weight_ms")
    kinds = {
        key: kind.model_copy(update={time: 0.0 for time in times if draw.random() < 0.6})
        for key, kind in instance.model.kinds.items()
    }
    model = instance.model.model_copy(update={"kinds": kinds})
    training = instance.training.model_copy(update={"op_overhead_us": 0.0})
    return instance.model_copy(update={"model": model, "training": training})


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


def blocks(count: int, devices: int, microbatches: int, *, mtp: int = 0, **stages: Any) -> Instance:
    """An instance with an embedding, equal blocks, layers for prediction, and a head."""
    times = {"forward_ms": 1, "backward_input_ms": 1, "backward_weight_ms": 1}
    return Instance.model_validate(
        {
            "format": "octocp.instance/1",
            "name": "blocks",
            "model": {
                "name": "blocks",
                "layers": "E" + "T" * count + "m" * mtp + "L",
                "kinds": {
                    "E": {"name": "embedding", **times},
                    "T": {"name": "transformer", **times},
                    "m": {"name": "mtp", **times},
                    "L": {"name": "head", **times},
                },
            },
            "cluster": {"devices": devices},
            "microbatches": microbatches,
            "stages": {"max_per_device": None, **stages},
            "tick_us": 1000,
        }
    )


def hybrid(symbols: str, devices: int, microbatches: int = 4) -> Instance:
    """An instance of a hybrid model, a letter for each layer."""
    names = {"E": "embedding", "M": "mamba", "*": "attention", "-": "mlp", "#": "moe", "L": "head"}
    kinds = {key: {"name": name, "forward_ms": 1, "backward_input_ms": 1} for key, name in names.items()}
    return Instance.model_validate(
        {
            "format": "octocp.instance/1",
            "name": "hybrid",
            "model": {"name": "hybrid", "layers": list(symbols), "kinds": kinds},
            "cluster": {"devices": devices},
            "microbatches": microbatches,
            "tick_us": 1000,
        }
    )


def complaint(read: Any, *arguments: Any) -> str:
    """Return the one line of what must be refused."""
    with pytest.raises(InputError) as caught:
        read(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


VEE = {"partition": (1, 2, 2, 1), "placement": (0, 1, 1, 0)}


def text_of(plan: Plan, form: str, **more: Any) -> str:
    """Return the one file of a format."""
    (made,) = runtime_files(plan, form, Path("x"), **more).files.values()
    return made.decode()


def megatron_plan(ranks: int, chunks: int, group: int, *, split: bool = True, early: bool = False) -> Plan:
    """An interleaved plan, its backward fused; `early` hands gradients on after B."""
    stages = ranks * chunks
    instance = blocks(2 * stages - 2, ranks, 4 * ranks)
    training = instance.training.model_copy(update={"split_backward": split})
    instance = instance.model_copy(update={"training": training})
    problem = build_problem(instance)
    placement = tuple(s % ranks for s in range(stages))
    layout = Layout(tuple(range(0, 2 * stages + 1, 2)), placement)
    return plan_of(instance, (2,) * stages, placement, interleaved(problem, layout, group), fused=not early)
