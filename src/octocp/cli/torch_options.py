"""What the options of `octocp run` and `octocp profile` have in common."""

from __future__ import annotations

import math
from enum import StrEnum

import typer


class Where(StrEnum):
    """What is computed on."""

    cpu = "cpu"
    cuda = "cuda"


def finite(value: float) -> float:
    """Refuse what a range lets pass because it compares with nothing."""
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no number that can be used here")
    return value
