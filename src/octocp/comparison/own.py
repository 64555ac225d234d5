"""A schedule of one's own as a row: read from a file, timed and held against the limits like any other."""

from __future__ import annotations

from collections.abc import Collection
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
    """

    name: str
    schedule: Schedule
    notes: tuple[str, ...] = ()


def read_added(instance: Instance, path: Path, taken: Collection[str] = ()) -> Added:
    """Read a schedule for an instance; the format is told from the file (`octocp.importers`).

    Parameters
    ----------
    taken : collection of str
        Names that rows have already.

    Raises
    ------
    InputError
        The file is missing, or is no schedule of this instance; one line that names the place.
    """
    # Reading formats of other projects is of no use to most comparisons.
    from octocp.importers import read_schedule

    imported = read_schedule(build_problem(instance), path, instance=instance)
    stem = path.name.partition(".")[0] or "own"
    name = imported.name or stem
    number = 1
    while name in taken:
        # A plan names the method that made it, which has a row already: the file's name tells them apart.
        name = stem if number == 1 else f"{stem}-{number}"
        number += 1
    return Added(name, imported.schedule, tuple(imported.notes))
