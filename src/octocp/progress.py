"""What is known so far: the incumbent, the bound, and how both came about. It lives outside the solver."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from octocp.bounds import Bound
from octocp.schedule import Schedule


@dataclass(frozen=True)
class Event:
    """One step of the search.

    Attributes
    ----------
    seconds : float
        Since the start.
    incumbent : int or None
        Best value known, ticks.
    bound : int
        Best proven lower bound, ticks.
    phase : str
        What is running.
    """

    seconds: float
    incumbent: int | None
    bound: int
    phase: str

    @property
    def gap(self) -> float | None:
        """(incumbent - bound) / incumbent, or None without an incumbent."""
        if self.incumbent is None:
            return None
        return (self.incumbent - self.bound) / self.incumbent if self.incumbent else 0.0


class Progress:
    """The incumbent and the bound, safe to update from the solver's threads.

    Parameters
    ----------
    seconds : float
        Time limit.
    gap : float
        Relative gap at which the search may stop.
    on_event : callable, optional
        Called with every improvement and every new phase.
    """

    def __init__(self, seconds: float, gap: float = 0.0, on_event: Callable[[Event], None] | None = None) -> None:
        self.limit, self.gap = seconds, gap
        self.schedule: Schedule | None = None
        self.found_by = ""
        self.bound = Bound("none", 0)
        self.phase = "start"
        self.trace: list[Event] = []
        self.stop = threading.Event()
        self._on_event = on_event
        self._began = time.monotonic()
        self._lock = threading.RLock()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    @property
    def left(self) -> float:
        """Seconds left."""
        return max(0.0, self.limit - self.seconds)

    @property
    def value(self) -> int | None:
        """The incumbent's value in ticks."""
        return None if self.schedule is None else self.schedule.value

    @property
    def closed(self) -> bool:
        """Whether the gap is within what was asked for."""
        if self.schedule is None:
            return False
        value = self.schedule.value
        return value - self.bound.value <= self.gap * value

    @property
    def done(self) -> bool:
        """Whether the search should end now."""
        return self.closed or self.left <= 0 or self.stop.is_set()

    def enter(self, phase: str) -> None:
        """Begin a phase."""
        with self._lock:
            self.phase = phase
            self._note()

    def offer(self, schedule: Schedule, phase: str | None = None) -> bool:
        """Take a schedule if it keeps the memory limits and beats the incumbent."""
        with self._lock:
            if self.schedule is not None and schedule.value >= self.schedule.value:
                return False
            if schedule.memory_excess() is not None:
                return False
            layout = schedule.layout.canonical(schedule.problem)
            self.schedule, self.found_by = schedule.on_devices(layout), phase or self.phase
            self._note()
            return True

    def prove(self, bound: Bound) -> bool:
        """Take a bound, valid for the whole instance, if it beats the one known."""
        with self._lock:
            if bound.value <= self.bound.value:
                return False
            self.bound = bound
            self._note()
            return True

    def _note(self) -> None:
        event = Event(round(self.seconds, 3), self.value, self.bound.value, self.phase)
        self.trace.append(event)
        if self._on_event:
            self._on_event(event)
        if self.closed:
            self.stop.set()
