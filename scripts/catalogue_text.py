"""YAML text for the catalogue's generators: the same bytes every time, and easy to read.

PyYAML's own dumper is not used because its line breaks and quoting are not ours to keep stable, and
because a cost table reads best with one kind a line.
"""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 100

# A word that YAML reads back as the same text, in block and in flow context.
PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*\Z")
RESERVED = {"true", "false", "null", "yes", "no", "on", "off"}


def scalar(value: Any) -> str:
    """Render one value in flow style: a scalar, a list or a mapping."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{scalar(key)}: {scalar(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(scalar(item) for item in value) + "]"
    if isinstance(value, str):
        plain = PLAIN.match(value) and value.lower() not in RESERVED
        return value if plain else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)


def folded(key: str, text: str, indent: int = 0) -> str:
    """Render a paragraph as a folded block, which reads back as one line of text."""
    pad = " " * (indent + 2)
    lines = textwrap.wrap(" ".join(text.split()), WIDTH - len(pad), break_on_hyphens=False, break_long_words=False)
    return f"{' ' * indent}{key}: >-\n" + "".join(f"{pad}{line}\n" for line in lines)


def block(key: str, items: dict[str, Any], indent: int = 0) -> str:
    """Render a mapping with one entry a line, each in flow style."""
    pad = " " * (indent + 2)
    return f"{' ' * indent}{key}:\n" + "".join(f"{pad}{scalar(name)}: {scalar(item)}\n" for name, item in items.items())


def write_all(files: dict[str, str], folder: Path) -> None:
    """Write the generated files into `folder` and remove YAML files that nothing generates any more."""
    for path in sorted(folder.rglob("*.yaml")):
        if str(path.relative_to(folder)) not in files:
            path.unlink()
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
