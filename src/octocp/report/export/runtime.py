"""A plan as files that a runtime or a simulator reads; refused where the runtime cannot run the plan.

One module a format, imported when it is first asked for, each with ``export`` and ``notes``.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from octocp.errors import InputError
from octocp.schema import Plan

_MODULE = "octocp.report.export."

RUNTIME_SUFFIXES = {
    "torch-csv": ".torch.csv",
    "torch-csv-comms": ".torch-comms.csv",
    "torchtitan": ".torchtitan.toml",
    "megatron": ".megatron.txt",
    "simpipe": ".simpipe.yaml",
    "jaxpp": "_jaxpp.py",
    "chakra": ".et",
}
"""What runtimes read, by format name, and what the files end in."""


@dataclass(frozen=True)
class RuntimeFiles:
    """What is written for a runtime.

    Attributes
    ----------
    files : dict
        Contents by path.
    notes : tuple of str
        What differs in the runtime from the plan, one line each.
    """

    files: dict[Path, bytes]
    notes: tuple[str, ...]


def runtime_files(plan: Plan, form: str, path: Path, *, layout_only: bool = False) -> RuntimeFiles:
    """Return the files of a runtime's format.

    Parameters
    ----------
    form : str
        One of `RUNTIME_SUFFIXES`.
    path : Path
        Where the (first) file goes. ``torchtitan`` puts the order beside it, in a file that ends in .csv, and
        ``chakra`` writes a file a device, with the device's number before the suffix.
    layout_only : bool
        For ``megatron``: write partition and placement though the order is not Megatron's.

    Raises
    ------
    InputError
        The runtime cannot run the plan; the reason is one line.
    """
    module: Any = import_module(_MODULE + form.removesuffix("-comms").replace("-", "_"))
    if layout_only and form != "megatron":
        raise InputError("--layout-only is for --to megatron", right="leave it out")
    if form in ("torchtitan", "chakra"):
        _ensure_apart(form, path)
    if form == "megatron":
        only = {"layout_only": layout_only}
        return RuntimeFiles({path: module.export(plan, **only)}, tuple(module.notes(plan, **only)))
    if form == "torchtitan":
        order = path.with_suffix(".csv")
        files = {path: module.export(plan, order.name), order: import_module(f"{_MODULE}torch_csv").export(plan)}
    elif form == "chakra":
        traces = enumerate(module.export(plan))
        files = {path.with_name(f"{path.stem}.{device}{path.suffix}"): trace for device, trace in traces}
    elif form == "torch-csv-comms":
        files = {path: module.export_with_transfers(plan)}
    else:
        files = {path: module.export(plan)}
    return RuntimeFiles(files, tuple(module.notes(plan)))


def _ensure_apart(form: str, path: Path) -> None:
    """Refuse a name that gives no names for the files beside it."""
    right = "a file name for -o"
    if not path.name:
        raise InputError("is no file name", file=str(path), right=right)
    if path.is_dir() or (path.exists() and not path.is_file()):
        raise InputError(f"is no file, and --to {form} writes several", file=str(path), right=right)
    if form == "torchtitan" and path.suffix.lower() == ".csv":
        raise InputError(
            "is a CSV, and that of the order gets this name", file=str(path), right=str(path.with_suffix(".toml"))
        )
