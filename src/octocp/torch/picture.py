"""Predicted and measured in one Gantt chart: two rows for each rank, on one axis."""

from __future__ import annotations

from octocp.report.export.svg import export
from octocp.report.units import device_names
from octocp.schema import Cluster, Device, Plan, PlanOp
from octocp.torch.calibration import Calibration

# Microseconds: fine enough for any action, and whole numbers, as a chart of a plan needs.
TICK_US = 1.0
KINDS = {"F": "F", "I": "B", "B": "B", "W": "W"}


def svg(plan: Plan, found: Calibration, *, scale: float = 1.0) -> bytes:
    """Return the chart of `both_timelines` as an SVG file."""
    return export(both_timelines(plan, found, scale=scale))


def both_timelines(plan: Plan, found: Calibration, *, scale: float = 1.0) -> Plan:
    """Return what to draw as a plan.

    It is one on twice the devices: for each, a row with what was predicted and one with what was
    measured. The fused backward has the colour of the input gradient.

    Parameters
    ----------
    scale : float
        How much longer than planned everything was made to take.
    """
    names = device_names(plan)
    rows = [Device(name=f"{name[:30]}, {what}") for name in names for what in ("plan", "run")]
    ops = [
        PlanOp(
            kind=KINDS[span.action.kind],  # type: ignore[arg-type]
            stage=span.action.stage,
            microbatch=span.action.microbatch,
            device=2 * span.rank + row,
            start=round(1000 * span.start),
            end=round(1000 * span.end),
        )
        for row, timeline in enumerate((found.predicted, found.measured))
        for span in timeline
    ]
    last = max(op.end for op in ops)
    title = f"{plan.instance.name[:30]}: {found.predicted_ms:.4g} ms planned, {found.measured_ms:.4g} ms run"
    instance = plan.instance.model_copy(update={"name": title, "cluster": Cluster(devices=rows)})
    bound = min(last, round(plan.lower_bound * plan.tick_us * scale))
    return plan.model_copy(
        update={
            "instance": instance,
            "tick_us": TICK_US,
            "ops": ops,
            "objective": "makespan",
            "makespan": last,
            "span": last,
            "lower_bound": bound,
            "status": "feasible",
            "placement": [2 * device for device in plan.placement],
            "peak_memory_gb": [0.0] * len(rows),
        }
    )
