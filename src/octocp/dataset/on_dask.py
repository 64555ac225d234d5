"""Tasks on a Dask cluster that exists; needs the extra ``dask``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Generator, Iterable
from itertools import islice
from typing import Any

from octocp.dataset.executors import TRIES, Done, Function, LostError, Payload, attempt, finished, perform
from octocp.errors import InputError
from octocp.schema.reading import shorten

CONNECT_SECONDS = 15.0
GRACE_SECONDS = 2.0
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


async def _reach(address: str) -> None:
    """Connect to a scheduler, with the certificates of Dask's configuration where the address needs any, and leave.

    Raises
    ------
    Exception
        Whatever Dask raises; or nothing answers, or something else does.
    """
    from distributed.comm import connect
    from distributed.core import send_recv
    from distributed.security import Security

    try:
        # Dask's own limit ends at the connection: what says nothing then is waited for without end.
        async with asyncio.timeout(CONNECT_SECONDS + GRACE_SECONDS):
            comm = await connect(address, timeout=CONNECT_SECONDS, **Security().get_connection_args("client"))
            found = await send_recv(comm, op="identity")
            await comm.close()
    except TimeoutError:
        raise TimeoutError("something is there, and does not answer as a scheduler does") from None
    if "workers" not in found:
        raise ConnectionError(f"a {found['type']} does")


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
            # First without a client: one that was never connected takes half a minute to go, and not silently.
            asyncio.run(_reach(address))
            self._client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
        except Exception as error:  # a scheme that needs a certificate or a package raises whatever it likes
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
    def waits(self) -> str:
        """What the user should know if the cluster does nothing yet; "" where it can begin."""
        if self._threads():
            return ""
        return f"The Dask cluster at {self._address} has no workers; tasks wait until it has."

    @property
    def words(self) -> str:
        """What it runs on."""
        return f"{self._threads()} Dask threads at {self._address}"

    def run(self, tasks: Iterable[Payload]) -> Generator[Done, None, None]:
        """Yield every task as it is done."""
        from distributed import as_completed

        coming = iter(tasks)
        names: dict[str, str] = {}
        running: dict[str, Any] = {}

        def submit(payload: Payload) -> Any:
            future = self._client.submit(attempt, self._function, payload, pure=False, retries=TRIES - 1)
            names[future.key], running[future.key] = payload["id"], future
            return future

        try:
            first = list(islice(coming, max(LEAST_AHEAD, AHEAD * self._threads())))
            completed = as_completed([submit(payload) for payload in first], loop=self._client.loop)
            for future in completed:
                running.pop(future.key)
                name = names.pop(future.key)
                try:
                    done = finished(future.result())
                except Exception as error:  # KilledWorker, a function that cannot be found there, ...
                    if self._client.status != "running":
                        raise self._lost() from None
                    done = Done(name, None, f"{type(error).__name__}: {error}")
                following = next(coming, None)
                if following is not None:
                    completed.add(submit(following))
                yield done
        except OSError:  # of Dask's connections; what tasks raise is caught above
            raise self._lost() from None
        finally:
            with contextlib.suppress(OSError):
                self._client.cancel(list(running.values()))

    def _lost(self) -> LostError:
        return LostError(f"the Dask scheduler at {self._address} is gone; the same command goes on from there")

    def close(self) -> None:
        """Leave the cluster."""
        self._client.close()
