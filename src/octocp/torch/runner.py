"""One rank of a run: its stages under torch's runtime, with the plan's order; timings and gradients gathered."""

from __future__ import annotations

import copy
import logging
import math
import socket
import tempfile
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from octocp.errors import InputError
from octocp.schema import Plan
from octocp.torch.actions import CsvFormat, microbatches, order_file, ranks
from octocp.torch.board import Phase, Post
from octocp.torch.models import SleepingLayer, Workload
from octocp.torch.sources import Source, batch
from octocp.torch.stages import Clock, StageModule, TimedStage, stage_modules, timed_loss
from octocp.torch.timeline import Timeline, from_zero
from octocp.torch.user_code import built, guarded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.distributed import ProcessGroup

# A gradient is compared in parts of its parameter's largest, or of this share of the model's largest.
NEGLIGIBLE = 1e-6


@dataclass(frozen=True)
class Job:
    """A plan to run.

    Attributes
    ----------
    steps, warm_up : int
        Steps that count, and steps before them; the first one ever includes torch's own setup.
    check : bool
        Whether to compare the gradients with those of one process.
    csv_format : str
        Which of torch's two formats the order is given in.
    threads : int
        Threads of each rank on a CPU.
    torch_traces : str
        A folder for torch.profiler's traces of one more step, a file per rank; "" for none.
    """

    plan: Plan
    source: Source
    csv_format: CsvFormat = "compute_only"
    steps: int = 1
    warm_up: int = 1
    check: bool = True
    threads: int = 1
    torch_traces: str = ""


@dataclass(frozen=True)
class Outcome:
    """What a run gave.

    Attributes
    ----------
    wall_ms : list of float
        Milliseconds of each step, as the first rank sees it.
    steps : list of Timeline
        When each action computed, for each step.
    gradient_error : float or None
        Largest difference of a gradient to that of one process, relative to the largest in its parameter;
        None where it was not checked.
    worst : str
        The parameter with that error.
    losses : list of float
        The mean loss of each step.
    """

    wall_ms: list[float]
    steps: list[Timeline]
    gradient_error: float | None
    worst: str
    losses: list[float]


def run_rank(job: Job, device: torch.device, group: ProcessGroup | None = None, post: Post | None = None) -> Outcome:
    """Run a plan's part of this rank, and gather what all ranks measured.

    Parameters
    ----------
    group : ProcessGroup, optional
        The ranks of the plan; by default all.
    post : Post, optional
        Where to tell how far the rank is.

    Raises
    ------
    InputError
        Layers and plan do not fit, or torch refuses or fails at something.
    """
    plan, rank = job.plan, dist.get_rank(group)
    if dist.get_world_size(group) != ranks(plan):
        raise InputError(f"{dist.get_world_size(group)} processes", right=f"{ranks(plan)}, one per device of the plan")
    if device.type == "cpu":
        torch.set_num_threads(job.threads)
    logging.getLogger("torch.distributed.pipelining").setLevel(logging.CRITICAL)
    post = post or Post.unwatched()
    post.at(Phase.building)
    work = built(job.source.name, lambda: job.source.build(plan))
    with guarded("copying the layers", right="layers that copy.deepcopy can copy, or --no-check"):
        alone = copy.deepcopy(work.layers) if job.check else []
    modules = stage_modules(plan, work.layers)
    clock = Clock(device, post)
    own = {stage: modules[stage].to(device) for stage, holder in enumerate(plan.placement) if holder == rank}
    stages = [TimedStage(module, index, len(modules), device, clock, group) for index, module in own.items()]
    loss = timed_loss(work.loss, clock, len(modules) - 1)
    schedule = _PipelineScheduleRuntime(stages, microbatches(plan), loss_fn=loss, scale_grads=True)
    with _order_file(job) as path:
        schedule._load_csv(path, format=job.csv_format)
    count = microbatches(plan)
    given = (batch(work.sample, count).to(device),) if 0 in own else ()
    target = batch(work.target, count).to(device) if len(modules) - 1 in own else None
    wall, recorded, losses = [], [], []
    steps = job.warm_up + job.steps + bool(job.torch_traces)
    for step in range(steps):
        post.at(Phase.step, step + 1, steps)
        SleepingLayer.awake = step < job.warm_up
        for module in own.values():
            module.zero_grad()
        of_microbatches: list[Tensor] = []
        with _torch_profiler(job, rank) if step == job.warm_up + job.steps else nullcontext():
            dist.barrier(group)
            clock.restart()
            began = time.perf_counter()
            schedule.step(*given, target=target, losses=of_microbatches, return_outputs=False)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            dist.barrier(group)
        if job.warm_up <= step < job.warm_up + job.steps:
            wall.append(1000 * (time.perf_counter() - began))
            recorded.append((clock.read(rank), 1000 * began))
            losses.append([float(value.detach()) for value in of_microbatches])
    SleepingLayer.awake = True
    post.at(Phase.checking)
    error = gradient_error(own, alone, plan, work, count, device, post) if job.check else (None, "")
    post.at(Phase.telling)
    everything: list[Any] = [None] * ranks(plan)
    dist.all_gather_object(everything, (socket.gethostname(), recorded, losses, error), group=group)
    return _gathered(everything, wall)


