"""Processes for a run: own ones on this machine, watched until they are done, or those that torchrun has started."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from octocp.errors import InputError
from octocp.torch.actions import ranks
from octocp.torch.board import Board, Post
from octocp.torch.environment import AlreadySaidError, Torchrun
from octocp.torch.process import JOBS, Birth, be_rank, failure, work
from octocp.torch.runner import Job, Outcome
from octocp.torch.signals import held_back
from octocp.torch.user_code import words

TIMEOUT_S = 120.0
# Importing torch and meeting the others takes that long on a busy machine, and is no sign of a run that hangs.
START_S = 120.0
POLL_S = 0.2
# A rank whose transfer has failed may hear of another's end before the launcher does.
GRACE_S = 1.0


def join(jobs: Sequence[Job], device: str, timeout_s: float, place: Torchrun) -> list[Outcome] | None:
    """Run jobs as one of torchrun's processes; only the first rank gets the outcomes.

    Raises
    ------
    InputError
        This process failed, and before any other.
    AlreadySaidError
        It failed after another one, and likely because of it.
    """
    for job in jobs:
        place.fits(ranks(job.plan))
    store = None
    try:
        # Python's own handler would have to wait for torch to come back from waiting for the other ranks.
        with _signals_end_at_once(), contextlib.redirect_stdout(sys.stderr):
            store = _meet(place, timeout_s)
            if device == "cuda" and place.local_rank >= torch.cuda.device_count():
                right = f"{place.local_rank + 1} for this LOCAL_RANK; --device cpu runs it without"
                raise InputError(f"{torch.cuda.device_count()} GPUs here", right=right)
            group: dict[str, Any] = {"rank": place.rank, "world": place.world, "local_rank": place.local_rank}
            outcomes = work(jobs, device, store, **group, post=Post.unwatched(), timeout_s=timeout_s)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if store is not None and not _first_to_fail(store, place):
            raise AlreadySaidError("another process failed first") from None
        raise failure(error, place.rank) from None
    return outcomes if place.rank == 0 else None


def _meet(place: Torchrun, timeout_s: float) -> Any:
    """Return what torchrun's processes tell each other through."""
    try:
        return next(dist.rendezvous("env://", timeout=timedelta(seconds=timeout_s)))[0]
    except Exception as error:
        where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        right = "all processes of the run with the same MASTER_ADDR and a free MASTER_PORT"
        raise InputError(
            f"rank {place.rank} of {place.world} did not meet the others at {where}: {words(error)}", right=right
        ) from None


def launch(jobs: Sequence[Job], device: str = "cpu", timeout_s: float = TIMEOUT_S) -> list[Outcome]:
    """Run jobs in own processes on this machine, as many as the largest plan has devices.

    None of them outlives this process, however it ends.

    Parameters
    ----------
    device : str
        `cpu` (gloo) or `cuda` (NCCL, a GPU per process).
    timeout_s : float
        Seconds in which no rank gets any further (begins or ends an action, or a part of its setup) after which the
        run has failed.

    Raises
    ------
    InputError
        A process failed or ended, or the run hangs; the text is that of the first failure.
    """
    world = max(ranks(job.plan) for job in jobs)
    if device == "cuda" and torch.cuda.device_count() < world:
        right = f"{world}, one per device of the plan; --device cpu runs it without"
        raise InputError(f"{torch.cuda.device_count()} GPUs here", right=right)
    context = _fork_server() if device == "cpu" else None
    if context is None:
        context = multiprocessing.get_context("spawn")
    board = Board(context, world)
    crew: list[_Member] = []
    with tempfile.TemporaryDirectory(prefix="octocp-", ignore_cleanup_errors=True) as folder:
        # Beside the processes' own arguments, which have to fit into a pipe that nobody reads yet.
        (Path(folder) / JOBS).write_bytes(pickle.dumps(list(jobs)))
        try:
            # Ctrl-C reaches all processes of a terminal: they inherit to be deaf to it, and this one hears it later.
            with held_back(signal.SIGINT, signal.SIGTERM):
                for rank in range(world):
                    crew.append(_Member(context, rank, world, device, folder, board.post(rank)))
                    crew[-1].start()
            return _watch(crew, board, len(jobs), timeout_s)
        finally:
            for member in crew:
                member.end()


