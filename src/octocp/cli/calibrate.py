"""`octocp calibrate`: traces of a run beside its plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octocp.cli.inputs import naming
from octocp.cli.options import Json, PlanArgument
from octocp.cli.output import OTHER_PICTURES, ensure_writable, note, write, write_json
from octocp.errors import InputError


def calibrate(
    plan: PlanArgument,
    traces: Annotated[
        list[Path],
        typer.Argument(metavar="TRACE...", help="Traces of torch.profiler, one per rank or all in one; .gz too."),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.svg", help="Draw both timelines on one axis.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare a plan with traces of its run.

    Reads the PP: spans that torch's pipelining runtime leaves in the traces of torch.profiler, or what octocp run
    --trace wrote. Tells how far each kind of action and the step are from the plan, and the time that an action takes
    beyond its cost, to plan with as op_overhead_us. The median step counts where there are several.
    """
    from octocp.schema.files import load_plan, write_whole
    from octocp.torch import calibration
    from octocp.torch.actions import order_file
    from octocp.torch.picture import svg
    from octocp.torch.timeline import median_step, read_traces

    if output is not None:
        for read in (plan, *traces):
            ensure_writable(output, reads=read)
        if output.suffix.lower() in OTHER_PICTURES:
            raise InputError("is drawn as SVG", file=str(output), right=str(output.with_suffix(".svg")))
    loaded = load_plan(plan)
    with naming(plan):
        order_file(loaded)
    steps = read_traces(traces, loaded)
    with naming(traces[0]):
        found = calibration.calibrate(loaded, median_step(steps))
    if output is not None:
        write_whole(svg(loaded, found), output)
    if as_json:
        write_json({"instance": loaded.instance.name, "steps": len(steps), **calibration.summary(found)})
    else:
        write(calibration.text(found))
    if output is not None:
        note(f"Written to {output}.")
