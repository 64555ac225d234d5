"""Read and write the formats; every mistake in a file becomes one line with file, place and line number."""

from __future__ import annotations

import difflib
import json
import math
import re
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from octocp import catalog
from octocp.errors import InputError
from octocp.schema.base import Strict
from octocp.schema.instance import Instance
from octocp.schema.model import ModelSpec
from octocp.schema.plan import Plan

MAX_BYTES = 256 * 2**20
MAX_YAML_BYTES = 8 * 2**20
MAX_NODES = 1_000_000
MAX_DEPTH = 60
MAX_DIGITS = 30

Path_ = tuple[str | int, ...]
SpecT = TypeVar("SpecT", bound=Strict)


@dataclass(frozen=True)
class Document:
    """Plain data read from a file, with the line of every key path (YAML only)."""

    data: Any
    lines: dict[Path_, int] = field(default_factory=dict)

    def line(self, path: Path_) -> int | None:
        """Return the line of `path`, or of its nearest ancestor that has one."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path) if path else None


# ---------------------------------------------------------------------------------------------
# Reading text


def read_text(path: Path) -> str:
    """Read a text file, or raise an `InputError` that says why it cannot be one."""
    try:
        if path.is_dir():
            raise InputError("is a folder", file=str(path), right="name a .yaml or .json file in it")
        if path.exists() and not path.is_file():
            raise InputError("is not a regular file", file=str(path), right="name a .yaml or .json file")
        size = path.stat().st_size
        limit = MAX_YAML_BYTES if path.suffix.lower() != ".json" else MAX_BYTES
        if size > limit:
            raise InputError(f"has {size} bytes; at most {limit}", file=str(path))
        raw = path.read_bytes()
    except FileNotFoundError:
        raise InputError("no such file", file=str(path)) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", file=str(path)) from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"is not UTF-8 text (byte {error.start})", file=str(path), right="a YAML or JSON text file"
        ) from None
    if "\0" in text:
        raise InputError("is not text: it holds NUL bytes", file=str(path), right="a YAML or JSON text file")
    if not text.strip():
        raise InputError("is empty", file=str(path), right="octocp new writes a starter instance")
    return text


class _Loader(yaml.SafeLoader):
    """YAML 1.2's idea of numbers and booleans: ``1e-4`` is a number, ``on`` and ``yes`` are words."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("int", r"^[-+]?[0-9]+$", "-+0123456789"),
    (
        "float",
        r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$",
        "-+0123456789.",
    ),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), list(_first))


class _TooLong(float):
    """A whole number beyond every limit of the schema, which therefore refuses it and names its place."""

    digits = 0

    def __repr__(self) -> str:
        return f"a number of {self.digits} digits"


def _whole(text: str) -> int | float:
    if len(text) <= MAX_DIGITS:
        return int(text)
    number = _TooLong("-inf" if text.startswith("-") else "inf")
    number.digits = len(text.lstrip("+-"))
    return number


def _scalar_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int | float:
    return _whole(str(loader.construct_scalar(node)))


_Loader.add_constructor("tag:yaml.org,2002:int", _scalar_int)


# What YAML 1.2's core schema has. Anything else (``!!python/object``, ``!!set``) has no meaning in a format.
_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map")}


def _expanded_size(node: yaml.Node, known: dict[int, int], depth: int = 0) -> int:
    """Count the values below a node with aliases expanded, each node visited once: a bomb is seen at once."""
    if depth > MAX_DEPTH:
        raise InputError(f"is nested more than {MAX_DEPTH} levels deep", place=f"line {node.start_mark.line + 1}")
    if id(node) not in known:
        children: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            children = [each for pair in node.value for each in pair]
        elif isinstance(node, yaml.SequenceNode):
            children = node.value
        known[id(node)] = 1 + sum(_expanded_size(child, known, depth + 1) for child in children)
    return known[id(node)]


