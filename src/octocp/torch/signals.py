"""Signals that have to wait."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_back(*numbers: signal.Signals) -> Iterator[None]:
    """Hold signals back from this process, and let none through to what it starts meanwhile.

    A mask alone does not do it: Python handles in the main thread what any thread of torch's lets in.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def keep(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.getsignal(number) for number in numbers}
    caught = [number for number in numbers if before[number] != signal.SIG_IGN]
    for number in caught:
        signal.signal(number, keep)
    masks = hasattr(signal, "pthread_sigmask")
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers) if masks else set()
    try:
        yield
    finally:
        # What the mask has held comes to `keep` here.
        if masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number in caught:
            signal.signal(number, before[number])
        for late in dict.fromkeys(came):
            signal.raise_signal(late)
