"""Which format a text is in, and long lists of complaints cut short."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Literal

from octocp.errors import InputError
from octocp.schema.reading import read_text

Format = Literal["plan", "torch-csv", "megatron", "simpipe", "torchtitan"]

# Complaints of one kind that are worded; a shifted file easily gives thousands.
MAX_LINES = 10
# What can be read, for hints.
READABLE = "a plan, a PyTorch pipelining CSV, a Megatron layout or hybrid pattern, SimPipe's YAML or TorchTitan's TOML"

_CELL = re.compile(r"\s*\(?\s*[0-9]+(?:F|B|I|W|UNSHARD|RESHARD|REDUCE_GRAD|SEND_|RECV_)")
_ANY_CELL = re.compile(rf"(?:^|,)\"?{_CELL.pattern}", re.MULTILINE)
_MEGATRON_FLAG = re.compile(r"(?<!\S)--(?:pipeline-model-parallel-layout|hybrid-layer-pattern)\b", re.MULTILINE)
_SIMPIPE_KEY = re.compile(r"^(?:partition_layers|partition|placement|schedule|parallel)\s*:", re.MULTILINE)
_OWN_FORMAT = re.compile(r"^\s*[\"']?format[\"']?\s*:\s*[\"']?octocp\.(instance|model|plan)/", re.MULTILINE)
_OWN_JSON = re.compile(r"[\"']format[\"']\s*:\s*[\"']octocp\.(instance|model|plan)/")
_TRACE = re.compile(r'"traceEvents"\s*:|"ph"\s*:\s*"')
_TORCHTITAN = re.compile(r"^\s*module_fqns_per_model_part\s*=", re.MULTILINE)
_OWN_TABLE = "device,stage,microbatch,kind,"


def read_file(path: Path) -> str:
    """Read the text of a schedule; what is wrong with the file is told with what would be right here.

    Raises
    ------
    InputError
        It cannot be read, or is no text.
    """
    try:
        return read_text(path)
    except InputError as error:
        # `read_text` has hints on instances.
        raise InputError(error.problem, place=error.place, file=error.file, right=error.right and READABLE) from None


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
    if own or (first.startswith("{") and '"ops"' in text):
        return "plan"
    if first[:1] in ("{", "[") and _TRACE.search(text):
        right = "the CSV of the run; octocp calibrate PLAN TRACE reads traces"
        raise InputError("is a Chrome trace: what ran when, and no schedule to read", right=right)
    if _TORCHTITAN.search(text) or suffix == "toml":
        return "torchtitan"
    if first.startswith("[") or _MEGATRON_FLAG.search(text):
        return "megatron"
    if _CELL.match(first.lstrip(",")) or (suffix == "csv" and _ANY_CELL.search(text)):
        return "torch-csv"
    if suffix == "csv":
        raise _no_schedule(first)
    if _SIMPIPE_KEY.search(text) or suffix in {"yaml", "yml"}:
        return "simpipe"
    if len(lines) == 1 and (set(first) <= set("EtmLMGD*+-|/(),0123456789\"' \t") or re.fullmatch(r"\S*\|\S*", first)):
        return "megatron"
    raise InputError("is in no format that can be read here", right=READABLE)


def _no_schedule(first: str) -> InputError:
    """Word a CSV of something else."""
    if first.startswith(_OWN_TABLE):
        return InputError("is OctoCP's table of ops, for spreadsheets", right="octocp export PLAN --to torch-csv")
    shown = first.partition(",")[0][:40]
    right = "a row for each rank, of cells such as 0F0 and 1B0"
    return InputError(f"is no PyTorch pipelining CSV: its first cell is {shown!r}", right=right)


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
