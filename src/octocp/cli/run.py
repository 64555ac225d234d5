"""`octocp run`: run a plan under torch, with processes of its own or torchrun's."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octocp.cli.inputs import naming
from octocp.cli.options import Json, PlanArgument
from octocp.cli.output import ensure_writable, note, write, write_json
from octocp.errors import InputError

if TYPE_CHECKING:
    from octocp.schema import Plan
    from octocp.torch.calibration import Calibration
    from octocp.torch.runner import Outcome
    from octocp.torch.timeline import Timeline

# Gradients in float32 are never equal to the last bit; an op that ran with the wrong input is off by far more.
TOLERANCE = 1e-5


class Where(StrEnum):
    """What the ranks compute on."""

    cpu = "cpu"
    cuda = "cuda"


class Order(StrEnum):
    """The formats that torch loads an order from."""

    compute_only = "compute_only"
    compute_comms = "compute_comms"


def run(
    plan: PlanArgument,
    module: Annotated[
        str | None,
        typer.Option(
            "--module",
            metavar="MODULE:FUNCTION",
            help="A function of yours that returns (layers, sample) or (layers, sample, target, loss). "
            "[default: small attention, Mamba and MLP blocks, by the names of the plan's kinds]",
        ),
    ] = None,
    sleep: Annotated[
        bool, typer.Option("--sleep", help="Layers that only take the time that the plan's costs say.")
    ] = False,
    scale: Annotated[
        float, typer.Option("--scale", metavar="X", min=1e-3, max=1e6, help="With --sleep: that many times longer.")
    ] = 1.0,
    steps: Annotated[int, typer.Option("--steps", metavar="N", min=1, max=10_000, help="Steps to measure.")] = 3,
    warm_up: Annotated[int, typer.Option("--warm-up", metavar="N", min=1, max=10_000, help="Steps before them.")] = 1,
    device: Annotated[Where, typer.Option("--device", help="cpu: gloo; cuda: NCCL, a GPU per process.")] = Where.cpu,
    order: Annotated[
        Order, typer.Option("--order", help="compute_only: torch places transfers; compute_comms: OctoCP does.")
    ] = Order.compute_only,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Compare the gradients with those of one process.")
    ] = True,
    compare: Annotated[
        Path | None,
        typer.Option("--compare", metavar="FILE.svg", help="Compare with the plan's times, and draw both."),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Write what ran when, for Perfetto or calibrate.")
    ] = None,
    torch_traces: Annotated[
        Path | None,
        typer.Option("--torch-traces", metavar="FOLDER", help="Write torch.profiler's traces of one more step."),
    ] = None,
    threads: Annotated[int, typer.Option("--threads", metavar="N", min=1, max=1024, help="CPU threads a rank.")] = 1,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, max=2**31 - 1, help="Of weights and data.")] = 0,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=1, max=86_400, help="Without progress, give up.")
    ] = 120.0,
    as_json: Json = False,
) -> None:
    """Run one training step of a plan under torch.

    Starts a process per device on this machine, or works as the processes that torchrun starts, with the plan's
    stages, placement and order. Reports the measured time, and checks all gradients against one process. Needs
    pip install 'octocp[torch]'.
    """
    from octocp.torch.available import require_torch

    require_torch()
    if sleep and module is not None:
        raise typer.BadParameter("--sleep and --module exclude each other; leave one out")
    if scale != 1 and not sleep:
        raise typer.BadParameter("--scale is for --sleep")
    for path in (compare, trace):
        if path is not None:
            ensure_writable(path, reads=plan)

    if torch_traces is not None and not torch_traces.is_dir():
        raise InputError("no such folder", file=str(torch_traces), right="make it first")

    from octocp.schema.files import load_plan, write_whole
    from octocp.torch import launch
    from octocp.torch.actions import order_file
    from octocp.torch.runner import Job
    from octocp.torch.sources import Source
    from octocp.torch.timeline import median_step, trace_json

    loaded = load_plan(plan)
    with naming(plan):
        order_file(loaded, order.value)
    name = module or ("sleep" if sleep else "hybrid")
    source = Source(name, scale=scale, seed=seed)
    job = Job(
        loaded,
        source,
        csv_format=order.value,
        steps=steps,
        warm_up=warm_up,
        check=check,
        threads=threads,
        torch_traces="" if torch_traces is None else str(torch_traces.resolve()),
    )
    if launch.under_torchrun():
        outcomes = launch.join([job], device.value, timeout)
    else:
        outcomes = launch.launch([job], device.value, timeout)
    if outcomes is None:  # another of torchrun's processes reports
        return
    outcome = outcomes[0]
    step = median_step(outcome.steps)
    if trace is not None:
        write_whole(trace_json(step), trace)
    found = _compared(loaded, step, scale, compare) if compare is not None else None
    if as_json:
        write_json(_data(loaded, outcome, step, found))
    else:
        write(_text(loaded, outcome, step, found))
    for path in (compare, trace):
        if path is not None:
            note(f"Written to {path}.")
    if outcome.gradient_error is not None and outcome.gradient_error > TOLERANCE:
        raise typer.Exit(1)


def _compared(plan: Plan, step: Timeline, scale: float, path: Path) -> Calibration:
    from octocp.schema.files import write_whole
    from octocp.torch.calibration import calibrate
    from octocp.torch.picture import svg

    found = calibrate(plan, step, scale=scale)
    write_whole(svg(plan, found, scale=scale), path)
    return found


def _data(plan: Plan, outcome: Outcome, step: Timeline, found: Calibration | None) -> dict[str, Any]:
    from octocp.torch.calibration import summary
    from octocp.torch.timeline import makespan

    return {
        "instance": plan.instance.name,
        "method": plan.method,
        "ranks": len({span.rank for span in step}),
        "wall_ms": outcome.wall_ms,
        "makespan_ms": [makespan(one) for one in outcome.steps],
        "loss": outcome.losses,
        "gradient_error": outcome.gradient_error,
        "gradient_worst": outcome.worst,
        "timeline": [
            {"rank": span.rank, "action": str(span.action), "start_ms": span.start, "end_ms": span.end} for span in step
        ],
        "comparison": None if found is None else summary(found),
    }


def _text(plan: Plan, outcome: Outcome, step: Timeline, found: Calibration | None) -> str:
    from octocp.report.units import counted, device_names, percent, printable
    from octocp.torch import calibration
    from octocp.torch.timeline import makespan

    total = makespan(step)
    spread = f" ({min(outcome.wall_ms):.4g} to {max(outcome.wall_ms):.4g})" if len(outcome.wall_ms) > 1 else ""
    lines = [
        f"{printable(plan.instance.name)}, {plan.method}: {counted(len(outcome.wall_ms), 'step')} of "
        f"{median(outcome.wall_ms):.4g} ms{spread}; first action to last {total:.4g} ms",
    ]
    for rank, name in enumerate(device_names(plan)):
        spans = [span for span in step if span.rank == rank]
        busy = sum(span.length for span in spans)
        lines.append(f"{name}: {counted(len(spans), 'action')}, busy {busy:.4g} ms, idle {percent(1 - busy / total)}")
    if outcome.gradient_error is not None:
        verdict = "equal to" if outcome.gradient_error <= TOLERANCE else "NOT equal to"
        worst = f", in {outcome.worst}" if outcome.gradient_error else ""
        lines.append(f"gradients {verdict} those of one process: relative error {outcome.gradient_error:.2g}{worst}")
    return "\n".join(lines) + "\n" + ("" if found is None else "\n" + calibration.text(found))
