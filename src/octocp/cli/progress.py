"""What `solve` shows while it runs, and how Ctrl-C ends it. All of it on stderr."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from octocp.cli.output import note

if TYPE_CHECKING:
    from octocp.progress import Event

REFRESHES_PER_SECOND = 4
# Without a terminal: a line when something changed, at most this often, and one now and then in any case.
LINE_SECONDS = 2.0
HEARTBEAT_SECONDS = 30.0
PATIENCE_SECONDS = 2.0


class Watch:
    """The latest event, and how to word it.

    Attributes
    ----------
    step : str
        What is being done, for commands that do more than to solve.
    """

    def __init__(self, tick_us: float) -> None:
        self._tick_us = tick_us
        self._clock: Callable[[], float] | None = None
        self.latest: Event | None = None
        self.step = ""

    def __call__(self, event: Event) -> None:
        """Take an event, from any thread; nothing here may fail or wait."""
        if self._clock is None:
            began = time.monotonic() - event.seconds
            self._clock = lambda: time.monotonic() - began
        self.latest = event

    def words(self) -> str:
        """Word the state in one line."""
        event, clock = self.latest, self._clock  # once: another thread may begin something else
        if event is None or clock is None:
            return self.step or "starting"
        parts = [f"{clock():7.1f} s", event.phase]
        if event.incumbent is None:
            parts += ["no plan yet", f"bound {event.bound}"]
        else:
            ms = event.incumbent * self._tick_us / 1000
            parts += [f"plan {event.incumbent} ticks ({ms:.6g} ms)", f"bound {event.bound}"]
            parts += [f"gap {100 * (event.gap or 0.0):.2f} %"]
        return "  ".join([self.step, *parts] if self.step else parts)

    def begin(self, step: str, tick_us: float | None = None) -> None:
        """Begin something else; what was known of a solve is over. `tick_us` is of another instance."""
        self.step, self.latest, self._clock = step, None, None
        self._tick_us = tick_us or self._tick_us


@contextmanager
def shown(watch: Watch, quiet: bool) -> Iterator[None]:
    """Show the watch while the body runs: one live line on a terminal, occasional lines elsewhere."""
    if quiet or sys.stderr is None:
        yield
    elif sys.stderr.isatty():
        with _live(watch):
            yield
    else:
        ended = threading.Event()
        thread = threading.Thread(target=_lines, args=(watch, ended), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(1.0)


def _live(watch: Watch) -> Any:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    return Live(
        get_renderable=lambda: Text(watch.words(), no_wrap=True, overflow="ellipsis"),
        console=Console(file=sys.stderr, highlight=False),
        refresh_per_second=REFRESHES_PER_SECOND,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )


def _lines(watch: Watch, ended: threading.Event) -> None:
    told, waited = (watch.latest, watch.step), 0.0
    while not ended.wait(0.25):
        waited += 0.25
        if ((watch.latest, watch.step) != told and waited >= LINE_SECONDS) or waited >= HEARTBEAT_SECONDS:
            told, waited = (watch.latest, watch.step), 0.0
            note(watch.words())


class Interruption:
    """Whether a signal has asked the search to end.

    Attributes
    ----------
    happened : bool
        One has.
    """

    def __init__(self) -> None:
        self.happened = False
        self._settled = False
        self._first = 0.0

    def settle(self) -> None:
        """Let no signal disturb what follows: there is a plan, and it is about to be written."""
        self._settled = True

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, unless that would lose the plan."""
        if self._settled:
            return
        now = time.monotonic()
        # Wrappers and impatient fingers send two at a time; that means no more than one.
        if self.happened and now - self._first < PATIENCE_SECONDS:
            return
        self.happened, self._first = True, now
        raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Make the first Ctrl-C or SIGTERM raise KeyboardInterrupt.

    `octocp.solve` turns it into the best plan that it has. A later one ends the command at once. SIGINT
    stays ignored where it was, as in a shell's background jobs.
    """
    state = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield state
        return
    caught = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, state.handle) for number in caught}
    try:
        yield state
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
