"""A plan as a file for other tools: by format name, a function that returns the file's bytes.

These show any plan, as far as it goes; what runtimes and simulators read is in `octocp.report.export.runtime`. Each
format's module is imported when it is first asked for; matplotlib only for the PNG.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from octocp.schema import Plan

if TYPE_CHECKING:
    from octocp.report.export.gantt import Scene

Exporter = Callable[[Plan], bytes]


def _lazy(module: str) -> Exporter:
    def export(plan: Plan) -> bytes:
        exporter: Exporter = import_module(f"octocp.report.export.{module}").export
        return exporter(plan)

    export.__doc__ = f"Return the plan as a {module} file."
    return export


EXPORTERS: dict[str, Exporter] = {name: _lazy(name) for name in ("trace", "svg", "png", "csv")}

# What each format's files usually end in.
SUFFIXES = {"trace": ".json", "svg": ".svg", "png": ".png", "csv": ".csv"}


def draw(scene: Scene, title: str, format_: str) -> bytes:
    """Return a scene as an "svg" or "png" file."""
    made: bytes = import_module(f"octocp.report.export.{format_}").draw(scene, title)
    return made


__all__ = ["EXPORTERS", "SUFFIXES", "Exporter", "draw"]
