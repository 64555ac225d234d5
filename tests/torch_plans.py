"""Plans to run under torch: every kind of schedule and placement, from OctoCP's heuristics and its solver."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import accumulate

import pytest

import octocp
import tiny
from octocp.costs import build_problem
from octocp.decode import checked
from octocp.heuristics import ALL_HEURISTICS, SERIAL, attempts
from octocp.schema import Instance, Plan

ALL = {heuristic.name: heuristic for heuristic in (*ALL_HEURISTICS, SERIAL)}


def heuristic_plan(instance: Instance, name: str, rule: str = "") -> Plan:
    """Return the first plan of a heuristic, with a partition rule if one is named."""
    for attempt in attempts(ALL[name], build_problem(instance)):
        if attempt.status == "feasible" and attempt.schedule is not None and rule in ("", attempt.rule):
            return checked(attempt.schedule, instance, method=name, lower_bound=0)
    raise AssertionError(f"{name} has no plan")


def solver_plan(instance: Instance, seconds: float) -> Plan:
    return octocp.solve(instance, time_limit=seconds, workers=1, seed=0).plan


# By number of ranks: placements that no family has.
IRREGULAR = {
    2: ([0, 1, 1, 1, 0], [1, 0, 0, 1], [0, 0, 1]),
    3: ([2, 0, 1, 0], [0, 1, 0, 2, 1, 1], [1, 1, 2, 0, 2]),
    4: ([0, 2, 1, 3, 0, 0], [3, 1, 0, 2], [0, 1, 2, 1, 3, 2, 0]),
}
LAYERS = [(1, 0, 2), (2, 3, 1), (3, 4, 2), (1, 2, 1), (2, 3, 2), (2, 2, 1), (3, 3, 1), (5, 6, 2)]


def variety(ranks: int) -> Iterator[Plan]:
    """Yield 15 plans for a number of ranks.

    Loop, V and irregular placements; split and fused; fewer microbatches than ranks, as many, and more.
    """
    few, some, many = (
        tiny.instance(LAYERS, devices=ranks, microbatches=count) for count in (max(1, ranks - 1), ranks, 2 * ranks)
    )
    fused = tiny.instance(LAYERS, devices=ranks, microbatches=ranks, split_backward=False)
    yield from (heuristic_plan(few, name) for name in ("1f1b", "zb-h1", "list-dispatch"))
    yield from (heuristic_plan(some, name) for name in ("gpipe", "v-zb"))
    yield from (heuristic_plan(fused, name) for name in ("hanayo", "interleaved-1f1b"))
    yield from (heuristic_plan(many, name) for name in ("1f1b", "zb-h2", "v-half", "interleaved-1f1b"))
    for index, placement in enumerate(IRREGULAR[ranks]):
        fixed = tiny.instance(
            LAYERS, devices=ranks, microbatches=ranks + index, placement=placement, split_backward=index != 1
        )
        yield heuristic_plan(fixed, "list-dispatch")
    yield solver_plan(tiny.instance(LAYERS, devices=ranks, microbatches=ranks + 1), 2.0)


def everything(ranks: int) -> Iterator[Plan]:
    """Yield every plan that any heuristic has for a number of ranks, with its first partition."""
    for microbatches in (max(1, ranks - 1), ranks, 2 * ranks, 3 * ranks + 1):
        for split in (True, False):
            instance = tiny.instance(LAYERS, devices=ranks, microbatches=microbatches, split_backward=split)
            for name, heuristic in ALL.items():
                found = [a for a in attempts(heuristic, build_problem(instance)) if a.status == "feasible"]
                for attempt in {a.schedule.layout.placement: a for a in found if a.schedule}.values():
                    if attempt.schedule is not None:
                        yield checked(attempt.schedule, instance, method=name, lower_bound=0)


# Mean milliseconds that sleeps may last too long on a machine where times are worth measuring; 0.1 is usual.
QUIET_MS = 0.5


def when_quiet(check: Callable[[], None], attempts: int = 2) -> None:
    """Run a check of measured times; one that fails only because the machine is busy is skipped, with the numbers."""
    for attempt in range(attempts):
        lateness = Lateness()
        try:
            check()
            return
        except AssertionError as error:
            late = lateness.worst_ms()
            if late > QUIET_MS and attempt == attempts - 1:
                pytest.skip(f"busy machine: sleeps last {late:.1f} ms too long; {str(error).splitlines()[0]}")
            if attempt == attempts - 1:
                raise
        finally:
            lateness.ended.set()


class Lateness:
    """How much too long sleeps last while something else runs: what makes a machine busy may be over at the end."""

    WINDOW = 50

    def __init__(self) -> None:
        self.ended = threading.Event()
        self._late_ms: list[float] = []
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self.ended.is_set():
            began = time.perf_counter()
            time.sleep(0.01)
            self._late_ms.append(1000 * (time.perf_counter() - began) - 10)

    def worst_ms(self) -> float:
        """Stop, and return the mean of the worst half second."""
        self.ended.set()
        self._thread.join()
        sums = list(accumulate(self._late_ms, initial=0.0))
        window = min(self.WINDOW, len(self._late_ms))
        return max((end - begin for begin, end in zip(sums, sums[window:], strict=False)), default=0.0) / (window or 1)
