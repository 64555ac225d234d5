"""Loading the compiled evaluator in the background; compiling it, once per machine, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

COMPILE = "from octocp.search.local import warm_up; warm_up()"


class Compiler:
    """Loads the evaluator, or compiles it: that takes seconds, once per machine and version.

    Attributes
    ----------
    ready : threading.Event
        Set when the evaluator can be used, or cannot be had.
    compiling : bool
        Whether it must be compiled first.
    failure : str
        Why it cannot be had; empty where it can.
    """

    def __init__(self) -> None:
        self.ready = threading.Event()
        self.compiling = False
        self.failure = ""
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        try:
            from octocp.search.compiled import forget_caches, is_cached
            from octocp.search.local import warm_up
            from octocp.search.moves import anneal

            self.compiling = not is_cached(anneal)
            if self.compiling:
                # Another process shares neither Python's lock nor this one's end: the time limit may be over, or
                # Ctrl-C be pressed, before it is through, and the next solve still finds its work done.
                with suppress(OSError):
                    subprocess.Popen(
                        [sys.executable, "-c", COMPILE],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        start_new_session=True,
                    ).wait()
            try:
                warm_up()
            except Exception:  # whatever a broken cache file raises
                forget_caches()
                warm_up()
        except Exception as error:  # without the search, the rest still works
            self.failure = f"{type(error).__name__}: {error}"
        self.ready.set()

    def wait(self, give_up: Callable[[], bool]) -> bool:
        """Wait for the evaluator; return False when `give_up` is true first, or it cannot be had."""
        while not self.ready.wait(0.05):
            if give_up():
                return False
        return not self.failure
