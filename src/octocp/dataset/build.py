"""Building a data set: every instance of the spec to a row, wherever tasks run; what is there already stays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octocp.dataset.executors import Done, Executor, Payload
from octocp.dataset.generate import Drawn, generate
from octocp.dataset.spec import Spec, as_data, digest, load_models, load_spec
from octocp.dataset.store import Store, ensure_usable
from octocp.dataset.trust import DisagreementError, check_payload
from octocp.dataset.views import write_views
from octocp.errors import InputError, OctoCPError

# Tasks that fail one after the other, none in between having worked: it is not the tasks.
MOST_FAILURES = 10


class IncompleteError(OctoCPError):
    """Some tasks gave no row; the same command tries them again."""

    exit_code = 4


@dataclass
class State:
    """How far a build is.

    Attributes
    ----------
    step : str
        "instances" (drawing them), "rows", "second proofs" or "writing".
    done, total : int
        Of the step.
    fresh : int
        Of `done`, by this run.
    rows, proven : int
        Rows, and those with nothing left open.
    """

    step: str = "instances"
    done: int = 0
    total: int = 0
    fresh: int = 0
    rows: int = 0
    proven: int = 0
    _began: float = field(default_factory=time.monotonic)

    def begin(self, step: str, done: int, total: int) -> None:
        """Begin another step."""
        self.step, self.done, self.total, self.fresh, self._began = step, done, total, 0, time.monotonic()

    @property
    def rate(self) -> float:
        """Tasks per second of this run."""
        return self.fresh / max(1e-9, time.monotonic() - self._began)

    @property
    def left(self) -> float | None:
        """Seconds left at this rate; None before the first task is done."""
        return (self.total - self.done) / self.rate if self.fresh else None

    def words(self) -> str:
        """Word the state in one line."""
        parts = [f"{self.step} {self.done:,}/{self.total:,}" if self.total else self.step]
        if self.fresh and self.total:
            parts.append(f"{self.rate:.2f}/s" if self.rate >= 0.1 else f"{60 * self.rate:.1f}/min")
        if self.rows:
            parts.append(f"{100 * self.proven / self.rows:.1f} % proven")
        if self.left is not None and self.done < self.total:
            parts.append(f"{_duration(self.left)} left")
        return "  ".join(parts)


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


@dataclass(frozen=True)
class Built:
    """What a build ends with.

    Attributes
    ----------
    fresh : int
        Rows and second proofs of this run.
    files : list of Path
        What was written beside the log.
    notes : list of str
        What the user should know.
    """

    rows: int
    proven: int
    confirmed: int
    fresh: int
    files: list[Path]
    notes: list[str]


def prepared(path: str | Path, folder: Path) -> Spec:
    """Load a spec, and refuse a folder that it cannot be built in before anything is made there.

    Raises
    ------
    InputError
        The spec or a model that it names is wrong, or the folder belongs to something else.
    """
    spec = load_spec(path)
    ensure_usable(folder, digest(spec, load_models(spec, path)))
    return spec


def build_file(
    path: str | Path,
    folder: str | Path,
    executor: Executor,
    *,
    double_check: bool = False,
    on_state: Callable[[State], None] | None = None,
) -> Built:
    """Build the data set of a spec file; see `build`."""
    spec = load_spec(path)
    models = load_models(spec, path)
    try:
        return build(spec, models, Path(folder), executor, double_check=double_check, on_state=on_state)
    except InputError as error:
        if error.place.startswith("families"):  # no more instances in its ranges
            raise error.in_file(str(path)) from None
        raise


def build(
    spec: Spec,
    models: dict[str, Any],
    folder: Path,
    executor: Executor,
    *,
    double_check: bool = False,
    on_state: Callable[[State], None] | None = None,
) -> Built:
    """Build a data set in a folder; what an earlier build has done, interrupted or not, is kept.

    Parameters
    ----------
    models : dict
        The models that the spec names (`load_models`).
    double_check : bool
        Prove every proof again with other settings.
    on_state : callable, optional
        Called with the (one) state at every change of it.

    Raises
    ------
    InputError
        The spec asks for what there is not, or the folder cannot be used.
    DisagreementError
        Two proofs contradict each other; both sides are in the folder.
    IncompleteError
        Some tasks gave no row.
    """
    state = State()
    tell = on_state or (lambda _: None)
    manifest = {
        "name": spec.name,
        "digest": digest(spec, models),
        "generator": spec.generator,
        "count": spec.count,
        "spec": as_data(spec),
    }
    with Store(folder, manifest) as store:
        tell(state)
        notes = [f"a line that a crash left incomplete was dropped ({store.lost} bytes)"] if store.lost else []
        # Twice: first to know that the spec can be met, without keeping all instances in memory.
        names = [one.id for one in generate(spec, models)]
        _adopt(store, names)
        run = _Run(store, executor, state, tell)
        run.solves(generate(spec, models), len(names), spec)
        if double_check:
            run.checks(names)
        state.begin("writing", 0, 0)
        tell(state)
        files, more = write_views(folder, manifest, lambda: store.in_order(names))
        confirmed = sum(check["status"] == store.rows[name].status for name, check in store.checks.items())
        if run.failures:
            first = run.failures[0]
            raise IncompleteError(
                f"{len(run.failures)} of {len(names)} tasks gave no result, the first {first.id}: {first.failure}; "
                "the same command tries them again"
            )
        return Built(len(store.rows), state.proven, confirmed, run.fresh, files, notes + more)


def _adopt(store: Store, names: list[str]) -> None:
    """Refuse a folder whose rows are not the spec's."""
    known = set(names)
    strange = next((name for name in store.rows if name not in known), None)
    if strange is not None:
        raise InputError(f"row {strange} is not of this spec", file=str(store.folder), right="a new folder for -o")


