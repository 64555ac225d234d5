"""Tasks on Slurm, or anything else that submitit submits to; needs the extra ``slurm``."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from octocp.dataset.executors import TRIES, Done, Function, Payload, attempt, finished, perform
from octocp.dataset.store import unwritable
from octocp.errors import InputError
from octocp.schema.reading import shorten

# submitit's parameters that are whole numbers, with the least and the most. A task is one process.
MOST = 10**9 - 1
NUMBERS = {
    "timeout_min": (1, MOST),
    "mem_gb": (1, MOST),
    "cpus_per_task": (1, MOST),
    "gpus_per_node": (0, MOST),
    "nodes": (1, 1),
    "tasks_per_node": (1, 1),
}
# Those that take more than a word.
LISTS = ("setup", "srun_args", "additional_parameters")
MOST_JOBS = 200
POLL_SECONDS = {"local": 0.1, "debug": 0.0}
SLOW_POLL_SECONDS = 2.0


class OnSlurm:
    """Tasks run as jobs, an array at a time; a job that is lost is submitted again.

    Parameters
    ----------
    folder : Path
        For submitit's files; all machines see it.
    settings : mapping
        submitit's parameters by name, e.g. ``slurm_partition``; and ``cluster``, by default "slurm".
    minutes : int
        Time limit of a job, unless `settings` has one.
    jobs : int or None
        Jobs in the queue at a time.

    Raises
    ------
    InputError
        submitit is not installed, does not know a setting, or there is no Slurm.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str],
        *,
        minutes: int,
        jobs: int | None = None,
        function: Function = perform,
    ) -> None:
        try:
            import submitit
        except ImportError:
            raise InputError(
                "needs submitit, which is not installed", place="--slurm", right='pip install "octocp[slurm]"'
            ) from None
        self._cluster = settings.get("cluster", "slurm")
        given = {key: _value(key, text, self._cluster) for key, text in settings.items() if key != "cluster"}
        self._jobs = jobs or (MOST_JOBS if self._cluster == "slurm" else os.cpu_count() or 1)
        self._function = function
        self._processes: list[subprocess.Popen[bytes]] = []  # of local jobs
        right = "cluster=local, or submitit's parameters, e.g. slurm_partition=cpu,mem_gb=4"
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        try:
            self._executor = submitit.AutoExecutor(folder=str(folder), cluster=self._cluster)
            parameters = {"name": "octocp", "cpus_per_task": 1, "timeout_min": minutes} | given
            self._executor.update_parameters(**parameters)
        except OSError as error:
            raise unwritable(folder, error) from None
        except (RuntimeError, ValueError, NameError, TypeError, AssertionError) as error:
            for path in made:  # submitit makes its folder first
                with suppress(OSError):
                    path.rmdir()
            raise InputError(f"submitit refuses: {_line(error)}", place="--slurm", right=right) from None

    @property
    def words(self) -> str:
        """What it runs on."""
        return f"up to {self._jobs} {self._cluster} jobs"

    def run(self, tasks: Iterable[Payload]) -> Generator[Done, None, None]:
        """Yield every task as it is done."""
        coming, again = iter(tasks), deque[Payload]()
        begun: dict[str, int] = {}
        running: list[tuple[Any, Payload]] = []
        try:
            while True:
                batch: list[Payload] = []
                while len(running) + len(batch) < self._jobs:
                    payload = again.popleft() if again else next(coming, None)
                    if payload is None:
                        break
                    batch.append(payload)
                running += zip(self._submit(batch), batch, strict=True)
                if not running:
                    return
                over = [pair for pair in running if pair[0].done()]
                running = [pair for pair in running if pair not in over]
                for job, payload in over:
                    name = payload["id"]
                    begun[name] = begun.get(name, 0) + 1
                    try:
                        yield finished(job.result())
                    except Exception as error:  # killed, out of time or memory, or its files are gone
                        if begun[name] < TRIES:
                            again.append(payload)
                        else:
                            text = str(error).strip().splitlines()
                            yield Done(name, None, f"its job failed {TRIES} times: {text[-1] if text else error!r}")
                if not over:
                    time.sleep(POLL_SECONDS.get(self._cluster, SLOW_POLL_SECONDS))
        finally:
            if self._processes:
                _end(self._processes)
            else:
                for job, _ in running:
                    job.cancel(check=False)

    def _submit(self, batch: list[Payload]) -> list[Any]:
        if not batch:
            return []
        from submitit.core.utils import FailedJobError

        try:
            # submitit repeats what sbatch says.
            with redirect_stderr(io.StringIO()), _own_sessions(self._processes), self._executor.batch():
                return [self._executor.submit(attempt, self._function, payload) for payload in batch]
        except FailedJobError as error:
            right = "submitit's parameters as this cluster has them; the same command goes on where it was"
            raise InputError(f"a job was refused: {_line(error, -1)}", place="--slurm", right=right) from None
        except Exception as error:  # submitit takes what it cannot use, and raises what comes of it
            raise InputError(f"no job could be submitted: {_line(error)}", place="--slurm") from None


def _value(key: str, text: str, cluster: str) -> int | str:
    """Return the value of one of submitit's parameters; refuse what submitit would take and fail at later."""
    name = key.removeprefix(f"{cluster}_")
    if name in LISTS:
        raise InputError(f"{key} takes more than a word", place="--slurm", right="without it")
    number = int(text) if re.fullmatch("[0-9]{1,9}", text) else None
    least, most = NUMBERS.get(name, (0, MOST))
    if name in NUMBERS and (number is None or not least <= number <= most):
        right = f"a whole number, {least} to {most}" if least < most else f"{least}: a task is one process"
        raise InputError(f"{key} is {shorten(text)[1:-1]}", place="--slurm", right=right)
    return text if number is None or name == "name" else number


def _line(error: BaseException, which: int = 0) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[which] if lines else type(error).__name__


@contextmanager
def _own_sessions(started: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Start submitit's local jobs in sessions of their own and note them: Ctrl-C in a terminal does not reach them.

    They are noted here and not as jobs, since a Ctrl-C between the start of two leaves no job of the first.
    """
    from submitit.local import local

    def start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        started[:] = [process for process in started if process.poll() is None]
        started.append(subprocess.Popen(command, start_new_session=True, **options))
        return started[-1]

    before = local.subprocess
    local.subprocess = SimpleNamespace(Popen=start)
    try:
        yield
    finally:
        local.subprocess = before


def _end(started: Iterable[subprocess.Popen[bytes]]) -> None:
    """End local jobs with all of their processes, at once: they take other signals for a reason to print."""
    for process in started:
        if process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
