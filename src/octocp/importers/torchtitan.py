"""TorchTitan's configuration: the partition from its module names, the order from the CSV that it names."""

from __future__ import annotations

from pathlib import Path

from octocp.errors import InputError
from octocp.importers.parsed import Parsed, layers_for
from octocp.importers.torch_csv import read_torch_csv
from octocp.problem import Problem
from octocp.runtimes import torchtitan
from octocp.runtimes.text import read_file
from octocp.schema import Instance


def read_torchtitan(problem: Problem, text: str, path: Path | None, instance: Instance | None = None) -> Parsed:
    """Read a configuration and its CSV, which is looked for beside it.

    Raises
    ------
    InputError
        A key is missing or wrong, it does not fit the instance, or the CSV is wrong; with the key, or the cell.
    """
    read = torchtitan.parse(text)
    counts = torchtitan.partition(read, layers_for(instance), problem.n_layers)
    if read.ranks not in (None, problem.n_devices):
        raise InputError(f"is {read.ranks}; the instance has {problem.n_devices} devices", place=torchtitan.DEGREE)
    if not read.csv:
        raise InputError(
            f"is missing: the order is that of TorchTitan's own schedule {read.schedule}".rstrip(),
            place=torchtitan.CSV,
            right=f"a CSV of the order by itself: FILE.csv@{','.join(map(str, counts))}",
        )
    order = torchtitan.order_file(path, read.csv)
    try:
        parsed = read_torch_csv(problem, read_file(order), counts)
        wrong = torchtitan.misplaced(read, dict(enumerate(parsed.layout.placement)), problem.n_devices)
        if wrong:
            raise InputError(wrong[0])
    except InputError as error:
        raise error.in_file(str(order)) from None
    return parsed
