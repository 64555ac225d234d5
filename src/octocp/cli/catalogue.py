"""`octocp models` and `octocp instances`: what is shipped, one line each where there is room."""

from __future__ import annotations

import textwrap
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from octocp.cli.options import Json
from octocp.cli.output import cut, is_terminal, width, write, write_json
from octocp.errors import InputError

# A description with less room than this gets lines of its own.
LEAST_ROOM = 40


Filter = Annotated[
    str | None,
    typer.Argument(
        metavar="TEXT", help="Only those with this text in their name; of instances, also in folder or model."
    ),
]


def models(text: Filter = None, as_json: Json = False) -> None:
    """List the models that are shipped."""
    from octocp import catalog

    found = {name: path for name, path in sorted(catalog.models().items()) if _has(name, text)}
    _list([_model(name, path) for name, path in found.items()], "model", text, as_json)


def instances(text: Filter = None, as_json: Json = False) -> None:
    """List the instances that are shipped, by folder."""
    from octocp import catalog

    layers: dict[str, int] = {}
    found = sorted(catalog.instances().items(), key=lambda item: (item[1].parent.name, item[0]))
    entries = [_instance(name, path, layers) for name, path in found]
    entries = [each for each in entries if _has(f"{each['folder']}/{each['name']} {each['model']}", text)]
    _list(entries, "instance", text, as_json)


def _has(name: str, text: str | None) -> bool:
    return text is None or text.lower() in name.lower()


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
        # As it travels into plans made with the default costs.
        "provenance": model.flattened().provenance.kind,
        "path": str(path),
    }


def _instance(name: str, path: Path, layers: dict[str, int]) -> dict[str, Any]:
    """Describe an instance from its plain data; validating all of them, models and all, takes seconds."""
    from octocp.schema import ModelSpec
    from octocp.schema.files import load_model
    from octocp.schema.reading import read_document

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
        "folder": path.parent.name,
        "model": model if isinstance(model, str) else str(model["name"]),
        "size": f"{count} layers, {devices} device{'s' * (devices != 1)}, "
        f"{microbatches} microbatch{'es' * (microbatches != 1)}",
        "description": " ".join(str(data.get("description", "")).split()),
        "layers": count,
        "devices": devices,
        "microbatches": microbatches,
        "path": str(path),
    }


def _broken(name: str, path: Path, error: Exception) -> dict[str, Any]:
    return {
        "name": name,
        "folder": path.parent.name,
        "model": "",
        "size": "unreadable",
        "provenance": "unknown",
        "description": " ".join(str(error).split()),
        "path": str(path),
    }


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].rstrip(".")


def _list(entries: list[dict[str, Any]], what: str, text: str | None, as_json: bool) -> None:
    if not entries and text is not None:
        right = f"octocp {what}s lists them all"
        where = "name" if what == "model" else "name, folder or model"
        raise InputError(f"no shipped {what} has {cut(text, 60)!r} in its {where}", right=right)
    if as_json:
        write_json(entries)
        return
    lines = []
    for folder, group in groupby(entries, key=lambda entry: entry["folder"] if what == "instance" else ""):
        members = list(group)
        keys = ("name", "size", "provenance") if what == "model" else ("name", "size")
        lines += [f"{folder}/"] * bool(folder) + _rows(members, keys, "  " * bool(folder))
    write("".join(line + "\n" for line in lines))


def _rows(entries: list[dict[str, Any]], keys: tuple[str, ...], indent: str) -> list[str]:
    """Align what is short in columns; the description follows, on a line of its own where there is no room."""
    columns = [[entry[key] for entry in entries] for key in keys]
    widths = [max(map(len, column)) for column in columns]
    heads = [indent + "  ".join(map(str.ljust, row, widths)) for row in zip(*columns, strict=True)]
    descriptions = [_first_sentence(entry["description"]) for entry in entries]
    if not is_terminal():
        return [f"{head}  {words}".rstrip() for head, words in zip(heads, descriptions, strict=True)]
    room = width() - len(heads[0]) - 2
    if room >= LEAST_ROOM:
        return [f"{head}  {cut(words, room)}".rstrip() for head, words in zip(heads, descriptions, strict=True)]
    own = indent + "    "
    pairs = zip(heads, descriptions, strict=True)
    return [
        line
        for head, words in pairs
        for line in (
            cut(head.rstrip(), width()),
            *textwrap.wrap(words, max(width(), 20), initial_indent=own, subsequent_indent=own),
        )
    ]