class _Run:
    """The tasks of one build."""

    def __init__(self, store: Store, executor: Executor, state: State, tell: Callable[[State], None]) -> None:
        self.store, self.executor, self.state, self.tell = store, executor, state, tell
        self.failures: list[Done] = []
        self.fresh = 0
        self._in_a_row = 0

    def solves(self, drawn: Iterator[Drawn], total: int, spec: Spec) -> None:
        """Make the rows that are missing."""
        from octocp.dataset.tasks import solve_payload

        self.state.begin("rows", len(self.store.rows), total)
        missing = (one for one in drawn if one.id not in self.store.rows)
        limit, seed = spec.solve.time_limit, spec.solve.seed
        self._perform(solve_payload(one, time_limit=limit, seed=seed, generator=spec.generator) for one in missing)

    def checks(self, names: list[str]) -> None:
        """Make the second proofs that are missing."""
        missing = [name for name in names if self.store.unchecked(name)]
        total = len(missing) + len(self.store.checks)
        self.state.begin("second proofs", total - len(missing), total)
        self._perform(check_payload(self.store.row(name)) for name in missing)

    def _perform(self, payloads: Iterator[Payload]) -> None:
        self._count()
        self.tell(self.state)
        with closing(self.executor.run(payloads)) as over:
            for done in over:
                self._take(done)
                self._count()
                self.tell(self.state)

    def _take(self, done: Done) -> None:
        self.state.done += 1
        self.state.fresh += 1
        if done.result is None:
            self.failures.append(done)
            self._in_a_row += 1
            if self._in_a_row == MOST_FAILURES and self.fresh == 0:
                raise IncompleteError(f"the first {MOST_FAILURES} tasks all failed, {done.id}: {done.failure}")
            return
        self._in_a_row = 0
        self.fresh += 1
        if "disagreement" in done.result:
            found = done.result["disagreement"]
            path = self.store.keep_disagreement(done.id, found)
            raise DisagreementError(
                f"{path}: two proofs disagree on {done.id}: {found['what']}; both sides are kept beside it; "
                "this is a bug in OctoCP, please report it"
            )
        if "row" in done.result:
            self.store.add_row(done.result["row"])
        else:
            self.store.add_check(done.id, done.result["check"])

    def _count(self) -> None:
        self.state.rows, self.state.proven = len(self.store.rows), self.store.proven
