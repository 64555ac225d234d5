"""Which format a text is in, and long lists of complaints cut short."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from typing import Literal

from octocp.errors import InputError

Format = Literal["plan", "torch-csv", "megatron", "simpipe"]

# Complaints of one kind that are worded; a shifted file easily gives thousands.
MAX_LINES = 10

_CELL = re.compile(r"\s*\(?\s*[0-9]+(?:F|B|I|W|UNSHARD|RESHARD|REDUCE_GRAD|SEND_|RECV_)")
_MEGATRON_FLAG = re.compile(r"^\s*--(?:pipeline-model-parallel-layout|hybrid-layer-pattern)\b", re.MULTILINE)
_SIMPIPE_KEY = re.compile(r"^(?:partition_layers|partition|placement|schedule|parallel)\s*:", re.MULTILINE)
_OWN_FORMAT = re.compile(r"^\s*[\"']?format[\"']?\s*:\s*[\"']?octocp\.(instance|model|plan)/", re.MULTILINE)
_OWN_JSON = re.compile(r"[\"']format[\"']\s*:\s*[\"']octocp\.(instance|model|plan)/")
_PATTERN = re.compile(r"[EtmLMGD*+\-|/(),0-9\"' \t]+")


def recognise(text: str, file: str = "") -> Format:
    """Return the format of a text; the name of its file decides only where the text does not.

    Raises
    ------
    InputError
        It is none that is known.
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    first = lines[0].strip() if lines else ""
    suffix = file.rpartition(".")[2].lower()
    own = _own_format(text, first)
    if own and own != "plan":
        what = "an OctoCP instance" if own == "instance" else "an OctoCP model"
        raise InputError(f"is {what}, not a schedule")
    if own or first.startswith("{"):
        return "plan"
    if first.startswith("[") or _MEGATRON_FLAG.search(text):
        return "megatron"
    if _CELL.match(first.lstrip(",")) or suffix == "csv":
        return "torch-csv"
    if _SIMPIPE_KEY.search(text) or suffix in {"yaml", "yml"}:
        return "simpipe"
    if len(lines) == 1 and _PATTERN.fullmatch(first):
        return "megatron"
    right = "a plan, a PyTorch pipelining CSV, a Megatron layout or hybrid pattern, or a SimPipe YAML file"
    raise InputError("is in no format that can be read here", right=right)


def _own_format(text: str, first: str) -> str:
    """Return which of OctoCP's own formats a text says that it is in, or ""; a plan has an instance inside."""
    if first.startswith("{"):
        found = set(_OWN_JSON.findall(text))
        return next((kind for kind in ("plan", "instance", "model") if kind in found), "")
    match = _OWN_FORMAT.search(text)
    return match[1] if match else ""


def shortened(complaints: Iterable[str], count: int | None = None) -> list[str]:
    """Return the first complaints of one kind, and how many more there are.

    Parameters
    ----------
    count : int, optional
        How many there are in all, where not all of them are given.
    """
    if count is None:
        complaints = list(complaints)
        count = len(complaints)
    shown = list(islice(complaints, min(count, MAX_LINES)))
    return shown if count <= MAX_LINES else [*shown, f"and {count - MAX_LINES} more like it"]
