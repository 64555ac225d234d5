"""The manifest of a data set's folder: the spec that its log belongs to, and how many rows that asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from octocp.dataset.names import LOG, MANIFEST
from octocp.dataset.rows import strict_json
from octocp.dataset.spec import Spec
from octocp.errors import InputError
from octocp.schema.messages import validate
from octocp.schema.reading import Document

KEYS = {"digest": str, "name": str, "count": int}
WORDS = {str: "no text", int: "no whole number"}


def read_manifest(folder: Path, right: str = "") -> dict[str, Any]:
    """Read the manifest of a folder, and its spec where it has one.

    Parameters
    ----------
    right : str
        What the user should do where it is none.

    Raises
    ------
    InputError
        It is missing, or no manifest.
    """
    path = folder / MANIFEST
    try:
        data = strict_json(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"is missing; {LOG} belongs to the spec that it names", file=str(path), right=right) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=str(path), right=right) from None
    except (ValueError, RecursionError):
        raise InputError("is not JSON", file=str(path), right=right) from None
    found: dict[str, Any] = data if isinstance(data, dict) else {}
    for key, kind in KEYS.items():
        if type(found.get(key)) is not kind:  # not isinstance: true is no number
            problem = f"is no manifest: {key} is missing or {WORDS[kind]}"
            raise InputError(problem, file=str(path), right=right)
    # It becomes a heading of the card.
    if not found["name"].isprintable():
        raise InputError("is no manifest: name is no line of text", file=str(path), right=right)
    if "spec" in found:
        validate(Spec, Document(found["spec"]), f"{path}: spec")
    return found
