"""Ctrl-C and SIGTERM in commands that work with torch, where an exception can come at a bad time."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import typer

from octocp.cli.output import complain

EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 128 + signal.SIGTERM

_Handler = Callable[[int, FrameType | None], Any] | int | None


class _TerminatedError(BaseException):
    """SIGTERM; no `Exception`, so that nothing takes it for an error of its own."""


@contextmanager
def ends_at_once(*, silently: bool = False) -> Iterator[None]:
    """Let Ctrl-C end the process where it is: for as long as there is nothing to clean up.

    Raised as an exception, it is lost, or turned into another one, in modules like torch that are being imported, and
    in what torch calls back.

    Parameters
    ----------
    silently : bool
        Leave it to another process to say so.
    """

    def handle(_number: int, _frame: FrameType | None) -> None:
        if not silently:
            complain("interrupted")
        os._exit(EXIT_INTERRUPTED)

    with _handling(handle, signal.SIGINT):
        yield


@contextmanager
def ends_in_order() -> Iterator[None]:
    """Raise the first Ctrl-C or SIGTERM, and let nothing disturb the cleaning up after it.

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C.
    typer.Exit
        SIGTERM; a line has said so.
    """

    def handle(number: int, _frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else _TerminatedError

    with _handling(handle, signal.SIGINT, signal.SIGTERM):
        try:
            yield
        except _TerminatedError:
            complain("terminated")
            raise typer.Exit(EXIT_TERMINATED) from None


@contextmanager
def _handling(handle: _Handler, *numbers: signal.Signals) -> Iterator[None]:
    """Handle signals that are not ignored, as they are in a shell's background jobs, until the end or the first one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}
    caught = [number for number in numbers if before[number] != signal.SIG_IGN]
    for number in caught:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in caught:
            # After a signal the process is about to end, and stays deaf.
            if signal.getsignal(number) is handle:
                signal.signal(number, before[number])
