"""`octocp explain`: why a plan takes as long as it does, and what would help most."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octocp.cli.inputs import load, naming
from octocp.cli.options import Json, PlanArgument
from octocp.cli.output import program, write, write_json, write_table

if TYPE_CHECKING:
    from octocp.analysis import Explanation
    from octocp.analysis.critical import Run
    from octocp.schema import Instance, Plan

# A longer path shows its beginning and its end.
MOST_RUNS = 24
# Devices whose share of the path is told; the rest are summed up.
MOST_DEVICES = 8

OtherInstance = Annotated[
    str | None,
    typer.Argument(
        metavar="INSTANCE",
        help="Another instance, a file or a name: the plan's decisions timed anew on it. [default: the plan's own]",
        show_default=False,
    ),
]


def explain(plan: PlanArgument, instance: OtherInstance = None, as_json: Json = False) -> None:
    """Say why a plan takes as long as it does, and what would help.

    Its critical path, the bounds that hold it, each device's idle time by cause, and the single changes that would help
    most: each one made, timed and checked, with the command that applies it.
    """
    from octocp import analysis
    from octocp.analysis.summary import explanation_data

    loaded, other = load_both(plan, instance)
    with naming(plan):
        found = analysis.explain(loaded, other)
    commands = [_command(plan, instance, [str(move) for move in each.moves]) for each in found.advice.suggestions]
    if as_json:
        write_json(explanation_data(found, commands))
        return
    _write_head(found)
    _write_path(found)
    _write_idle(found)
    _write_advice(found, commands)


def load_both(plan: Path, instance: str | None) -> tuple[Plan, Instance | None]:
    """Load a plan, and the other instance if one is named."""
    from octocp.schema.files import load_plan

    return load_plan(plan), None if instance is None else load(instance)[0]


def _command(plan: Path, instance: str | None, moves: list[str]) -> str:
    words = [program(), "try", shlex.quote(str(plan))]
    if instance is not None:
        words.append(shlex.quote(instance))
    # Double quotes are what people write, and nothing in a change needs more.
    return " ".join([*words, *(f'--move "{move}"' for move in moves)])


def _write_head(found: Explanation) -> None:
    from octocp.report.units import amount, percent, printable
    from octocp.report.words import bound_words

    plan = found.plan
    name, method = printable(plan.instance.name), printable(plan.method)
    lines = [f"{name}, method {method}: {plan.objective} {amount(plan, plan.value)}."]
    if found.fused:
        lines.append("Its backward is fused: a gradient is handed on when W ends.")
    words = bound_words(found.bound.name, found.bound.detail) or printable(found.bound.name)
    if plan.value <= found.bound.value:
        lines.append(f"No plan of the instance is faster: {words} ({printable(found.bound.name, 60)}).")
    else:
        less = percent((plan.value - found.bound.value) / plan.value)
        lines.append(
            f"Nearest bound on all plans: {amount(plan, found.bound.value)}, {less} below it: {words} "
            f"({printable(found.bound.name, 60)})."
        )
        held = found.layout_bound
        words = bound_words(held.name, held.detail)
        if plan.value <= held.value:
            lines.append(f"No order on this partition and placement is faster: {words} ({held.name}).")
        elif held.value > found.bound.value:
            less = percent((plan.value - held.value) / plan.value)
            lines.append(
                f"With this partition and placement, no order is below {amount(plan, held.value)}, {less} below it: "
                f"{words} ({held.name})."
            )
    write("\n".join(lines) + "\n\n")


def _write_path(found: Explanation) -> None:
    from rich.table import Table

    from octocp.analysis.summary import cause_words
    from octocp.report.units import counted, milliseconds, percent

    plan, runs = found.plan, found.runs
    length = sum(found.busy.values()) + found.transfer + found.lead
    largest = sorted(found.busy, key=lambda device: -found.busy[device])
    if len(largest) > MOST_DEVICES:
        largest = largest[: MOST_DEVICES - 1]
    parts = [f"device {device} {percent(found.busy[device] / length)}" for device in largest if found.busy[device]]
    others = sum(ticks for device, ticks in found.busy.items() if device not in largest)
    if others:
        parts.append(f"other devices {percent(others / length)}")
    for ticks, what in ((found.transfer, "transfers"), (found.lead, "held back")):
        if ticks and length:
            parts.append(f"{what} {percent(ticks / length)}")
    write(
        f"Critical path: {counted(len(found.path), 'op')} in {counted(len(runs), 'run')}"
        f"{': ' if parts else ''}{', '.join(parts)}.\n"
    )
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in ("from ms", "to ms", "ops"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("device", "what", "starts no earlier because"):
        table.add_column(heading)
    shown: list[Run | None] = list(runs)
    if len(runs) > MOST_RUNS:
        shown = [*runs[: MOST_RUNS // 2], None, *runs[-(MOST_RUNS // 2) :]]
    for run in shown:
        if run is None:
            table.add_row("", "", "", "", f"... {len(runs) - MOST_RUNS} more runs (all with --json)", "")
            continue
        devices = run.devices
        named = ", ".join(map(str, devices)) if len(devices) <= 4 else f"{devices[0]}, {devices[1]} ... {devices[-1]}"
        because = cause_words(plan, run.cause, run.wait, run.steps[0].op.kind)
        if run.transfer:
            because += f"; between its ops {milliseconds(plan, run.transfer):,.6g} ms on the way"
        table.add_row(
            f"{milliseconds(plan, run.start):,.6g}",
            f"{milliseconds(plan, run.end):,.6g}",
            str(len(run.steps)),
            named,
            run.what,
            because,
        )
    write_table(table)
    write("\n")


def _write_idle(found: Explanation) -> None:
    from rich.table import Table

    from octocp.analysis.idle import CAUSES
    from octocp.report.units import milliseconds, percent

    plan = found.plan
    headings = {
        "leading": "before first",
        "forward": "forward",
        "gradient": "gradient",
        "transfer": "transfer",
        "memory": "memory",
        "held_back": "held back",
        "trailing": "after last",
    }
    causes = [name for name in CAUSES if any(getattr(each, name) for each in found.idle)]
    some_ready = any(each.ready for each in found.idle)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in ("device", "idle", "idle ms", *(headings[name] for name in causes), *(["ready*"] * some_ready)):
        table.add_column(heading, justify="left" if heading == "device" else "right", no_wrap=True)
    for each in found.idle:
        ticks = [each.idle, *(getattr(each, name) for name in causes), *([each.ready] * some_ready)]
        cells = [f"{milliseconds(plan, value):,.6g}" if value else "-" for value in ticks]
        table.add_row(str(each.device), percent(each.idle / plan.makespan) if plan.makespan else "-", *cells)
    write("Idle time by what the next op waits for, in ms:\n")
    write_table(table)
    if some_ready:
        write("* of it, with another op at hand that would have fit in memory; no further share.\n")
    write("\n")


def _write_advice(found: Explanation, commands: list[str]) -> None:
    from octocp.analysis.summary import share
    from octocp.report.units import counted, milliseconds

    plan, advice = found.plan, found.advice
    if plan.value <= plan.lower_bound:
        write("Nothing helps: the plan is optimal.\n")
        return
    rest = f"; {advice.left:,} more not, to keep it short" if advice.left else ""
    if not advice.suggestions:
        write(f"No single change helps: {counted(advice.tried, 'change')} timed and checked{rest}.\n")
        return
    lines = [f"What helps most, of {counted(advice.tried, 'change')} timed and checked{rest}:"]
    for suggestion, command in zip(advice.suggestions, commands, strict=True):
        note = ""
        if suggestion.dispatched and suggestion.kept_value is not None:
            note = f" (order kept: {_signed(share(suggestion.kept_value, plan.value))})"
        ms = f"{milliseconds(plan, suggestion.value):,.6g} ms"
        lines.append(f"  {_signed(share(suggestion.value, plan.value)):>8}  {ms}: {suggestion.words()}{note}")
        lines.append(f"            {command}")
    write("\n".join(lines) + "\n")


def _signed(part: float) -> str:
    return f"{100 * part:+.2f} %"
