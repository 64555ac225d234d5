"""Loading the compiled evaluator in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Compiler:
    """Loads the evaluator, or compiles it: that takes seconds, once per machine and version.

    Attributes
    ----------
    ready : threading.Event
        Set when the evaluator can be used.
    """

    def __init__(self) -> None:
        self.ready = threading.Event()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        from octocp.search.local import warm_up

        warm_up()
        self.ready.set()

    def wait(self, give_up: Callable[[], bool]) -> bool:
        """Wait for the evaluator; return False when `give_up` is true first."""
        while not self.ready.wait(0.05):
            if give_up():
                return False
        return True
