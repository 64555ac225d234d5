"""Options that several commands share, with their checks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

# As in octocp.api, which is too slow to import for the help.
DEFAULT_TIME_LIMIT = 60.0
MAX_TIME_LIMIT = 30 * 24 * 3600.0
MAX_WORKERS = 1000
MAX_SEED = 2**31 - 1


def _time_limit(value: float) -> float:
    if not (math.isfinite(value) and 0 < value <= MAX_TIME_LIMIT):
        raise typer.BadParameter(f"{value:g} is not a number of seconds above 0 and up to {MAX_TIME_LIMIT:.0f}")
    return value


def _gap(value: float) -> float:
    if not 0 <= value < 1:
        raise typer.BadParameter(f"{value:g} is not a share from 0 up to but not including 1 (0.01 is 1 %)")
    return value


InstanceArgument = Annotated[
    str, typer.Argument(metavar="INSTANCE", help="An instance file, or a name that `octocp instances` lists.")
]
PlanArgument = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file written by `octocp solve`.")]
TimeLimit = Annotated[
    float,
    typer.Option("--time-limit", "-t", metavar="SECONDS", callback=_time_limit, help="Seconds to search at most."),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", "-w", metavar="N", min=1, max=MAX_WORKERS, help="Threads. [default: every core, up to 8]"
    ),
]
Seed = Annotated[
    int,
    typer.Option(metavar="N", min=0, max=MAX_SEED, help="With one worker, the same seed repeats the same search."),
]
Gap = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        callback=_gap,
        help="Stop once the plan is proven this close to optimal: 0.01 is 1 %.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Write one JSON document to stdout.")]
