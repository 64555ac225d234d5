"""What an explanation and a trial say: as plain data, and the phrases that the terminal shows."""

from __future__ import annotations

from typing import Any

from octocp.analysis.critical import Step
from octocp.analysis.graph import Cause
from octocp.analysis.idle import CAUSES, Idle
from octocp.analysis.plans import Explanation, Trial
from octocp.analysis.suggest import Suggestion
from octocp.bounds import Bound
from octocp.problem import KIND_NAMES, W
from octocp.report.bubbles import analyse
from octocp.report.units import milliseconds
from octocp.report.words import bound_words
from octocp.schema import Plan


def share(value: int, base: int) -> float:
    """Return how far a value is from a base, as a share of the base; below zero where it is smaller."""
    return (value - base) / base if base else 0.0


def cause_words(plan: Plan, cause: Cause, wait: int, kind: int) -> str:
    """Say why an op starts no earlier.

    Parameters
    ----------
    wait : int
        Ticks between the op before it on the path and its start.
    """
    ms = f"{milliseconds(plan, wait):,.6g} ms"
    if cause == "lead":
        why = ", which shortens the span" if plan.objective == "span" else ": nothing keeps it from an earlier start"
        return f"held back for {ms}{why}"
    words = {
        "start": "nothing is before it",
        "forward": "needs the forward of the stage before",
        "gradient": "needs the gradient of the stage after",
        "own": "right after its B" if kind == W else "right after its F",
        "device": "its device was busy",
        "memory": "memory: what ran before it had to make room",
    }[cause]
    return f"{words}, {ms} on the way" if wait else words


def bound_data(plan: Plan, bound: Bound) -> dict[str, Any]:
    """Return a bound as plain data."""
    return {
        "name": bound.name,
        "value": bound.value,
        "value_ms": milliseconds(plan, bound.value),
        "gap": -share(bound.value, plan.value),
        "detail": bound.detail,
        "explanation": bound_words(bound.name, bound.detail),
    }


def explanation_data(found: Explanation, commands: list[str]) -> dict[str, Any]:
    """Return an explanation as plain data: times in ticks, and in milliseconds where the name says so.

    Parameters
    ----------
    commands : list of str
        For each suggestion, the command that applies it.
    """
    plan = found.plan
    return {
        "instance": plan.instance.name,
        "method": plan.method,
        "objective": plan.objective,
        "tick_us": plan.tick_us,
        "value": plan.value,
        "value_ms": milliseconds(plan, plan.value),
        "fused_backward": found.fused,
        "path": [_step_data(step) for step in found.path],
        "runs": [
            {
                "start": run.start,
                "end": run.end,
                "devices": list(run.devices),
                "ops": len(run.steps),
                "what": run.what,
                "cause": run.cause,
                "wait": run.wait,
                "because": cause_words(plan, run.cause, run.wait, run.steps[0].op.kind),
            }
            for run in found.runs
        ],
        "path_busy": [found.busy[device] for device in sorted(found.busy)],
        "path_transfer": found.transfer,
        "path_held_back": found.lead,
        "bound": bound_data(plan, found.bound),
        "layout_bound": bound_data(plan, found.layout_bound),
        "idle": [_idle_data(each) for each in found.idle],
        "suggestions": [
            _suggestion_data(plan, suggestion, command)
            for suggestion, command in zip(found.advice.suggestions, commands, strict=True)
        ],
        "tried": found.advice.tried,
        "left": found.advice.left,
    }


def _step_data(step: Step) -> dict[str, Any]:
    return {
        "kind": KIND_NAMES[step.op.kind],
        "stage": step.op.stage,
        "microbatch": step.op.microbatch,
        "device": step.device,
        "start": step.start,
        "end": step.end,
        "cause": step.cause,
        "wait": step.wait,
    }


def _idle_data(idle: Idle) -> dict[str, int]:
    causes = {name: int(getattr(idle, name)) for name in (*CAUSES, "ready")}
    return {"device": idle.device, "busy": idle.busy, "idle": idle.idle, **causes}


def _suggestion_data(plan: Plan, suggestion: Suggestion, command: str) -> dict[str, Any]:
    return {
        "moves": [str(move) for move in suggestion.moves],
        "words": suggestion.words(),
        "value": suggestion.value,
        "value_ms": milliseconds(plan, suggestion.value),
        "change": share(suggestion.value, plan.value),
        "order": "new" if suggestion.dispatched else "kept",
        "value_with_order_kept": suggestion.kept_value,
        "command": command,
    }


def trial_data(trial: Trial, file: str | None) -> dict[str, Any]:
    """Return a trial as plain data; `file` is where its plan was written."""
    plan = trial.plan
    return {
        "moves": [str(move) for move in trial.moves],
        "objective": plan.objective,
        "tick_us": plan.tick_us,
        "change": trial.change,
        "before": _plan_data(trial.before),
        "after": _plan_data(plan),
        "plan": file,
        "original": _plan_data(trial.original),
    }


def _plan_data(plan: Plan) -> dict[str, Any]:
    return {
        "value": plan.value,
        "value_ms": milliseconds(plan, plan.value),
        "makespan": plan.makespan,
        "span": plan.span,
        "gap": plan.gap,
        "bubble": analyse(plan).bubble,
        "peak_memory_gb": plan.peak_memory_gb,
        "partition": plan.partition,
        "placement": plan.placement,
    }
