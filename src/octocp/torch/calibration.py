"""Predicted against measured: how far off each kind of action is, and how much time an action takes beyond its cost."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from octocp.errors import InputError
from octocp.report.units import milliseconds
from octocp.schema import Plan
from octocp.torch.actions import Action, Actions, delays, microbatches, ranks
from octocp.torch.predict import lengths, predict
from octocp.torch.timeline import Timeline, makespan, producers

WORDS = {"F": "forward", "I": "backward (inputs)", "W": "backward (weights)", "B": "backward (both)"}


@dataclass(frozen=True)
class KindError:
    """One kind of action: how many, and their mean length in milliseconds, predicted and measured."""

    kind: str
    count: int
    predicted_ms: float
    measured_ms: float

    @property
    def error(self) -> float:
        """Measured over predicted, less 1; 0 where nothing was predicted."""
        return self.measured_ms / self.predicted_ms - 1 if self.predicted_ms else 0.0


@dataclass(frozen=True)
class Calibration:
    """A run of a plan beside its prediction.

    Attributes
    ----------
    predicted, measured : Timeline
        The same actions in the same order on every rank.
    kinds : list of KindError
        Lengths by kind of action.
    overhead_us : float
        Microseconds per action beyond its cost and its wait for input: the median, and at least 0.
    op_overhead_us : float
        What to plan with, in microseconds: that, and the overhead that the plan has already.
    corrected_ms : float
        The predicted makespan with that overhead, in milliseconds.
    """

    predicted: Timeline
    measured: Timeline
    kinds: list[KindError]
    overhead_us: float
    op_overhead_us: float
    corrected_ms: float

    @property
    def predicted_ms(self) -> float:
        """Predicted makespan."""
        return makespan(self.predicted)

    @property
    def measured_ms(self) -> float:
        """Measured makespan."""
        return makespan(self.measured)

    @property
    def error(self) -> float:
        """Measured over predicted makespan, less 1."""
        return self.measured_ms / self.predicted_ms - 1 if self.predicted_ms else 0.0

    @property
    def corrected_error(self) -> float:
        """Measured makespan over the one predicted with the overhead, less 1."""
        return self.measured_ms / self.corrected_ms - 1 if self.corrected_ms else 0.0


def calibrate(plan: Plan, measured: Timeline, *, scale: float = 1.0) -> Calibration:
    """Compare a measured step with what the plan says about the same actions in the same order.

    Parameters
    ----------
    scale : float
        How much longer than planned everything was made to take (layers that sleep).

    Raises
    ------
    InputError
        The step is not one of the plan.
    """
    actions = _in_order(plan, measured)
    predicted = _scaled(predict(plan, actions), scale)
    took = {span.action: span.length for span in predicted}
    by_kind: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for span in measured:
        if not _skipped(span.action):
            by_kind[span.action.kind].append((took[span.action], span.length))
    kinds = [
        KindError(kind, len(pairs), mean(one for one, _ in pairs), mean(other for _, other in pairs))
        for kind in WORDS
        if (pairs := by_kind.get(kind))
    ]
    overhead = max(0.0, median(_beyond(plan, measured, scale)))
    corrected = makespan(_scaled(predict(plan, actions, overhead_ms=overhead / scale), scale))
    already = plan.instance.training.op_overhead_us
    return Calibration(predicted, measured, kinds, 1000 * overhead, already + 1000 * overhead, corrected)


def summary(found: Calibration) -> dict[str, Any]:
    """Return the comparison as data for JSON; times in the unit of their names."""
    return {
        "predicted_ms": found.predicted_ms,
        "measured_ms": found.measured_ms,
        "error": found.error,
        "kinds": [
            {
                "kind": each.kind,
                "count": each.count,
                "predicted_ms": each.predicted_ms,
                "measured_ms": each.measured_ms,
                "error": each.error,
            }
            for each in found.kinds
        ],
        "overhead_us": found.overhead_us,
        "op_overhead_us": found.op_overhead_us,
        "corrected_ms": found.corrected_ms,
        "corrected_error": found.corrected_error,
    }


def text(found: Calibration) -> str:
    """Return the comparison in a few lines."""
    lines = [f"{'':20}{'count':>7}{'predicted':>14}{'measured':>14}{'error':>10}"]
    lines += [
        f"{WORDS[each.kind]:20}{each.count:>7}{each.predicted_ms:>11.4g} ms{each.measured_ms:>11.4g} ms"
        f"{100 * each.error:>+8.1f} %"
        for each in found.kinds
    ]
    lines += [
        f"{'step':20}{'':7}{found.predicted_ms:>11.4g} ms{found.measured_ms:>11.4g} ms{100 * found.error:>+8.1f} %",
        f"each action takes {found.overhead_us:.0f} us beyond its cost (median); with that, "
        f"{found.corrected_ms:.4g} ms are predicted ({100 * found.corrected_error:+.1f} %)",
        f"to plan with it: training: {{op_overhead_us: {found.op_overhead_us:.0f}}}",
    ]
    return "\n".join(lines) + "\n"


def _in_order(plan: Plan, measured: Timeline) -> Actions:
    """Return the measured actions by rank and start, once it is certain that they are a whole step of the plan."""
    seen = {span.action for span in measured}
    for stage in range(len(plan.partition)):
        for microbatch in range(microbatches(plan)):
            whole = Action(stage, "B", microbatch) in seen
            halves = {Action(stage, kind, microbatch) for kind in "IW"} <= seen
            for kind, there in (("F", Action(stage, "F", microbatch) in seen), ("B", whole != halves)):
                if not there:
                    right = "a whole step of this plan, traced on all ranks"
                    raise InputError(f"{kind} of stage {stage}, microbatch {microbatch} did not run once", right=right)
    expected = len(plan.partition) * microbatches(plan)
    if len(measured) != 2 * expected + sum(action.kind == "W" for action in seen):
        raise InputError("more actions than the plan has", right="a whole step of this plan")
    found: Actions = [[] for _ in range(ranks(plan))]
    for span in sorted(measured, key=lambda span: (span.start, span.end)):
        found[span.rank].append(span.action)
    return found


def _beyond(plan: Plan, measured: Timeline, scale: float) -> list[float]:
    """Return for each action the milliseconds from when it could start to its end, less what it should take."""
    ends = {span.action: span.end for span in measured}
    took, delay = lengths(plan), delays(plan)
    free: dict[int, float] = {}
    found = []
    for span in sorted(measured, key=lambda span: (span.rank, span.start, span.end)):
        ready = [free.get(span.rank, span.start)]
        for stage, kinds, microbatch in producers(span.action, len(plan.partition)):
            crossing = scale * milliseconds(plan, delay(max(stage, span.action.stage)))
            ready += [ends[key] + crossing for kind in kinds if (key := Action(stage, kind, microbatch)) in ends]
        if not _skipped(span.action):
            found.append(span.end - max(ready) - scale * took[span.action.kind, span.action.stage])
        free[span.rank] = span.end
    return found


def _skipped(action: Action) -> bool:
    """Tell whether torch does nothing for an action."""
    return action.kind == "I" and action.stage == 0


def _scaled(timeline: Timeline, scale: float) -> Timeline:
    return [span._replace(start=scale * span.start, end=scale * span.end) for span in timeline]


__all__ = ["Calibration", "KindError", "calibrate", "summary", "text"]
