"""`octocp run`: run a plan under torch, with processes of its own or torchrun's."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octocp.cli.inputs import naming
from octocp.cli.interrupts import ends_at_once, ends_in_order
from octocp.cli.options import Json, PlanArgument
from octocp.cli.output import OTHER_PICTURES, ensure_writable, note, write, write_json
from octocp.cli.torch_options import Where, finite
from octocp.errors import InputError, OctoCPError

if TYPE_CHECKING:
    from octocp.schema import Plan
    from octocp.torch.calibration import Calibration
    from octocp.torch.environment import Torchrun
    from octocp.torch.runner import Job, Outcome
    from octocp.torch.sources import Source
    from octocp.torch.timeline import Timeline

# Gradients in float32 are never equal to the last bit; an op that ran with the wrong input is off by far more.
TOLERANCE = 1e-5
DISTURBING = (signal.SIGINT, signal.SIGTERM)


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
        float,
        typer.Option(
            "--scale", metavar="X", min=1e-3, max=1e6, callback=finite, help="With --sleep: that many times longer."
        ),
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
        float,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            min=1,
            max=86_400,
            callback=finite,
            help="Give up where no rank begins or ends anything for that long.",
        ),
    ] = 120.0,
    as_json: Json = False,
) -> None:
    """Run one training step of a plan under torch.

    Starts a process per device on this machine, or works as the processes that torchrun starts, with the plan's
    stages, placement and order. Reports the measured time, and checks all gradients against one process. Needs
    pip install 'octocp[torch]'.
    """
    from octocp.torch.available import require_torch
    from octocp.torch.environment import AlreadySaidError, await_the_end, torchrun

    require_torch()
    place = torchrun()
    if place is not None:
        # What torch's own log says of a failure, over dozens of lines, the exception says too.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    with _one_voice(place), ends_at_once(silently=place is not None and not place.speaks):
        if sleep and module is not None:
            raise typer.BadParameter("--sleep and --module exclude each other; leave one out")
        if scale != 1 and not sleep:
            raise typer.BadParameter("--scale is for --sleep")
        if place is None or place.rank == 0:
            _ensure_writable(plan, compare, trace, torch_traces)

        from octocp.schema.files import load_plan
        from octocp.torch import launch
        from octocp.torch.actions import order_file, ranks
        from octocp.torch.runner import Job
        from octocp.torch.sources import Source

        loaded = load_plan(plan)
        with naming(plan):
            order_file(loaded, order.value)
        if place is not None:
            place.fits(ranks(loaded))
        source = Source(module or ("sleep" if sleep else "hybrid"), scale=scale, seed=seed)
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
    if place is None:
        with ends_in_order():
            outcome = launch.launch([job], device.value, timeout)[0]
        _report(job, outcome, compare, trace, as_json=as_json)
        if device is Where.cpu:
            _warn_of_few_cores(job)
    else:
        try:
            outcomes = launch.join([job], device.value, timeout, place)
        except AlreadySaidError:
            await_the_end()
            raise typer.Exit(AlreadySaidError.exit_code) from None
        if not outcomes:  # another of torchrun's processes reports
            return
        outcome = outcomes[0]
        _report(job, outcome, compare, trace, as_json=as_json)
    if outcome.gradient_error is not None and outcome.gradient_error > TOLERANCE:
        raise typer.Exit(1)


def _report(job: Job, outcome: Outcome, compare: Path | None, trace: Path | None, *, as_json: bool) -> None:
    from octocp.schema.files import write_whole
    from octocp.torch.signals import held_back
    from octocp.torch.timeline import median_step, trace_json

    step = median_step(outcome.steps)
    found, picture = _compared(job.plan, step, job.source.scale) if compare is not None else (None, b"")
    with held_back(*DISTURBING):
        if trace is not None:
            write_whole(trace_json(step), trace)
        if compare is not None:
            write_whole(picture, compare)
    if as_json:
        write_json(_data(job, outcome, step, found))
    else:
        write(_text(job, outcome, step, found))
    for path in (compare, trace):
        if path is not None:
            note(f"Written to {path}.")


@contextmanager
def _one_voice(place: Torchrun | None) -> Iterator[None]:
    """Have one of torchrun's processes on a machine say what is wrong, and the others wait to be ended with it."""
    try:
        yield
    except (OctoCPError, typer.BadParameter):
        if place is not None and not place.speaks:
            from octocp.torch.environment import await_the_end

            await_the_end()
        raise


