"""A file for a runtime, held against what that runtime needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from octocp.errors import InputError
from octocp.runtimes import megatron, torch_csv, torch_rules, torchtitan
from octocp.runtimes.text import read_file, recognise
from octocp.runtimes.torch_csv import Table

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


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


def check_file(path: Path) -> Report:
    """Check a PyTorch CSV, a TorchTitan configuration with its CSV, or a Megatron layout.

    Raises
    ------
    InputError
        It cannot be read, or is something else.
    """
    text = read_file(path)
    try:
        form = recognise(text, path.name)
        if form == "torch-csv":
            return _check_csv(path, text, torch_csv.parse(text))
        if form == "torchtitan":
            return _check_torchtitan(path, text)
        if form == "megatron":
            return _check_megatron(text)
        if form == "plan":
            raise InputError("is a plan", right=f"octocp check {path}, without --runtime")
        raise InputError(
            "is a SimPipe file, of which nothing can be checked without an instance",
            right=f"octocp compare INSTANCE --add {path}",
        )
    except InputError as error:
        raise error.in_file(str(path)) from None


def _check_csv(path: Path, text: str, table: Table) -> Report:
    kind = "with transfers" if table.has_transfers else "compute only"
    sizes = f"ranks: {len(table.rows)}, stages: {table.stages}, microbatches: {table.microbatches}"
    found = torch_rules.violations(table)
    with path.open("rb") as file:
        marked = file.read(3) == _BYTE_ORDER_MARK
    if marked:
        # `read_file` drops it, PyTorch does not.
        content = (text.splitlines() or [""])[0].partition(",")[0].strip()[:40]
        place = torch_csv.cell(0, 0) + (f" ({content})" if content else "")
        found.insert(
            0,
            f"{place}: begins with a byte order mark, which PyTorch takes for a part of the cell; save the file as "
            "UTF-8 without one",
        )
    return Report(f"PyTorch CSV, {kind}; {sizes}", found, [] if found else torch_rules.remarks(table))


def _check_torchtitan(path: Path, text: str) -> Report:
    read = torchtitan.parse(text)
    summary = f"TorchTitan, stages: {len(read.stages)}"
    wrong = torchtitan.violations(read)
    if not read.csv:
        remark = f"{torchtitan.CSV} is missing: TorchTitan runs an order of its own, which is not checked"
        return Report(summary, wrong, [] if wrong else [remark])
    order = torchtitan.order_file(path, read.csv)
    its_text = read_file(order)
    table = torch_csv.parse(its_text)
    report = _check_csv(order, its_text, table)
    found = list(report.violations)
    if table.has_transfers:
        found.append("has transfers; TorchTitan loads the compute-only form")
    if read.ranks not in (None, len(table.rows)):
        found.append(f"has {len(table.rows)} rows, one for each rank; {torchtitan.DEGREE} is {read.ranks}")
    if table.stages != len(read.stages):
        found.append(f"has {table.stages} stages; {torchtitan.MODULES} has {len(read.stages)}")
    # Where the rows are wrong, so are the ranks that they say.
    found = [f"{order.name}: {line}" for line in found or torchtitan.misplaced(read, table.owners(), len(table.rows))]
    found = wrong + found
    return Report(f"{summary}; {order.name}: {report.summary}", found, [] if found else report.remarks)


def _check_megatron(text: str) -> Report:
    try:
        arguments = megatron.parse_arguments(text)
        # Without the number of ranks, every stage may have one of its own.
        ranks = arguments.ranks or len(arguments.stages)
        megatron.check_layout(arguments, ranks)
        if arguments.group is not None and len(arguments.stages) > ranks > arguments.group:
            raise InputError(
                f"is {arguments.group}, with {ranks} ranks", place=f"--{megatron.GROUP}", right=f"{ranks} or more"
            )
    except InputError as error:
        return Report("", [str(error)], [])
    canonical = megatron.print_hybrid if arguments.hybrid else megatron.print_layout
    remarks = []
    if arguments.ranks is None:
        remarks.append("without --pipeline-model-parallel-size, every stage is taken to have a rank of its own")
    return Report(f"Megatron, {len(arguments.stages)} stages: {canonical(arguments.stages)}", [], remarks)
