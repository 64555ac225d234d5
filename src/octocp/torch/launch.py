"""Processes for a run: those that torchrun has started, or own ones on this machine."""

from __future__ import annotations

import multiprocessing
import os
import queue
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from octocp.errors import InputError, OctoCPError
from octocp.torch.actions import ranks
from octocp.torch.runner import Job, Outcome, run_rank

TIMEOUT_S = 120.0


def under_torchrun() -> bool:
    """Tell whether torchrun (or something that sets the same variables) started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def join(jobs: Sequence[Job], device: str, timeout_s: float = TIMEOUT_S) -> list[Outcome] | None:
    """Run jobs as one of torchrun's processes; only the first rank gets the outcomes."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for job in jobs:
        if ranks(job.plan) != world:
            raise InputError(f"torchrun started {world} processes", right=f"--nproc-per-node {ranks(job.plan)}")
    outcomes = _work(jobs, device, timeout_s, int(os.environ.get("LOCAL_RANK", rank)), {})
    return outcomes if rank == 0 else None


def launch(jobs: Sequence[Job], device: str = "cpu", timeout_s: float = TIMEOUT_S) -> list[Outcome]:
    """Run jobs in own processes on this machine, as many as the largest plan has devices.

    Parameters
    ----------
    device : str
        `cpu` (gloo) or `cuda` (NCCL, a GPU per process).
    timeout_s : float
        Seconds without a sign of life of any job after which the run has failed.

    Raises
    ------
    InputError
        A process failed, or the run took too long; the text is that of the first failure.
    """
    world = max(ranks(job.plan) for job in jobs)
    if device == "cuda" and torch.cuda.device_count() < world:
        right = f"{world}, one per device of the plan; --device cpu runs it without"
        raise InputError(f"{torch.cuda.device_count()} GPUs here", right=right)
    # A fork server imports torch once and not in every process.
    ways = multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if "forkserver" in ways and device == "cpu" else "spawn")
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(["octocp.torch.runner"])
    told: Any = context.Queue()
    with tempfile.TemporaryDirectory(prefix="octocp-") as folder:
        start = {"init_method": (Path(folder) / "meet").as_uri(), "world_size": world}
        made = [
            context.Process(target=_process, args=(jobs, device, timeout_s, {**start, "rank": rank}, told), daemon=True)
            for rank in range(world)
        ]
        try:
            for process in made:
                process.start()
            return _collect(made, told, len(jobs), timeout_s)
        finally:
            for process in made:
                process.terminate()
            for process in made:
                process.join()


def _collect(made: Sequence[Any], told: Any, count: int, timeout_s: float) -> list[Outcome]:
    outcomes: list[Outcome] = []
    heard = time.monotonic()
    while len(outcomes) < count:
        try:
            what, value = told.get(timeout=0.2)
        except queue.Empty:
            if time.monotonic() - heard > timeout_s:
                raise InputError(f"nothing happened for {timeout_s:g} s", right="a longer --timeout") from None
            dead = [process for process in made if process.exitcode not in (None, 0)]
            if dead and told.empty():
                raise InputError(f"a process ended with exit code {dead[0].exitcode}") from None
            continue
        if what == "failed":
            raise InputError(str(value))
        heard = time.monotonic()
        outcomes.append(value)
    return outcomes


def _process(jobs: Sequence[Job], device: str, timeout_s: float, start: dict[str, Any], told: Any) -> None:
    """What an own process does: work, and tell the parent how it went."""
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        _work(jobs, device, timeout_s, start["rank"], start, told)
    except BaseException as error:
        told.put(("failed", _words(error, start["rank"])))
        # Whoever waits for this rank is ended by the parent.
        told.close()
        told.join_thread()
        os._exit(1)


def _work(
    jobs: Sequence[Job], device: str, timeout_s: float, local_rank: int, start: dict[str, Any], told: Any = None
) -> list[Outcome]:
    where = torch.device("cpu") if device == "cpu" else torch.device("cuda", local_rank)
    if where.type == "cuda":
        torch.cuda.set_device(where)
    backend = "gloo" if where.type == "cpu" else "nccl"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s), **start)
    outcomes = []
    world, rank = dist.get_world_size(), dist.get_rank()
    # Every process has to take part in making every group.
    sizes = sorted({ranks(job.plan) for job in jobs} - {world})
    groups = {size: dist.new_group(list(range(size))) for size in sizes}
    for job in jobs:
        size = ranks(job.plan)
        if rank < size:
            outcome = run_rank(job, where, groups.get(size))
            outcomes.append(outcome)
            if told is not None and rank == 0:
                told.put(("done", outcome))
    dist.barrier()
    # Not after a failure: the other ranks would then complain before this one has said why.
    dist.destroy_process_group()
    return outcomes


def _words(error: BaseException, rank: int) -> str:
    if isinstance(error, OctoCPError):
        return str(error)
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return f"rank {rank}: {type(cause).__name__}: {' '.join(str(cause).split())}"
