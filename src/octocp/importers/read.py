"""From a file in any known format to a timed schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from octocp.errors import InputError
from octocp.importers.parsed import Parsed
from octocp.problem import Problem
from octocp.runtimes.text import Format, read_file, recognise
from octocp.schedule import Schedule
from octocp.schema import Instance
from octocp.timing import DeadlockError, time_orders

TITLES: dict[Format, str] = {
    "torch-csv": "PyTorch",
    "megatron": "Megatron",
    "simpipe": "SimPipe",
    "torchtitan": "TorchTitan",
    "plan": "plan",
}


@dataclass(frozen=True)
class Imported:
    """A schedule from a file.

    Attributes
    ----------
    name : str
        The file's name without its suffix, or the method that a plan names.
    schedule : Schedule
        Timed on the instance; it may need more memory than there is (`Schedule.memory_excess`).
    notes : tuple of str
        What was assumed, left out or done differently, one line each.
    """

    name: str
    schedule: Schedule
    notes: tuple[str, ...]


def read_schedule(
    problem: Problem,
    path: str | Path,
    *,
    instance: Instance | None = None,
    partition: Sequence[int] | None = None,
) -> Imported:
    """Read a schedule for an instance: a PyTorch CSV, a Megatron layout, a SimPipe or TorchTitan file, a plan.

    Parameters
    ----------
    instance : Instance, optional
        What `problem` was made of. With it, layers are known by name, and a layer of the wrong kind is noticed.
    partition : sequence of int, optional
        Layers per stage, for a PyTorch CSV, which has none.

    Raises
    ------
    InputError
        The file is missing or wrong, or does not fit the instance; one line that names the cell, character or key.
    """
    path = Path(path)
    text = read_file(path)
    try:
        form = recognise(text, path.name)
        parsed = read_text_as(form, problem, text, path, instance, partition)
        schedule = time_orders(problem, parsed.layout, parsed.orders, fused=parsed.fused)
    except InputError as error:
        raise error.in_file(str(path)) from None
    except DeadlockError as error:
        raise InputError(str(error), file=str(path)) from None
    return Imported(parsed.name or path.name.partition(".")[0] or TITLES[form], schedule, parsed.notes)


def read_text_as(
    form: Format,
    problem: Problem,
    text: str,
    path: Path | None = None,
    instance: Instance | None = None,
    partition: Sequence[int] | None = None,
) -> Parsed:
    """Read a text in a known format.

    Parameters
    ----------
    path : Path, optional
        The file that it comes from: messages of a plan name its lines, and a TorchTitan file has its CSV beside it.
    partition : sequence of int, optional
        Layers per stage, for a PyTorch CSV.
    """
    if partition is not None and form != "torch-csv":
        raise InputError("has a partition of its own", place="partition", right="the file without @N,N,...")
    # Each format drags in what it alone needs.
    if form == "torch-csv":
        from octocp.importers.torch_csv import read_torch_csv

        return read_torch_csv(problem, text, partition)
    if form == "megatron":
        from octocp.importers.megatron import read_megatron

        return read_megatron(problem, text, instance)
    if form == "simpipe":
        from octocp.importers.simpipe import read_simpipe

        return read_simpipe(problem, text, instance)
    if form == "torchtitan":
        from octocp.importers.torchtitan import read_torchtitan

        return read_torchtitan(problem, text, path, instance)
    from octocp.importers.plan import read_plan

    return read_plan(problem, text, path)
