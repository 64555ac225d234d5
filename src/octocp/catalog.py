"""Where the shipped models and instances are: inside the wheel, or beside a source checkout."""

from __future__ import annotations

from pathlib import Path


def folder(kind: str) -> Path:
    """Return the folder of ``models`` or ``instances``."""
    package = Path(__file__).resolve().parent
    for base in (package / "data", package.parents[1]):
        if (base / kind).is_dir():
            return base / kind
    return package / "data" / kind


def models() -> dict[str, Path]:
    """Map each shipped model's name to its file."""
    return _files("models")


def instances() -> dict[str, Path]:
    """Map each shipped instance's name to its file."""
    return _files("instances")


def _files(kind: str) -> dict[str, Path]:
    found = sorted(folder(kind).rglob("*.yaml"))
    return {path.stem: path for path in found}
