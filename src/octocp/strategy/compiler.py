"""Loading the compiled evaluator in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Compiler:
    """Loads the evaluator, or compiles it: that takes seconds, once per machine and version.

    Attributes
    ----------
    ready : threading.Event
        Set when the evaluator can be used, or cannot be had.
    failure : str
        Why it cannot be had; empty where it can.
    """

    def __init__(self) -> None:
        self.ready = threading.Event()
        self.failure = ""
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        try:
            from octocp.search.compiled import forget_caches
            from octocp.search.local import warm_up

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
