"""A process of a run: it joins the others and works; one of the launcher's own ends when the launcher does."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from octocp.errors import InputError, OctoCPError
from octocp.torch.actions import ranks
from octocp.torch.board import Phase, Post
from octocp.torch.runner import Job, Outcome, run_rank
from octocp.torch.user_code import first_cause, words

# The launcher watches over its own processes and knows which of them is at work; torch knows neither.
FOREVER_S = 30 * 24 * 3600.0
FAILED = 1
# The file with what to run.
JOBS = "jobs"


@dataclass(frozen=True)
class Birth:
    """What a process of the launcher's own is given.

    Attributes
    ----------
    mouth : Connection
        Where it tells the launcher ("outcome", ...), ("failed", text, whether others may have caused it), ("done",).
    lifeline : Connection
        Ends, without a word, when the launcher does.
    folder : str
        Where the processes meet, and for temporary files; the jobs are there.
    """

    rank: int
    world: int
    device: str
    folder: str
    post: Post
    mouth: Any
    lifeline: Any


def be_rank(birth: Birth) -> None:
    """Work as a process of the launcher's own, and tell it how that went."""
    # Ctrl-C reaches every process of a terminal; the launcher is who answers it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with(birth.lifeline)
    # What the user's code prints must not get into the report, which may be JSON.
    with contextlib.suppress(OSError):
        os.dup2(2, 1)
    tempfile.tempdir = birth.folder
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    code = 0
    try:
        birth.post.at(Phase.joining)
        jobs = pickle.loads((Path(birth.folder) / JOBS).read_bytes())
        store = dist.FileStore(os.path.join(birth.folder, "meet"), birth.world)
        tell = (lambda outcome: birth.mouth.send(("outcome", outcome))) if birth.rank == 0 else None
        work(jobs, birth.device, store, birth.rank, birth.world, post=birth.post, tell=tell)
        birth.mouth.send(("done",))
    except BaseException as error:
        code = FAILED
        with contextlib.suppress(OSError):
            birth.mouth.send(("failed", str(failure(error, birth.rank)), _may_be_a_consequence(error)))
    # Neither threads of the user's nor torch's own end may hold this up, and whoever waits for it is ended too.
    birth.mouth.close()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def work(
    jobs: Sequence[Job],
    device: str,
    store: Any,
    rank: int,
    world: int,
    *,
    post: Post,
    local_rank: int | None = None,
    timeout_s: float = FOREVER_S,
    tell: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Join the other processes and run the jobs.

    Parameters
    ----------
    timeout_s : float
        How long torch lets any one transfer wait for its other side.
    """
    where = torch.device("cpu") if device == "cpu" else torch.device("cuda", rank if local_rank is None else local_rank)
    if where.type == "cuda":
        torch.cuda.set_device(where)
    backend = "gloo" if where.type == "cpu" else "nccl"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=timeout_s))
    outcomes = []
    # Every process has to take part in making every group.
    sizes = sorted({ranks(job.plan) for job in jobs} - {world})
    groups = {size: dist.new_group(list(range(size))) for size in sizes}
    for job in jobs:
        size = ranks(job.plan)
        if rank < size:
            outcome = run_rank(job, where, groups.get(size), post)
            outcomes.append(outcome)
            if tell is not None:
                tell(outcome)
    dist.barrier()
    # Not after a failure: the other ranks would then complain before this one has said why.
    dist.destroy_process_group()
    return outcomes


def failure(error: BaseException, rank: int) -> OctoCPError:
    """Say in one line why a rank has failed."""
    cause = first_cause(error)
    if isinstance(cause, OctoCPError):
        return cause
    right = "the other ranks still there: one of them may have ended first" if _may_be_a_consequence(cause) else ""
    return InputError(f"rank {rank} {words(cause)}", right=right)


def _may_be_a_consequence(error: BaseException) -> bool:
    """Tell whether a failure looks like that of a transfer, whose other side may have ended first."""
    cause = first_cause(error)
    if isinstance(cause, OctoCPError):
        return False
    return isinstance(cause, dist.DistError) or any(name in words(cause).lower() for name in ("gloo", "nccl"))


def _end_with(lifeline: Any) -> None:
    """End this process when the other end of a pipe goes, which only the launcher holds."""

    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            lifeline.recv_bytes()
        os._exit(FAILED)

    threading.Thread(target=watch, daemon=True).start()
    if sys.platform == "linux":
        import fcntl

        # The thread cannot run while code in C keeps Python's lock; the kernel needs no thread.
        file = lifeline.fileno()
        with contextlib.suppress(OSError):
            fcntl.fcntl(file, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_ASYNC)
