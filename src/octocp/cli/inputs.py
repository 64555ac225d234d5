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


@contextmanager
def naming_option(option: str) -> Iterator[None]:
    """Put the option's name in errors about what it was given."""
    try:
        yield
    except InputError as error:
        raise InputError(error.problem, place=option, right=error.right) from None


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


def instances_in(reference: str) -> list[str] | None:
    """Return the instance files of a folder, in order; None where a reference is no folder.

    A folder is a path, or the name of one of the catalogue's (``teaching``). Plans and models in it are passed over.

    Raises
    ------
    InputError
        It holds no instance.
    """
    from octocp import catalog
    from octocp.schema.reading import read_document

    if not reference or reference in catalog.instances():
        return None
    folder = Path(reference)
    # A name with a NUL byte, say, is left to the reader of instances, which words that.
    try:
        if not folder.is_dir():
            shipped = catalog.folder("instances") / reference
            if Path(reference).name != reference or folder.exists() or not shipped.is_dir():
                return None
            folder = shipped
    except (OSError, ValueError):
        return None
    found = []
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() not in {".yaml", ".yml", ".json"} or path.name.startswith(".") or path.is_dir():
            continue
        if path.name.endswith(".plan.json"):
            continue
        data = read_document(path).data
        if isinstance(data, dict) and str(data.get("format", "")).startswith(("octocp.plan/", "octocp.model/")):
            continue
        if path.suffix.lower() == ".json" and not (isinstance(data, dict) and "format" in data):
            continue
        found.append(str(path))
    if not found:
        right = "instances are .yaml or .json files"
        raise InputError("is a folder without an instance in it", file=str(folder), right=right)
    return found
