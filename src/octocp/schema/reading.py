"""From a file to plain data: text, YAML and JSON, read as untrusted input."""

from __future__ import annotations

import json
import re
import reprlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from octocp.errors import InputError

MAX_BYTES = 256 * 2**20
MAX_YAML_BYTES = 8 * 2**20
MAX_NODES = 1_000_000
MAX_DEPTH = 60
MAX_DIGITS = 30

Path_ = tuple[str | int, ...]


def shorten(value: Any, limit: int = 60) -> str:
    """Show a value in a message, cut to `limit` characters."""
    # reprlib, because a value may hold a million others or be nested a thousand deep.
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = limit
    text = short.repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


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


class TooLong(float):
    """A whole number beyond every limit of the schema, which therefore refuses it and names its place."""

    digits = 0

    def __repr__(self) -> str:
        return f"a number of {self.digits} digits"


def _whole(text: str) -> int | float:
    if len(text) <= MAX_DIGITS:
        return int(text)
    number = TooLong("-inf" if text.startswith("-") else "inf")
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
            f"tag {shorten(node.tag)} is not supported",
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
                raise InputError(f"key {shorten(key.value)} is given twice", place=f"line {line}")
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
                raise InputError(f"key {shorten(key)} is given twice")
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
