"""`octocp models` and `octocp instances`: what is shipped, one line each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from octocp.cli.options import Json
from octocp.cli.output import is_terminal, width, write, write_json
from octocp.errors import InputError


def models(as_json: Json = False) -> None:
    """List the models that are shipped."""
    from octocp import catalog

    _list([_model(name, path) for name, path in sorted(catalog.models().items())], as_json)


def instances(as_json: Json = False) -> None:
    """List the instances that are shipped."""
    from octocp import catalog

    layers: dict[str, int] = {}
    _list([_instance(name, path, layers) for name, path in sorted(catalog.instances().items())], as_json)


def _model(name: str, path: Path) -> dict[str, Any]:
    from octocp.schema.files import load_model

    try:
        model = load_model(path)
    except InputError as error:
        return _broken(name, path, error)
    sequence = model.layer_kinds()
    return {
        "name": name,
        "size": f"{len(sequence)} layers of {len(set(sequence))} kinds",
        "description": " ".join(model.description.split()),
        "layers": len(sequence),
        "profiles": list(model.profiles),
        "provenance": (model.provenance or next(iter(model.profiles.values())).provenance).kind,
        "path": str(path),
    }


def _instance(name: str, path: Path, layers: dict[str, int]) -> dict[str, Any]:
    """Describe an instance from its plain data; validating all of them, models and all, takes seconds."""
    from octocp.schema import ModelSpec
    from octocp.schema.files import load_model, read_document

    try:
        data = read_document(path).data
        model = data["model"]
        if isinstance(model, str):
            if model not in layers:
                layers[model] = len(load_model(model, path.parent).layer_kinds())
            count = layers[model]
        else:
            count = len(ModelSpec.model_validate(model).layer_kinds())
        devices, microbatches = (
            each if isinstance(each, int) else len(each) for each in (data["cluster"]["devices"], data["microbatches"])
        )
    except (InputError, LookupError, TypeError, ValueError) as error:
        return _broken(name, path, error)
    return {
        "name": name,
        "size": f"{count} layers, {devices} device{'s' * (devices != 1)}, {microbatches} microbatches",
        "description": " ".join(str(data.get("description", "")).split()),
        "layers": count,
        "devices": devices,
        "microbatches": microbatches,
        "path": str(path),
    }


def _broken(name: str, path: Path, error: Exception) -> dict[str, Any]:
    return {
        "name": name,
        "size": "unreadable",
        "description": " ".join(str(error).split()),
        "path": str(path),
    }


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].rstrip(".")


def _list(entries: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        write_json(entries)
        return
    names = max((len(entry["name"]) for entry in entries), default=0)
    sizes = max((len(entry["size"]) for entry in entries), default=0)
    lines = [
        f"{entry['name']:{names}}  {entry['size']:{sizes}}  {_first_sentence(entry['description'])}".rstrip()
        for entry in entries
    ]
    if is_terminal():
        columns = width()
        lines = [line if len(line) <= columns else line[: columns - 3] + "..." for line in lines]
    write("".join(line + "\n" for line in lines))