def _ensure_writable(plan: Path, compare: Path | None, trace: Path | None, torch_traces: Path | None) -> None:
    if compare is not None and compare.suffix.lower() in OTHER_PICTURES:
        raise InputError("is drawn as SVG", file=str(compare), right=str(compare.with_suffix(".svg")))
    if compare is not None and trace is not None and compare.absolute() == trace.absolute():
        raise InputError("is both --compare and --trace", file=str(trace), right="a file for each")
    for path in (compare, trace):
        if path is not None:
            ensure_writable(path, reads=plan)
    if torch_traces is not None:
        if not torch_traces.is_dir():
            raise InputError("no such folder", file=str(torch_traces), right="make it first")
        ensure_writable(torch_traces / "rank0.json", reads=plan)
        for path in (compare, trace):
            if path is not None and path.absolute().parent == torch_traces.absolute():
                raise InputError("is in the folder of --torch-traces", file=str(path), right="a file elsewhere")


def _warn_of_few_cores(job: Job) -> None:
    from octocp.torch.actions import ranks

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    needed = ranks(job.plan) * job.threads
    if needed > cores and job.source.name != "sleep":
        note(f"{needed} threads of {ranks(job.plan)} ranks shared {cores} cores, which takes longer than a core each.")


def _compared(plan: Plan, step: Timeline, scale: float) -> tuple[Calibration, bytes]:
    from octocp.torch.calibration import calibrate
    from octocp.torch.picture import svg

    found = calibrate(plan, step, scale=scale)
    return found, svg(plan, found, scale=scale)


def _ran(source: Source) -> tuple[dict[str, Any], str]:
    """Say whose layers were run: as data, and in a line."""
    from octocp.report.units import printable

    if source.name == "sleep":
        what = "layers that sleep as long as the plan's costs say"
        text = f"{what}{f', times {source.scale:g}' if source.scale != 1 else ''}; they compute next to nothing"
        return {"layers": "sleeping", "module": None, "scale": source.scale, "sizes": None, "note": text}, text
    if source.name != "hybrid":
        text = f"the layers of {printable(source.name)}"
        return {"layers": "module", "module": source.name, "scale": None, "sizes": None, "note": text}, text
    sizes = source.sizes
    text = (
        f"small synthetic blocks named after the plan's kinds ({sizes.samples} samples of {sizes.tokens} tokens, width "
        f"{sizes.width}, vocabulary {sizes.vocabulary}), not the plan's model: the order and the gradients are put to "
        "the test, times say nothing; --module MODULE:FUNCTION runs layers of your own, --sleep the planned times"
    )
    data = {
        "samples": sizes.samples,
        "tokens": sizes.tokens,
        "width": sizes.width,
        "vocabulary": sizes.vocabulary,
    }
    return {"layers": "synthetic", "module": None, "scale": None, "sizes": data, "note": text}, text


def _or_null(value: float | None) -> float | None:
    """Return a number for JSON, which has none that is not finite."""
    return value if value is not None and math.isfinite(value) else None


def _data(job: Job, outcome: Outcome, step: Timeline, found: Calibration | None) -> dict[str, Any]:
    from octocp.torch.calibration import summary
    from octocp.torch.timeline import makespan

    error = outcome.gradient_error
    return {
        "instance": job.plan.instance.name,
        "method": job.plan.method,
        "ran": _ran(job.source)[0],
        "ranks": len({span.rank for span in step}),
        "wall_ms": outcome.wall_ms,
        "makespan_ms": [makespan(one) for one in outcome.steps],
        "loss": [_or_null(loss) for loss in outcome.losses],
        "gradients_equal": None if error is None else error <= TOLERANCE,
        "gradient_error": _or_null(error),
        "gradient_worst": outcome.worst,
        "timeline": [
            {"rank": span.rank, "action": str(span.action), "start_ms": span.start, "end_ms": span.end} for span in step
        ],
        "comparison": None if found is None else summary(found),
    }


def _text(job: Job, outcome: Outcome, step: Timeline, found: Calibration | None) -> str:
    from octocp.report.units import counted, device_names, percent, printable
    from octocp.torch import calibration
    from octocp.torch.timeline import makespan

    plan, total = job.plan, makespan(step)
    spread = f" ({min(outcome.wall_ms):.4g} to {max(outcome.wall_ms):.4g})" if len(outcome.wall_ms) > 1 else ""
    lines = [
        f"{printable(plan.instance.name)}, {plan.method}: {counted(len(outcome.wall_ms), 'step')} of "
        f"{median(outcome.wall_ms):.4g} ms{spread}; first action to last {total:.4g} ms",
        f"ran {_ran(job.source)[1]}",
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