class _Member:
    """A process of the launcher's own, and what it has said."""

    def __init__(self, context: Any, rank: int, world: int, device: str, folder: str, post: Post) -> None:
        self.rank, self.world = rank, world
        self.outcomes: list[Outcome] = []
        self.failure: tuple[str, bool] | None = None
        self.done = False
        self.ear, mouth = context.Pipe(duplex=False)
        lifeline, self._life = context.Pipe(duplex=False)
        self._given = (mouth, lifeline)
        birth = Birth(rank, world, device, folder, post, mouth, lifeline)
        self.process = context.Process(target=be_rank, args=(birth,), daemon=True)

    def start(self) -> None:
        """Start the process; its ends of the pipes are then its own alone."""
        try:
            self.process.start()
        except (OSError, EOFError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            right = "a machine that can have a process for each device of the plan"
            raise InputError(f"process {self.rank + 1} of {self.world} did not start: {reason}", right=right) from None
        finally:
            for end in self._given:
                end.close()

    def listen(self) -> None:
        """Take in all that it has said, up to its end."""
        while not self.ear.closed:
            try:
                if not self.ear.poll():
                    return
                what, *rest = self.ear.recv()
            except (EOFError, OSError):
                self.ear.close()
                return
            if what == "outcome":
                self.outcomes += rest
            elif what == "failed":
                self.failure = (rest[0], rest[1])
            else:
                self.done = True

    def lost(self) -> bool:
        """Tell whether the process has ended without a word on how it went."""
        if self.process.exitcode is None:
            return False
        self.listen()
        return not self.done and self.failure is None

    def waits(self) -> list[Any]:
        """Return what to wait for news on."""
        open_ear = [] if self.ear.closed else [self.ear]
        return open_ear if self.done or self.process.exitcode is not None else [*open_ear, self.process.sentinel]

    def how_it_ended(self) -> tuple[str, str]:
        """Say how a process ended that should not have, and what may have done that."""
        code = self.process.exitcode
        if code >= 0:
            return f"exit code {code}", "layers that do not end their process (os._exit)"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return name, "enough memory for all ranks, and nobody else to end them" if name == "SIGKILL" else ""

    def end(self) -> None:
        """End the process at once, if it still runs."""
        if self.process.pid is not None:
            self.process.kill()
            self.process.join()
        self.ear.close()
        self._life.close()


def _watch(crew: Sequence[_Member], board: Board, count: int, timeout_s: float) -> list[Outcome]:
    """Wait for all outcomes, for the first failure, or until nothing happens any more."""
    seen, since = board.snapshot(), time.monotonic()
    doubted: float | None = None
    while True:
        multiprocessing.connection.wait([each for member in crew for each in member.waits()], POLL_S)
        for member in crew:
            member.listen()
        first = crew[0]
        if len(first.outcomes) == count and all(member.done for member in crew):
            return first.outcomes
        now = time.monotonic()
        failures = sorted((member.failure for member in crew if member.failure), key=lambda failure: failure[1])
        if failures and not failures[0][1]:
            raise InputError(failures[0][0])
        for member in crew:
            if member.lost():
                how, right = member.how_it_ended()
                text = f"rank {member.rank} ended without a result ({how}) while {board.where(member.rank)}"
                raise InputError(text, right=right)
        if failures:
            doubted = now if doubted is None else doubted
            if now - doubted > GRACE_S:
                raise InputError(failures[0][0])
        news = board.snapshot()
        if news != seen:
            seen, since = news, now
        limit = timeout_s if board.all_joined() else max(timeout_s, START_S)
        if now - since > limit:
            text = f"no rank got any further for {limit:g} s: {board.everywhere()}"
            raise InputError(text, right="a longer --timeout, if an action can take that long")


def _fork_server() -> Any:
    """Start the fork server, which imports torch once and not in every process; None where there can be none.

    One may press Ctrl-C meanwhile: it starts nothing but a process that does nothing, and shows that it is ready.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return None
    from multiprocessing import forkserver, resource_tracker

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["octocp.torch.preload", "octocp.torch.process"])
    try:
        # Its start lets Ctrl-C through again, so it has to come before what must not be disturbed.
        resource_tracker.ensure_running()
        with held_back(signal.SIGINT):
            forkserver.ensure_running()
        first = context.Process(target=_nothing, daemon=True)
        first.start()
        first.join()
    except (OSError, EOFError):  # such as a folder for temporary files whose name is too long for a socket
        return None
    return context


def _nothing() -> None:
    """What the fork server's first process does."""


@contextlib.contextmanager
def _signals_end_at_once() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _first_to_fail(store: Any, place: Torchrun) -> bool:
    """Tell whether no other process has failed before; where nothing knows any more, the first rank counts as first."""
    try:
        return bool(store.add("octocp/failed", 1) == 1)
    except Exception:
        return place.rank == 0
