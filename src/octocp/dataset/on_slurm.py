"""Tasks on Slurm, or anything else that submitit submits to; needs the extra ``slurm``."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

from octocp.dataset.executors import TRIES, Done, Function, Payload, attempt, finished, perform
from octocp.errors import InputError

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
        given: dict[str, Any] = {key: int(text) if text.isdecimal() else text for key, text in settings.items()}
        self._cluster = str(given.pop("cluster", "slurm"))
        self._jobs = jobs or (MOST_JOBS if self._cluster == "slurm" else os.cpu_count() or 1)
        self._function = function
        try:
            self._executor = submitit.AutoExecutor(folder=str(folder), cluster=self._cluster)
            parameters = {"name": "octocp", "cpus_per_task": 1, "timeout_min": minutes} | given
            self._executor.update_parameters(**parameters)
        except (RuntimeError, ValueError, NameError, TypeError) as error:
            text = str(error).splitlines()[0]
            right = "cluster=local, or submitit's parameters, e.g. slurm_partition=cpu,mem_gb=4"
            raise InputError(f"submitit refuses: {text}", place="--slurm", right=right) from None

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
            for job, _ in running:
                job.cancel(check=False)

    def _submit(self, batch: list[Payload]) -> list[Any]:
        if not batch:
            return []
        with self._executor.batch():
            return [self._executor.submit(attempt, self._function, payload) for payload in batch]
