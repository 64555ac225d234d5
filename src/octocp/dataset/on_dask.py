"""Tasks on a Dask cluster that exists; needs the extra ``dask``."""

from __future__ import annotations

import logging
import re
from collections.abc import Generator, Iterable
from itertools import islice
from typing import Any

from octocp.dataset.executors import TRIES, Done, Function, Payload, attempt, finished, perform
from octocp.errors import InputError
from octocp.schema.reading import shorten

CONNECT_SECONDS = 15.0
# Tasks that wait on the scheduler per thread that works.
AHEAD = 3
LEAST_AHEAD = 64


RIGHT = "the address that the scheduler shows, e.g. tcp://10.0.0.1:8786"
ADDRESS = re.compile(r"(?:tcp|tls|ws|wss|ucx|ucxx)://(?:[^\s:/\[\]]+|\[[0-9A-Fa-f:.%]+\]):([0-9]{1,5})/?")


def _check_address(address: str) -> None:
    """Refuse what can be no scheduler's address: Dask would wait for it, or guess a port."""
    found = ADDRESS.fullmatch(address)
    if found is None or not 1 <= int(found[1]) <= 65_535:
        raise InputError(f"{shorten(address)} is no scheme://host:port", place="--dask", right=RIGHT)


def _hush() -> None:
    """Keep what Dask and what it runs on log from stderr: what matters is raised."""
    for name in list(logging.root.manager.loggerDict):
        if name.split(".")[0] in ("distributed", "tornado", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)


class OnDask:
    """Tasks run on the workers of a Dask cluster; the scheduler begins those of lost workers again.

    Parameters
    ----------
    address : str
        Of the scheduler, e.g. ``tcp://10.0.0.1:8786``.

    Raises
    ------
    InputError
        Dask is not installed, nothing answers, or the workers have another version of OctoCP.
    """

    def __init__(self, address: str, function: Function = perform) -> None:
        _check_address(address)
        try:
            from distributed import Client
        except ImportError:
            raise InputError(
                "needs Dask, which is not installed", place="--dask", right='pip install "octocp[dask]"'
            ) from None
        _hush()
        try:
            self._client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError, TimeoutError, RuntimeError) as error:
            text = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(
                f"no Dask scheduler answers at {address}: {text}",
                place="--dask",
                right=RIGHT,
            ) from None
        self._address, self._function = address, function
        try:
            self._compare_versions()
        except BaseException:
            self._client.close()
            raise

    def _compare_versions(self) -> None:
        from octocp.dataset.tasks import made_by

        here = made_by()
        if not self._threads():
            return  # a cluster that grows on demand: failures will tell
        try:
            there: dict[str, str] = self._client.submit(made_by, pure=False).result(timeout=120)
        except Exception as error:
            raise InputError(
                f"its workers cannot run OctoCP: {type(error).__name__}: {error}",
                place="--dask",
                right="workers with the same octocp installed as here",
            ) from None
        for package in ("octocp", "ortools"):
            if here[package] != there[package]:
                raise InputError(
                    f"its workers have {package} {there[package]}, and here is {here[package]}",
                    place="--dask",
                    right="the same versions",
                )

    def _threads(self) -> int:
        return sum(self._client.nthreads().values())

    @property
    def words(self) -> str:
        """What it runs on."""
        return f"{self._threads()} Dask threads at {self._address}"

    def run(self, tasks: Iterable[Payload]) -> Generator[Done, None, None]:
        """Yield every task as it is done."""
        from distributed import as_completed

        coming = iter(tasks)
        first = list(islice(coming, max(LEAST_AHEAD, AHEAD * self._threads())))
        names: dict[str, str] = {}
        running: dict[str, Any] = {}

        def submit(payload: Payload) -> Any:
            future = self._client.submit(attempt, self._function, payload, pure=False, retries=TRIES - 1)
            names[future.key], running[future.key] = payload["id"], future
            return future

        try:
            completed = as_completed([submit(payload) for payload in first], loop=self._client.loop)
            for future in completed:
                running.pop(future.key)
                name = names.pop(future.key)
                try:
                    done = finished(future.result())
                except Exception as error:  # KilledWorker, a function that cannot be found there, ...
                    done = Done(name, None, f"{type(error).__name__}: {error}")
                following = next(coming, None)
                if following is not None:
                    completed.add(submit(following))
                yield done
        finally:
            self._client.cancel(list(running.values()))

    def close(self) -> None:
        """Leave the cluster."""
        self._client.close()