def _survey(node: yaml.Node, path: Path_, lines: dict[Path_, int]) -> None:
    """Note the line of every key path; refuse tags, keys given twice and keys that are no words."""
    line = node.start_mark.line + 1
    if node.tag not in _TAGS:
        raise InputError(
            f"tag {_shorten(node.tag)} is not supported",
            place=f"line {line}",
            right="plain YAML without tags",
        )
    lines.setdefault(path, line)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise InputError("a key is not a plain word", place=f"line {line}")
            if key.value in seen:
                raise InputError(f"key {_shorten(key.value)} is given twice", place=f"line {line}")
            seen.add(key.value)
            lines.setdefault((*path, key.value), line)
            _survey(value, (*path, key.value), lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _survey(value, (*path, index), lines)


def parse_yaml(text: str) -> Document:
    """Parse YAML text; refuses duplicate keys, bombs, tags and several documents."""
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            if root is None:
                raise InputError("is empty", right="octocp new writes a starter instance")
            if _expanded_size(root, {}) > MAX_NODES:
                raise InputError(f"expands to more than {MAX_NODES} values", right="no nested YAML aliases")
            lines: dict[Path_, int] = {}
            _survey(root, (), lines)
            return Document(_text_keys(loader.construct_document(root)), lines)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = error.problem or "cannot be parsed"
        if problem.startswith("but "):  # "expected a single document in the stream", "but found another document"
            problem = f"{error.context} {problem}"
        raise InputError(f"not valid YAML: {problem}", place=where) from None
    except yaml.YAMLError as error:
        raise InputError(f"not valid YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise InputError(f"is nested more than {MAX_DEPTH} levels deep") from None
    except (ValueError, OverflowError, TypeError, LookupError, AttributeError) as error:
        # PyYAML's constructors let these through for scalars that do not fit their tag.
        raise InputError(f"not valid YAML: {error}") from None


def _text_keys(data: Any) -> Any:
    if isinstance(data, dict):
        return {str(key): _text_keys(value) for key, value in data.items()}
    return [_text_keys(value) for value in data] if isinstance(data, list) else data


def parse_json(text: str) -> Document:
    """Parse JSON text; refuses duplicate keys. NaN is read, for the schema to refuse in its place."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in items:
            if key in found:
                raise InputError(f"key {_shorten(key)} is given twice")
            found[key] = value
        return found

    try:
        return Document(json.loads(text, object_pairs_hook=pairs, parse_int=_whole))
    except json.JSONDecodeError as error:
        raise InputError(f"not valid JSON: {error.msg}", place=f"line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise InputError("is nested too deep") from None


def read_document(path: Path) -> Document:
    """Read a YAML or JSON file; the suffix decides, JSON for ``.json``."""
    text = read_text(path)
    try:
        return parse_json(text) if path.suffix.lower() == ".json" else parse_yaml(text)
    except InputError as error:
        raise error.in_file(str(path)) from None


# ---------------------------------------------------------------------------------------------
# From plain data to the schema, with errors that people can act on


def validate(spec: type[SpecT], document: Document, file: str) -> SpecT:
    """Validate plain data against `spec`, or raise one `InputError` for the first mistake."""
    if not isinstance(document.data, dict):
        raise InputError(
            "is not a mapping of keys to values",
            file=file,
            right=f"it starts with format: {_format_of(spec)}",
        )
    found = document.data.get("format")
    if "format" in spec.model_fields and found != _format_of(spec):
        raise _wrong_format(found, spec, document, file)
    try:
        return spec.model_validate(document.data)
    except ValidationError as error:
        raise _first_error(error, spec, document, file) from None
    except RecursionError:
        raise InputError("is nested too deep", file=file) from None


# What each format is, and what to do with a file of it where another one is needed.
_KNOWN_FORMATS = {
    "octocp.instance/1": ("an instance", "octocp solve makes a plan of an instance"),
    "octocp.model/1": ("a model", "an instance names it: model: FILE; octocp new writes one to start from"),
    "octocp.plan/1": ("a plan", "octocp show and octocp check read plans"),
}


def _wrong_format(found: Any, spec: type[Strict], document: Document, file: str) -> InputError:
    right = f"format: {_format_of(spec)}"
    problem = "is missing" if found is None else f"is {_shorten(found)}"
    if isinstance(found, str) and found in _KNOWN_FORMATS:
        (is_, advice), (needed, _) = _KNOWN_FORMATS[found], _KNOWN_FORMATS[_format_of(spec)]
        problem, right = f"is {found!r}: the file is {is_}, and {needed} is needed here", f"{right}; {advice}"
    return InputError(problem, place=_place(("format",), document), file=file, right=right)


def _format_of(spec: type[Strict]) -> str:
    annotation = spec.model_fields["format"].annotation
    return str(annotation.__args__[0])  # type: ignore[union-attr]


def _shorten(value: Any, limit: int = 60) -> str:
    # reprlib, because a value may hold a million others or be nested a thousand deep.
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = limit
    text = short.repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _first_error(error: ValidationError, spec: type[Strict], document: Document, file: str) -> InputError:
    # An unknown key often causes a "missing" elsewhere; the key is what the user mistyped, so it comes first.
    details = sorted(error.errors(), key=lambda item: item["type"] != "extra_forbidden")
    detail = details[0]
    loc = _real_path(detail["loc"], document.data)
    kind, context = detail["type"], detail.get("ctx", {})
    right = ""
    if kind == "extra_forbidden":
        key = str(detail["loc"][-1])
        loc = (*_real_path(detail["loc"][:-1], document.data), key)
        valid = _valid_keys(spec, detail["loc"][:-1])
        close = difflib.get_close_matches(key, valid, n=1, cutoff=0.5)
        problem = f"unknown key {_shorten(key)}"
        right = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(valid)}"
    elif kind == "missing":
        loc = (*loc, detail["loc"][-1])
        problem = "is required and missing"
    elif kind == "value_error":
        text = str(context.get("error", detail["msg"]))
        place, separator, rest = text.partition(": ")
        if separator and re.fullmatch(r"[\w.*#\-\[\]]+", place):
            loc, problem = (*loc, *_split(place)), rest
        else:
            problem = text
        problem, separator, right = problem.partition("; ")
    else:
        needed = _NEEDED.get(kind)
        problem = _described(detail["input"], wrong_type=needed is not None)
        right = _wording(detail["msg"]) if needed is None else f"{needed} is needed"
        if kind in _NUMERIC and isinstance(detail["input"], str) and _is_number(detail["input"]):
            right += ", without quotes"
        elif kind == "string_type" and isinstance(detail["input"], int | float):
            right += ", in quotes"
    return InputError(problem, place=_place(loc, document), file=file, right=right)


# Pydantic's names for a wrong type, in words for people who have never heard of it.
_NEEDED = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("model_type", "dict_type"), "a mapping of keys to values"),
    "string_type": "a text",
    "bool_type": "true or false",
    "list_type": "a list",
}
_NUMERIC = {"int_type", "int_parsing", "float_type", "float_parsing"}


def _described(value: Any, *, wrong_type: bool) -> str:
    """Say what a value is that is not right, e.g. ``'4' is a text``."""
    if value is None:
        return "is null"
    if isinstance(value, _TooLong):
        return f"{value!r} is too large"
    what = "not right here"
    if wrong_type:
        kinds = ((bool, what), (int, "a number"), (float, "a number"), (str, "a text"), (list, "a list"))
        what = next((word for kind, word in kinds if isinstance(value, kind)), "a mapping")
        what = "not a whole number" if isinstance(value, float) else what
    return f"{_shorten(value)} is {what}"


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _wording(message: str) -> str:
    text = message.removeprefix("Input should be ")
    return text[:1].lower() + text[1:]


def _split(place: str) -> Path_:
    parts: list[str | int] = []
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", place):
        parts.append(int(index) if index else name)
    return tuple(parts)


def _real_path(loc: Sequence[str | int], data: Any) -> Path_:
    """Drop pydantic's union tags from a location: keep the steps that exist in the data."""
    path: list[str | int] = []
    for step in loc:
        known = step in data if isinstance(data, dict) else isinstance(data, list) and step in range(len(data))
        if known:
            path.append(step)
            data = data[step]
    return tuple(path)


def _valid_keys(spec: type[BaseModel], loc: Sequence[str | int]) -> list[str]:
    """List the keys valid at `loc`, by walking the schema along it."""
    current: list[type[BaseModel]] = [spec]
    for step in loc:
        following = [
            model
            for parent in current
            for model in _models_in(parent.model_fields[step].annotation if step in parent.model_fields else None)
        ]
        current = following or current
    if loc and loc[-1] == "nodes":
        current = [model for model in current if "intra_node" in model.model_fields] or current
    if loc and loc[-1] == "mapping":
        current = [model for model in current if "intra_node" not in model.model_fields] or current
    return list(dict.fromkeys(key for model in current for key in model.model_fields))


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models_in(part)]


def _place(path: Path_, document: Document) -> str:
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else str(step)
    text = text if len(text) <= 120 else text[:117] + "..."
    line = document.line(path)
    return f"line {line}: {text}" if line is not None and text else text


# ---------------------------------------------------------------------------------------------
# The three kinds of file


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
            raise InputError(error.problem, place=_place(("model",), document), file=file, right=error.right) from None
        model_document = read_document(found)
        validate(ModelSpec, model_document, str(found))
        document = Document({**document.data, "model": model_document.data}, document.lines)
    elif isinstance(document.data, dict) and isinstance(document.data.get("model"), dict):
        inline = document.data["model"]
        if inline.get("format", "octocp.model/1") != "octocp.model/1":
            place = _place(("model", "format"), document)
            raise InputError(f"is {_shorten(inline['format'])}", place=place, file=file, right="octocp.model/1")
    elif isinstance(document.data, dict) and "model" in document.data:
        shown = _shorten(document.data["model"])
        right = "a model's name, the path of a model file, or an inline model"
        raise InputError(f"{shown} is not right here", place=_place(("model",), document), file=file, right=right)
    return validate(Instance, document, file)


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
        raise InputError(f"{_shorten(reference)} names no {what}", right=f"octocp {folder} lists the known ones")
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
        raise InputError(f"{_shorten(reference)} cannot be read: {error.strerror}") from None
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
