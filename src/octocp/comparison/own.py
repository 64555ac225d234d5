"""A schedule of one's own as a row: read from a file, timed and held against the limits like any other."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from octocp.costs import build_problem
from octocp.schedule import Schedule
from octocp.schema import Instance


@dataclass(frozen=True)
class Added:
    """A schedule from a file.

    Attributes
    ----------
    name : str
        What its row is called.
    schedule : Schedule
        Timed on the instance.
    notes : tuple of str
        What was assumed while reading it.
    file : str
        Where it comes from, as it was given.
    """

    name: str
    schedule: Schedule
    notes: tuple[str, ...] = ()
    file: str = ""


_PARTITION = re.compile(r"(.+)@([0-9]{1,6}(?:,[0-9]{1,6})*)")


def file_and_partition(given: str | Path) -> tuple[Path, tuple[int, ...] | None]:
    """Take ``own.torch.csv@4,3,3`` apart: the file and the layers of each stage; a file of that name goes first."""
    path, found = Path(given), _PARTITION.fullmatch(str(given))
    if found is None or os.path.exists(path):  # Path.exists fails on a name that is too long
        return path, None
    return Path(found[1]), tuple(map(int, found[2].split(",")))


def read_added(
    instance: Instance, path: str | Path, taken: Collection[str] = (), partition: Sequence[int] | None = None
) -> Added:
    """Read a schedule for an instance; the format is told from the file (`octocp.importers`).

    Its name is that of the file, with as much of the path as tells it from others.

    Parameters
    ----------
    taken : collection of str
        Names that other rows of one's own have already.
    partition : sequence of int, optional
        Layers per stage, for a PyTorch CSV, which has none.

    Raises
    ------
    InputError
        The file is missing, or is no schedule of this instance; one line that names the place.
    """
    # Reading formats of other projects is of no use to most comparisons.
    from octocp.importers import read_schedule

    imported = read_schedule(build_problem(instance), path, instance=instance, partition=partition)
    name, number = Path(path).name, 1
    while name in taken:
        number += 1
        name = str(path) if number == 2 else f"{Path(path).name} ({number - 1})"
    return Added(name, imported.schedule, tuple(imported.notes), str(path))
