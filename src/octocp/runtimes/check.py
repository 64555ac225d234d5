"""A file for a runtime, held against what that runtime needs."""

from __future__ import annotations

from dataclasses import dataclass

from octocp.errors import InputError
from octocp.runtimes import megatron, torch_csv, torch_rules
from octocp.runtimes.text import recognise


@dataclass(frozen=True)
class Report:
    """What is wrong with a file, and what its user should know; one line each.

    Attributes
    ----------
    summary : str
        What the file is, in a few words.
    """

    summary: str
    violations: list[str]
    remarks: list[str]


def check_text(text: str, file: str) -> Report:
    """Check a PyTorch CSV, or a Megatron layout.

    Raises
    ------
    InputError
        It is neither.
    """
    form = recognise(text, file)
    if form == "torch-csv":
        table = torch_csv.parse(text)
        kind = "with transfers" if table.has_transfers else "compute only"
        sizes = f"ranks: {len(table.rows)}, stages: {table.stages}, microbatches: {table.microbatches}"
        found = torch_rules.violations(table)
        return Report(f"PyTorch CSV, {kind}; {sizes}", found, [] if found else torch_rules.remarks(table))
    if form == "megatron":
        return _check_megatron(text)
    if form == "plan":
        raise InputError("is a plan", right="octocp check PLAN, without --runtime")
    raise InputError(
        "is a SimPipe file, of which nothing can be checked without an instance",
        right="octocp compare INSTANCE --add FILE",
    )


def _check_megatron(text: str) -> Report:
    try:
        arguments = megatron.parse_arguments(text)
        # Without the number of ranks, every stage may have one of its own.
        ranks = arguments.ranks or len(arguments.stages)
        megatron.check_layout(arguments, ranks)
    except InputError as error:
        return Report("", [str(error)], [])
    canonical = megatron.print_hybrid if arguments.hybrid else megatron.print_layout
    remarks = []
    if arguments.ranks is None:
        remarks.append("without --pipeline-model-parallel-size, every stage is taken to have a rank of its own")
    return Report(f"Megatron, {len(arguments.stages)} stages: {canonical(arguments.stages)}", [], remarks)
