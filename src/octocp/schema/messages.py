"""From plain data to the schema; the first mistake becomes one line with file, place and what would be right."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from octocp.errors import InputError
from octocp.schema.base import Strict
from octocp.schema.reading import Document, Path_, TooLong, shorten

SpecT = TypeVar("SpecT", bound=Strict)


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
    problem = "is missing" if found is None else f"is {shorten(found)}"
    if isinstance(found, str) and found in _KNOWN_FORMATS:
        (is_, advice), (needed, _) = _KNOWN_FORMATS[found], _KNOWN_FORMATS[_format_of(spec)]
        problem, right = f"is {found!r}: the file is {is_}, and {needed} is needed here", f"{right}; {advice}"
    return InputError(problem, place=place_of(("format",), document), file=file, right=right)


def _format_of(spec: type[Strict]) -> str:
    annotation = spec.model_fields["format"].annotation
    return str(annotation.__args__[0])  # type: ignore[union-attr]


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
        problem = f"unknown key {shorten(key)}"
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
    return InputError(problem, place=place_of(loc, document), file=file, right=right)


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
    if isinstance(value, TooLong):
        return f"{value!r} is too large"
    what = "not right here"
    if wrong_type:
        kinds = ((bool, what), (int, "a number"), (float, "a number"), (str, "a text"), (list, "a list"))
        what = next((word for kind, word in kinds if isinstance(value, kind)), "a mapping")
        what = "not a whole number" if isinstance(value, float) else what
    return f"{shorten(value)} is {what}"


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


def place_of(path: Path_, document: Document) -> str:
    """Write a key path as people do, ``line 7: cluster.devices``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else str(step)
    text = text if len(text) <= 120 else text[:117] + "..."
    line = document.line(path)
    return f"line {line}: {text}" if line is not None and text else text
