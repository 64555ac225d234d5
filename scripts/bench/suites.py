"""The benchmark suites: named lists of instances, shipped ones or built here from shipped models.

A suite maps each instance's name to a function that loads it, so that nothing is built before its turn.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from octocp import catalog, load_instance
from octocp.costs import build_problem
from octocp.heuristics import ONE_F_ONE_B
from octocp.heuristics.partition import uniform
from octocp.problem import B, F
from octocp.schedule import Layout, Op
from octocp.schema import Instance
from octocp.schema.files import load_model
from octocp.timing import time_orders

Loader = Callable[[], Instance]
Suite = dict[str, Loader]


def known_values() -> dict[str, dict[str, Any]]:
    """Return the best known value and bound of every instance that has one."""
    found: dict[str, dict[str, Any]] = json.loads((catalog.folder("instances") / "best_known.json").read_text())
    return found


def shipped(names: list[str]) -> Suite:
    """Return shipped instances as a suite."""
    return {name: (lambda name=name: load_instance(name)) for name in names}


def known() -> Suite:
    """Cases proven elsewhere, to be proven again."""
    return shipped(
        [name for name, entry in known_values().items() if entry["proven"] and "OctoCP" not in entry["source"]]
    )


def octopipe() -> Suite:
    """The 36 published instances: nine profiles, 4 and 8 devices, 8 and 16 microbatches, no memory limit."""
    files = catalog.instances()
    return shipped(
        [
            name
            for name, path in files.items()
            if path.parent.name == "octopipe" and name.rsplit("-", 1)[-1] in ("m8", "m16")
        ]
    )


def at_equal_memory(name: str) -> Instance:
    """Return a published instance at the memory of uniform 1F1B.

    One unit of activation per block and microbatch from F until B ends, none for embedding and head; every device may
    hold as many units as the busiest device of 1F1B on the uniform split.
    """
    data = load_instance(name).model_dump(exclude_none=True)
    for kind, costs in data["model"]["kinds"].items():
        costs["activation_gb"] = 0.0 if kind in ("E", "L") else 1.0
    problem = build_problem(Instance.model_validate(data))
    devices = tuple(range(problem.n_devices))
    peak = max(ONE_F_ONE_B.run(problem, Layout(uniform(problem, len(devices)), devices)).peak_memory())
    data["cluster"]["memory_gb"] = float(peak * problem.memory_unit_gb)
    data["stages"]["max_per_device"] = None
    return Instance.model_validate({**data, "name": f"{name}-equal-memory"})


def equal_memory() -> Suite:
    """The 36 published instances at the memory of uniform 1F1B."""
    return {f"{name}-equal-memory": (lambda name=name: at_equal_memory(name)) for name in octopipe()}


def slackpipe_case(devices: int, stages: int, microbatches: int, comm: int) -> Instance:
    """Return one case of SlackPipe's matrix: 8 equal layers a stage, F 1, B 2, cyclic placement; ticks are units."""
    return Instance.model_validate(
        {
            "format": "octocp.instance/1",
            "name": f"slackpipe-w{devices}-n{stages}-b{microbatches}-c{comm}",
            "model": {
                "format": "octocp.model/1",
                "name": "unit",
                "layers": "T" * (8 * stages),
                "kinds": {"T": {"forward_ms": 1.0, "backward_input_ms": 2.0}},
            },
            "cluster": {"devices": devices, "link": {"latency_us": comm * 1000.0}},
            "microbatches": microbatches,
            "training": {"split_backward": False},
            "stages": {"count": stages, "placement": "interleaved", "max_per_device": None},
            "tick_us": 1000.0,
        }
    )


def slackpipe() -> Suite:
    """SlackPipe's matrix of 81 cases."""
    cases = [
        (w, w * chunks, w * chunks * halves // 2, comm)
        for w in (2, 4, 8)
        for chunks in (1, 2, 4)
        for halves in (1, 2, 4)
        for comm in (0, 2, 8)
    ]
    return {f"slackpipe-w{w}-n{n}-b{b}-c{c}": (lambda case=(w, n, b, c): slackpipe_case(*case)) for w, n, b, c in cases}


def wavefront(instance: Instance) -> int:
    """Return the makespan of SlackPipe's wavefront order ("bfs") under the uniform split, ticks.

    Ops go by microbatch plus position in the chain F 0..N-1, B N-1..0; the later position first.
    """
    problem = build_problem(instance)
    stages = problem.min_stages
    layout = Layout(uniform(problem, stages), problem.placement_for(stages) or ())
    position = {(kind, s): s if kind == F else 2 * stages - 1 - s for kind in (F, B) for s in range(stages)}
    ops = [Op(kind, s, m) for kind, s in position for m in range(problem.n_microbatches)]
    ops.sort(key=lambda op: (op.microbatch + position[op.kind, op.stage], -position[op.kind, op.stage]))
    orders = [[op for op in ops if layout.placement[op.stage] == device] for device in range(problem.n_devices)]
    return time_orders(problem, layout, orders).makespan


def proxy(model: str, devices: int, microbatches: int, per_device: int) -> Instance:
    """Return one of the paper's proxy models on a cluster without memory limit or delay."""
    return Instance.model_validate(
        {
            "format": "octocp.instance/1",
            "name": f"{model}-p{devices}-m{microbatches}-v{per_device}",
            "model": load_model(model).model_dump(exclude_none=True),
            "cluster": {"devices": devices},
            "microbatches": microbatches,
            "stages": {"max_per_device": per_device},
        }
    )


def proxies() -> Suite:
    """The three small proxies on 4 devices, two stages each: the sizes of the paper's exact solver."""
    families = ("gemma-proxy-small", "deepseek-proxy-small", "nemotron-h-proxy-small")
    return {
        f"{family}-p4-m{m}-v2": (lambda family=family, m=m: proxy(family, 4, m, 2))
        for family in families
        for m in (8, 10, 12, 16)
    }


def scale() -> Suite:
    """One large instance: 16 devices, up to 64 stages, 64 microbatches, 112 blocks and a head."""
    return {"nemotron-h-proxy-large-p16-m64-v4": lambda: proxy("nemotron-h-proxy-large", 16, 64, 4)}


def ablation() -> Suite:
    """A few instances of every sort, for runs with parts of the solver left out."""
    published = shipped(
        ["nemotron-nano-v2-9b-p4-m8", "nemotron-nano-v2-9b-p8-m16", "llama3-32b-p8-m8", "jamba-100b-p8-m16"]
    )
    tight = {name: load for name, load in equal_memory().items() if name.startswith("nemotron-h-8b-p8-m8")}
    return {**published, **tight, "slackpipe-w4-n8-b8-c8": lambda: slackpipe_case(4, 8, 8, 8)}


SUITES: dict[str, Callable[[], Suite]] = {
    "known": known,
    "octopipe": octopipe,
    "equal-memory": equal_memory,
    "slackpipe": slackpipe,
    "proxies": proxies,
    "scale": scale,
    "ablation": ablation,
}


def suite(name: str) -> Suite:
    """Return a suite by name; also a folder of instances, or a single instance."""
    if name in SUITES:
        return SUITES[name]()
    found = [one for one, path in catalog.instances().items() if name in (path.parent.name, one)]
    if not found:
        raise SystemExit(f"no suite, folder or instance named {name!r}; suites: {', '.join(SUITES)}")
    return shipped(found)
