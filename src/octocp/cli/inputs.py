"""Reading what commands work on, with the file's name in every error that comes of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from octocp.cli.output import complain
from octocp.errors import InfeasibleError, InputError

if TYPE_CHECKING:
    from octocp.schema import Instance, Plan


def load(reference: str) -> tuple[Instance, Path]:
    """Load an instance, and say which file it came from."""
    from octocp.schema.files import find_instance, load_instance

    path = find_instance(reference)
    return load_instance(path), path


def headline(instance: Instance) -> str:
    """Say in one line how large an instance is and what its stages may be."""
    from octocp.costs import build_problem
    from octocp.report.units import counted, printable

    problem = build_problem(instance)
    least, most = problem.min_stages, problem.max_stages
    stages = counted(most, "stage") if least == most else f"{least:,} to {most:,} stages"
    parts = [
        counted(problem.n_layers, "layer"),
        counted(problem.n_devices, "device"),
        counted(problem.n_microbatches, "microbatch", "microbatches"),
        stages,
    ]
    if problem.partition is not None:
        parts.append("partition given")
    if problem.family != "free":
        parts.append("placement given" if problem.family == "fixed" else f"{problem.family} placement")
    elif instance.stages.max_per_device is not None and instance.stages.max_per_device < most:
        parts.append(f"at most {instance.stages.max_per_device:,} on a device")
    return f"{printable(instance.name)}: {', '.join(parts)}."


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file to errors that are found only once its numbers are put together."""
    try:
        yield
    except InputError as error:
        raise error.in_file(str(path)) from None
    except InfeasibleError as error:
        raise InfeasibleError(f"{path}: {error}") from None


def load_plan_leniently(path: Path) -> tuple[Plan, str]:
    """Load a plan to look at; return it with its first violation, which stderr is told too, or ""."""
    from octocp.checker import check_plan
    from octocp.schema.files import load_plan

    plan = load_plan(path)
    violations = check_plan(plan)
    if not violations:
        return plan, ""
    rest = f", and {len(violations) - 1} more: octocp check {path}" if len(violations) > 1 else ""
    complain(f"warning: {path} is not a valid plan: {violations[0]}{rest}")
    return plan, violations[0]


@contextmanager
def as_far_as_possible(path: Path, violation: str) -> Iterator[None]:
    """Turn the failure to draw a plan that is no plan into an input error; a valid one must not fail."""
    try:
        yield
    except (ArithmeticError, LookupError, ValueError, MemoryError):
        if not violation:
            raise
        raise InputError(f"is too broken to show: {violation}", file=str(path)) from None