def _gathered(everything: list[Any], wall: list[float]) -> Outcome:
    hosts, recorded, losses, errors = zip(*everything, strict=True)
    one_clock = len(set(hosts)) == 1
    steps = []
    for of_ranks in zip(*recorded, strict=True):
        # Clocks of different hosts agree on nothing but that all began together.
        shifted = [
            span if one_clock else span._replace(start=span.start - began, end=span.end - began)
            for spans, began in of_ranks
            for span in spans
        ]
        steps.append(from_zero(shifted))
    found = [mean for of_rank in losses for mean in of_rank if mean]
    error, worst = max(errors, key=lambda pair: -1.0 if pair[0] is None else pair[0])
    return Outcome(wall, steps, error, worst, [sum(values) / len(values) for values in found])


def gradient_error(
    own: dict[int, StageModule],
    alone: list[nn.Module],
    plan: Plan,
    work: Workload,
    count: int,
    device: torch.device,
    post: Post | None = None,
) -> tuple[float, str]:
    """Compare the gradients of this rank's stages with those that the whole model has in this process.

    Returns
    -------
    float, str
        The largest error, relative to the largest gradient of the parameter, and the parameter's name.

    Raises
    ------
    InputError
        Those of the whole model are no numbers, so nothing can be said.
    """
    post = post or Post.unwatched()
    stages = stage_modules(plan, alone)
    model = nn.Sequential(*stages).to(device)
    inputs, targets = (batch(tensor, count).to(device).chunk(count) for tensor in (work.sample, work.target))
    for x, target in zip(inputs, targets, strict=True):
        (work.loss(model(x), target) / count).backward()
        post.alive()
    for index, stage in enumerate(stages):
        for name, p in stage.named_parameters():
            if p.grad is not None and not bool(p.grad.isfinite().all()):
                right = "a model whose loss is finite, or --no-check"
                raise InputError(f"stage {index}, {name}: no finite gradient in one process either", right=right)
    largest = max((float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None), default=0.0)
    worst = (0.0, "")
    for index, module in own.items():
        for (name, mine), right in zip(module.named_parameters(), stages[index].parameters(), strict=True):
            if mine.grad is None and right.grad is None:
                continue
            if mine.grad is None or right.grad is None:
                return float("inf"), f"stage {index}, {name}"
            scale = max(float(right.grad.abs().max()), NEGLIGIBLE * largest) or 1.0
            error = float((mine.grad - right.grad).abs().max()) / scale
            if math.isnan(error):
                return float("inf"), f"stage {index}, {name}"
            worst = max(worst, (error, f"stage {index}, {name}"))
    return worst


@contextmanager
def _order_file(job: Job) -> Iterator[str]:
    """Write the order as a file for torch to load."""
    with tempfile.TemporaryDirectory(prefix="octocp-") as folder:
        path = Path(folder) / "order.csv"
        path.write_text(order_file(job.plan, job.csv_format), encoding="utf-8")
        yield str(path)


@contextmanager
def _torch_profiler(job: Job, rank: int) -> Iterator[None]:
    """Record with torch.profiler, and write the rank's trace."""
    with torch.profiler.profile() as recorded:
        yield
    path = Path(job.torch_traces) / f"rank{rank}.json"
    # A run that is ended meanwhile leaves no half of a trace under a name that looks whole.
    half = path.with_name(f".{path.name}.tmp")
    recorded.export_chrome_trace(str(half))
    half.replace(path)
