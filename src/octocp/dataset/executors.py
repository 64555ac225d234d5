"""Where tasks run: here, on a pool of processes, on a Dask cluster or on Slurm; all behind one interface."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from octocp.errors import OctoCPError

Payload = dict[str, Any]
Function = Callable[[Payload], dict[str, Any]]

# How often a task is begun before it is given up: a worker may be lost for no fault of the task's.
TRIES = 3
WATCH_SECONDS = 0.5
PATIENCE_SECONDS = 5.0


@dataclass(frozen=True)
class Done:
    """A task that is over.

    Attributes
    ----------
    result : dict or None
        What the function returned.
    failure : str
        Why there is no result, in one line.
    """

    id: str
    result: dict[str, Any] | None
    failure: str = ""


class Executor(Protocol):
    """Runs tasks anywhere, in any order."""

    @property
    def words(self) -> str:
        """What it runs them on, e.g. ``2 processes``."""
        ...

    def run(self, tasks: Iterable[Payload]) -> Generator[Done, None, None]:
        """Yield every task once, as soon as it is over; a lost worker's task is begun again.

        Closing the iterator ends what is running.
        """
        ...


def perform(payload: Payload) -> dict[str, Any]:
    """Do a task of a data set (`octocp.dataset.tasks`)."""
    from octocp.dataset import tasks

    return tasks.perform(payload)


class LostError(OctoCPError):
    """What tasks were run on is gone; what is done is kept, and the same command goes on elsewhere or later."""

    exit_code = 4


def attempt(function: Function, payload: Payload) -> dict[str, Any]:
    """Do a task; an error is a result too, so that it ends no worker."""
    try:
        return {"id": payload["id"], "result": function(payload)}
    except OctoCPError as error:
        return {"id": payload["id"], "failure": str(error)}
    except Exception as error:
        return {"id": payload["id"], "failure": f"{type(error).__name__}: {error}"}


def finished(outcome: dict[str, Any]) -> Done:
    """Turn what `attempt` returned into a `Done`."""
    return Done(outcome["id"], outcome.get("result"), outcome.get("failure", ""))


@dataclass(frozen=True)
class Here:
    """Tasks run one by one in this process."""

    function: Function = perform
    words: str = "this process"

    def run(self, tasks: Iterable[Payload]) -> Generator[Done, None, None]:
        """Yield every task as it is done."""
        for payload in tasks:
            yield finished(attempt(self.function, payload))


class _Worker:
    """A process, and the task it is at."""

    def __init__(self, function: Function) -> None:
        # Spawned, not forked: a fork would inherit the folder's lock and keep it after a crash.
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, function, os.getpid()), daemon=True)
        self.process.start()
        theirs.close()
        self.payload: Payload | None = None

    def begin(self, payload: Payload) -> bool:
        """Hand over a task; False where the process is gone."""
        try:
            self.connection.send(payload)
        except OSError:
            return False
        self.payload = payload
        return True

    def take(self) -> dict[str, Any] | None:
        """Return the outcome of its task, or None where the process ended without one."""
        try:
            outcome: dict[str, Any] = self.connection.recv()
        except (EOFError, OSError):
            return None
        self.payload = None
        return outcome

    def end(self) -> None:
        """End the process, whatever it is at."""
        self.connection.close()
        self.process.terminate()
        self.process.join(PATIENCE_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()


@dataclass(frozen=True)
class Processes:
    """Tasks run on a pool of processes of this machine."""

    jobs: int
    function: Function = perform

    @property
    def words(self) -> str:
        """What it runs on."""
        return "1 process" if self.jobs == 1 else f"{self.jobs} processes"

    def run(self, tasks: Iterable[Payload]) -> Generator[Done, None, None]:
        """Yield every task as it is done; a worker that dies is replaced, and its task begun again."""
        coming, again = iter(tasks), deque[Payload]()
        begun: dict[str, int] = {}
        workers: list[_Worker] = []
        try:
            while True:
                while len([worker for worker in workers if worker.payload is not None]) < self.jobs:
                    payload = again.popleft() if again else next(coming, None)
                    if payload is None:
                        break
                    worker = self._idle(workers)
                    begun[payload["id"]] = begun.get(payload["id"], 0) + 1
                    if not worker.begin(payload):  # it died while it had nothing to do
                        begun[payload["id"]] -= 1
                        workers.remove(worker)
                        worker.end()
                        again.append(payload)
                busy = [worker for worker in workers if worker.payload is not None]
                if not busy and not again:
                    return
                ready = wait([worker.connection for worker in busy], WATCH_SECONDS)
                for worker in [worker for worker in busy if worker.connection in ready]:
                    payload = worker.payload
                    assert payload is not None
                    outcome = worker.take()
                    if outcome is not None:
                        begun.pop(payload["id"], None)
                        yield finished(outcome)
                        continue
                    workers.remove(worker)
                    worker.process.join(PATIENCE_SECONDS)
                    code = worker.process.exitcode
                    worker.end()
                    if begun[payload["id"]] < TRIES:
                        again.append(payload)
                    else:
                        why = f"its worker died {TRIES} times, the last time with exit code {code}"
                        yield Done(payload["id"], None, why + (" (out of memory?)" if code == -9 else ""))
        finally:
            for worker in workers:
                worker.end()

    def _idle(self, workers: list[_Worker]) -> _Worker:
        """Return a worker that has nothing to do, a new one where all are busy."""
        for worker in workers:
            if worker.payload is None:
                return worker
        workers.append(_Worker(self.function))
        return workers[-1]


def _work(connection: Connection, function: Function, parent: int) -> None:
    """Do tasks until there are no more, or nobody asks for them."""
    # Ctrl-C reaches every process of a terminal; the parent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    while True:
        try:
            payload = connection.recv()
            connection.send(attempt(function, payload))
        except (EOFError, OSError):
            return


def _end_with(parent: int) -> None:
    """End this process once its parent is gone: nobody would take the result."""
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(1)
