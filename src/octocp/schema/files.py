"""Load models, instances and plans; write plans. The three kinds of file, by path or by catalogue name."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable
from pathlib import Path

from octocp import catalog
from octocp.errors import InputError
from octocp.schema.instance import Instance
from octocp.schema.messages import place_of, validate
from octocp.schema.model import ModelSpec
from octocp.schema.plan import Plan
from octocp.schema.reading import Document, read_document, shorten


def load_model(reference: str | Path, beside: Path | None = None) -> ModelSpec:
    """Load a model by path (relative to `beside`) or by name from the catalogue.

    Raises
    ------
    InputError
        No such model, or the file is not a valid one.
    """
    path = _find(str(reference), beside, "models", catalog.models)
    return validate(ModelSpec, read_document(path), str(path))


def find_instance(reference: str | Path) -> Path:
    """Return the file that a path or a name from the catalogue means.

    Raises
    ------
    InputError
        There is none.
    """
    return _find(str(reference), None, "instances", catalog.instances)


def load_instance(reference: str | Path) -> Instance:
    """Load an instance by path, or by name from the catalogue, with its model inlined.

    Raises
    ------
    InputError
        No such instance, or it or its model is not valid; one line with file, place and reason.
    """
    path = find_instance(reference)
    document = read_document(path)
    file = str(path)
    if isinstance(document.data, dict) and isinstance(document.data.get("model"), str):
        name = document.data["model"]
        try:
            found = _find(name, path.parent, "models", catalog.models)
        except InputError as error:
            raise InputError(
                error.problem, place=place_of(("model",), document), file=file, right=error.right
            ) from None
        model_document = read_document(found)
        validate(ModelSpec, model_document, str(found))
        document = Document({**document.data, "model": model_document.data}, document.lines)
    elif isinstance(document.data, dict) and isinstance(document.data.get("model"), dict):
        inline = document.data["model"]
        if inline.get("format", "octocp.model/1") != "octocp.model/1":
            place = place_of(("model", "format"), document)
            raise InputError(f"is {shorten(inline['format'])}", place=place, file=file, right="octocp.model/1")
    elif isinstance(document.data, dict) and "model" in document.data:
        shown = shorten(document.data["model"])
        right = "a model's name, the path of a model file, or an inline model"
        raise InputError(f"{shown} is not right here", place=place_of(("model",), document), file=file, right=right)
    return validate(Instance, document, file)


def as_instance(given: Instance | str | Path) -> Instance:
    """Return an instance as it is, or load the one that a path or a name means.

    Raises
    ------
    TypeError
        It is neither.
    """
    if isinstance(given, str | Path):
        return load_instance(given)
    if not isinstance(given, Instance):
        raise TypeError(f"an Instance, or the path or name of one, is needed; this is {type(given).__name__}")
    return given


def as_plan(given: Plan | str | Path) -> Plan:
    """Return a plan as it is, or load the file.

    Raises
    ------
    TypeError
        It is neither.
    """
    if isinstance(given, str | Path):
        return load_plan(given)
    if not isinstance(given, Plan):
        raise TypeError(f"a Plan, or the path of a plan file, is needed; this is {type(given).__name__}")
    return given


def load_plan(path: str | Path) -> Plan:
    """Load a plan file (JSON).

    Raises
    ------
    InputError
        The file is missing, not JSON, or not a plan.
    """
    path = Path(path)
    if not path.exists() and str(path) in catalog.instances():
        right = f"it is an instance of the catalogue; octocp solve {path} makes a plan of it"
        raise InputError("no such file", file=str(path), right=right)
    return validate(Plan, read_document(path), str(path))


def _find(reference: str, beside: Path | None, folder: str, listing: Callable[[], dict[str, Path]]) -> Path:
    """Resolve a reference: a path first, then a name in a `folder` nearby, then the shipped catalogue."""
    what = folder.removesuffix("s")
    if not reference or "\0" in reference or len(reference) > 4096:
        raise InputError(f"{shorten(reference)} names no {what}", right=f"octocp {folder} lists the known ones")
    try:
        named = Path(reference).expanduser()
    except RuntimeError:  # ~somebody who has no home
        named = Path(reference)
    direct = named if beside is None else beside / named
    looks_like_path = "/" in reference or Path(reference).suffix.lower() in {".yaml", ".yml", ".json"}
    try:
        if direct.exists() and (looks_like_path or direct.is_file()):
            return direct
        if not looks_like_path:
            for base in ([beside, beside / folder, beside.parent / folder] if beside else []) + [Path(folder)]:
                for suffix in (".yaml", ".yml", ".json"):
                    if (base / f"{reference}{suffix}").is_file():
                        return base / f"{reference}{suffix}"
            known = listing()
            if reference in known:
                return known[reference]
            if direct.exists():
                return direct
            if folder == "instances" and reference in catalog.models():
                raise InputError(f"{reference!r} is a model, not an instance", right=_instances_of(reference))
            close = difflib.get_close_matches(reference, known, n=1, cutoff=0.6)
            hint = f"did you mean {close[0]!r}?" if close else f"octocp {folder} lists the known ones"
            raise InputError(f"no {what} file or catalogue entry named {reference!r}", right=hint)
    except OSError as error:
        raise InputError(f"{shorten(reference)} cannot be read: {error.strerror}") from None
    if looks_like_path:
        raise InputError("no such file", file=str(direct))
    return direct


def _instances_of(model: str, most: int = 3) -> str:
    """Name shipped instances that use a model; their text is enough to tell, and reading all of them is slow."""
    uses = re.compile(rf"^model: *[\"']?{re.escape(model)}[\"']? *(?:#|$)", re.MULTILINE)
    found = [name for name, path in catalog.instances().items() if uses.search(path.read_text(encoding="utf-8"))]
    if not found:
        return "octocp new writes an instance to start from; it names the model"
    rest = f" and {len(found) - most} more: octocp instances {model}" if len(found) > most else ""
    return f"instances that use it: {', '.join(found[:most])}{rest}"


def plan_json(plan: Plan) -> str:
    """Render a plan as JSON text, one op a line."""
    data = plan.model_dump(mode="json")
    ops = data.pop("ops")
    head = json.dumps(data, indent=1, allow_nan=False)
    lines = ",\n  ".join(json.dumps(op) for op in ops)
    return head[: head.rindex("}")].rstrip() + ',\n "ops": [\n  ' + lines + "\n ]\n}\n"


def write_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan; the file appears whole or not at all.

    Raises
    ------
    InputError
        The place cannot be written to.
    """
    write_whole(plan_json(plan).encode(), path)


def write_whole(content: bytes, path: str | Path) -> None:
    """Write through a temporary neighbour and rename, so that a killed run leaves no half file."""
    path = Path(path)
    if path.is_symlink():
        path = path.resolve()
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)  # a device such as /dev/stdout; a folder raises here
            return
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(f"cannot be written: {error.strerror}", file=str(path)) from None
