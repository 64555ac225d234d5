"""An explanation and a trial in words, as the command line shows them and `print` does."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from octocp.analysis.critical import Run
from octocp.analysis.idle import CAUSES
from octocp.analysis.summary import cause_words, share
from octocp.report.bubbles import analyse
from octocp.report.units import amount, counted, has_sizes, milliseconds, percent, printable
from octocp.report.words import bound_words

if TYPE_CHECKING:
    from octocp.analysis.plans import Explanation, Trial

# A longer path shows its beginning and its end.
MOST_RUNS = 24
# Devices whose share of the path is told; the rest are summed up.
MOST_DEVICES = 8
# Nobody looks at columns: a row of a table is one line.
WIDTH = 1000


def try_command(moves: Sequence[object], before: str = "octocp try PLAN") -> str:
    """Return the command that makes changes of a plan; it begins with `before`."""
    # Double quotes are what people write, and nothing in a change needs more.
    return " ".join([before, *(f'--move "{move}"' for move in moves)])


def explanation_blocks(found: Explanation, commands: list[str]) -> list[str | Table]:
    """Return what is said about a plan, in order; texts end without a line break.

    Parameters
    ----------
    commands : list of str
        For each suggestion, the command that applies it.
    """
    path, runs = _path(found)
    idle, causes, ready = _idle(found)
    notes = [ready, ""] if ready else [""]
    return [_head(found), "", path, runs, "", idle, causes, *notes, _advice(found, commands)]


def explanation_text(found: Explanation) -> str:
    """Return what `octocp explain` prints, for any width."""
    commands = [try_command(each.moves) for each in found.advice.suggestions]
    return "\n".join(
        block if isinstance(block, str) else rendered(block) for block in explanation_blocks(found, commands)
    )


def rendered(table: Table) -> str:
    """Return a table as plain text."""
    out = io.StringIO()
    Console(file=out, width=WIDTH, no_color=True, highlight=False, markup=False, emoji=False).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines() if line.strip())


def _head(found: Explanation) -> str:
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
    return "\n".join(lines)


def _path(found: Explanation) -> tuple[str, Table]:
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
    text = (
        f"Critical path: {counted(len(found.path), 'op')} in {counted(len(runs), 'run')}"
        f"{': ' if parts else ''}{', '.join(parts)}."
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
    return text, table


def _idle(found: Explanation) -> tuple[str, Table, str]:
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
    ready = "* of it, with another op at hand that would have fit in memory; no further share."
    return "Idle time by what the next op waits for, in ms:", table, ready if some_ready else ""


def _advice(found: Explanation, commands: list[str]) -> str:
    plan, advice = found.plan, found.advice
    if plan.value <= plan.lower_bound:
        return "Nothing helps: the plan is optimal."
    rest = f"; {advice.left:,} more not, to keep it short" if advice.left else ""
    if not advice.suggestions:
        return f"No single change helps: {counted(advice.tried, 'change')} timed and checked{rest}."
    lines = [f"What helps most, of {counted(advice.tried, 'change')} timed and checked{rest}:"]
    for suggestion, command in zip(advice.suggestions, commands, strict=True):
        note = ""
        if suggestion.dispatched and suggestion.kept_value is not None:
            note = f" (order kept: {_signed(share(suggestion.kept_value, plan.value))})"
        ms = f"{milliseconds(plan, suggestion.value):,.6g} ms"
        lines.append(f"  {_signed(share(suggestion.value, plan.value)):>8}  {ms}: {suggestion.words()}{note}")
        lines.append(f"            {command}")
    return "\n".join(lines)


def _signed(part: float) -> str:
    return f"{100 * part:+.2f} %"


def trial_text(trial: Trial) -> str:
    """Return what `octocp try` prints."""
    before, after, original = trial.before, trial.plan, trial.original
    lines = [move.words() for move in trial.moves] or ["No change but this: every op is timed anew."]
    moved = original is not before
    what, value = after.objective, amount(before, before.value)
    if moved:
        own = amount(original, original.makespan if what == "makespan" else original.span)
        value = f"{own} on {printable(original.instance.name)}, {value} on {printable(before.instance.name)}"
    lines += [
        f"{what}: {value} before, {amount(after, after.value)} after: {100 * trial.change:+.2f} %",
        f"bubble: {percent(analyse(before).bubble)} before, {percent(analyse(after).bubble)} after",
    ]
    if after.value == after.lower_bound:
        lines.append("no plan of the instance is faster")
    else:
        lines.append(f"at most {percent(after.gap)} from optimal")
    for key in ("partition", "placement"):
        if getattr(before, key) != getattr(after, key):
            lines.append(f"{key}: {getattr(before, key)} before, {getattr(after, key)} after")
    if has_sizes(after) and before.peak_memory_gb != after.peak_memory_gb:
        peaks = [
            f"device {device} {one:.4g} -> {two:.4g} GB"
            for device, (one, two) in enumerate(zip(before.peak_memory_gb, after.peak_memory_gb, strict=True))
            if one != two
        ]
        lines.append(f"peak memory: {', '.join(peaks)}")
    return "\n".join(lines)
