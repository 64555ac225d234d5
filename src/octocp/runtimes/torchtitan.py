"""TorchTitan's configuration (TOML): which modules each stage has, and the CSV of the order.

TorchTitan calls the blocks ``layers.N``; what comes before them (``tok_embeddings``) is the embedding, what comes after
them (``norm``, ``output``) the head. Stages lie in a loop, or in a V with the schedules that are one.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octocp.errors import InputError
from octocp.runtimes.layers import Layers

SECTION = "parallelism"
MODULES = f"{SECTION}.module_fqns_per_model_part"
CSV = f"{SECTION}.pipeline_parallel_schedule_csv"
SCHEDULE = f"{SECTION}.pipeline_parallel_schedule"
DEGREE = f"{SECTION}.pipeline_parallel_degree"
# Schedules whose stages lie in a V, two on each rank; and all that PyTorch knows, whatever the case of their letters.
VEES = ("zbvzerobubble", "dualpipev")
SCHEDULES = (
    "1f1b", "interleaved1f1b", "gpipe", "loopedbfs", "interleavedzerobubble", "pipelineschedulesingle",
    "pipelineschedulemulti", *VEES,
)  # fmt: skip
EMBEDDING, HEAD = ("tok_embeddings",), ("norm", "output")

_BLOCK = re.compile(r"layers\.(0|[1-9][0-9]{0,5})")


@dataclass(frozen=True)
class Configuration:
    """What a configuration says about pipelining.

    Attributes
    ----------
    stages : tuple of tuples of str
        The modules of each stage.
    csv : str
        The file of the order, or "" where the schedule is one of TorchTitan's own.
    schedule : str
        The name of the schedule, which says where the stages are.
    ranks : int or None
        Pipeline ranks, where the file says so.
    """

    stages: tuple[tuple[str, ...], ...]
    csv: str
    schedule: str
    ranks: int | None


def parse(text: str) -> Configuration:
    """Read a configuration.

    Raises
    ------
    InputError
        It is no TOML, or says something else than TorchTitan takes; with the key.
    """
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        # ValueError: a number of thousands of digits.
        raise InputError(f"not valid TOML: {str(error).splitlines()[0] or 'nested too deep'}") from None
    section = data.get(SECTION)
    if not isinstance(section, dict) or "module_fqns_per_model_part" not in section:
        raise InputError("is missing", place=MODULES, right='the modules of each stage: [["tok_embeddings", ...], ...]')
    ranks = section.get("pipeline_parallel_degree")
    if ranks is not None and (not isinstance(ranks, int) or isinstance(ranks, bool) or not 1 <= ranks < 10**6):
        raise InputError("is no number of ranks", place=DEGREE, right="a whole number from 1 on")
    return Configuration(
        _stages(section["module_fqns_per_model_part"]),
        _word(section, "pipeline_parallel_schedule_csv"),
        _word(section, "pipeline_parallel_schedule"),
        ranks,
    )


def _word(section: dict[str, Any], key: str) -> str:
    value = section.get(key, "")
    if not isinstance(value, str):
        raise InputError("is no text", place=f"{SECTION}.{key}")
    return value


def _stages(value: Any) -> tuple[tuple[str, ...], ...]:
    if not isinstance(value, list) or not value:
        raise InputError("is no list of stages", place=MODULES)
    for stage, names in enumerate(value):
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InputError("is no list of modules", place=f"{MODULES}[{stage}]")
        if not names:
            raise InputError("has no module", place=f"{MODULES}[{stage}]")
    return tuple(map(tuple, value))


def partition(read: Configuration, layers: Layers | None, count: int) -> list[int]:
    """Return how many layers each stage has.

    Parameters
    ----------
    layers : Layers, optional
        The roles of the model's layers; without them, embedding and head are layers as far as `count` has room.
    count : int
        The layers of the model.

    Raises
    ------
    InputError
        The modules are not those of the model; with the place in the list.
    """
    blocks = 0
    counts = [0] * len(read.stages)
    first: int | None = None
    last: int | None = None
    behind = ""  # the last module behind the blocks
    for stage, names in enumerate(read.stages):
        for position, name in enumerate(names):
            match = _BLOCK.fullmatch(name)
            place = f"{MODULES}[{stage}][{position}]"
            if match is None:
                if not blocks:
                    first = stage if first is None else first
                else:
                    last, behind = stage, name
                continue
            if int(match[1]) != blocks or behind:
                raise InputError(
                    f"{name} is out of order; "
                    + (f"it comes after {behind}" if behind else f"layers.{blocks} is next"),
                    place=place,
                    right="stages in the order of the model",
                )
            blocks += 1
            counts[stage] += 1
    if layers is not None:
        embedding, head = layers.embedding, layers.head
    else:
        embedding, head = count - blocks == 2, count - blocks in (1, 2)
    # Halves of blocks and layers for prediction are no layers.N.
    other = layers is not None and (layers.hybrid or layers.mtp > 0)
    if other or blocks + embedding + head != count:
        between = " between embedding and head" if embedding and head else ""
        raise InputError(
            f"has {blocks} blocks (layers.N); the instance has {count - embedding - head} layers{between}"
            + (", which are no whole blocks" if other else ""),
            place=MODULES,
        )
    # What the model leaves out costs nothing; where the file leaves out the rest, it is at the ends.
    counts[first or 0] += embedding
    counts[-1 if last is None else last] += head
    if 0 in counts:
        stage = counts.index(0)
        raise InputError("has no layer of the instance", place=f"{MODULES}[{stage}]")
    return counts


def violations(read: Configuration) -> list[str]:
    """Return what is wrong with the schedule's name and the modules, each with its place.

    The modules of a Llama model: the embedding, blocks in order, each once, and the head.
    """
    found = []
    if read.schedule and read.schedule.lower() not in SCHEDULES:
        found.append(f"{SCHEDULE}: {read.schedule} is no schedule of PyTorch's")
    names = [
        (f"{MODULES}[{stage}][{position}]", name)
        for stage, modules in enumerate(read.stages)
        for position, name in enumerate(modules)
    ]
    blocks = sum(1 for _, name in names if _BLOCK.fullmatch(name))
    wanted = [*EMBEDDING, *(f"layers.{block}" for block in range(blocks)), *HEAD]
    if [name for _, name in names] == wanted:
        return found
    seen: set[str] = set()
    for place, name in names:
        if name in seen:
            found.append(f"{place}: {name} is there twice")
        elif name not in wanted:
            found.append(f"{place}: {name} is no module of this model: tok_embeddings, layers.N, norm, output")
        seen.add(name)
    missing = [name for name in wanted if name not in seen]
    found += [f"{MODULES}: {name} is missing" for name in missing[:3]]
    if not missing and len(seen) == len(names):
        place, name = next(pair for pair, right in zip(names, wanted, strict=True) if pair[1] != right)
        found.append(f"{place}: {name} is out of order")
    return found


def order_file(path: Path | None, named: str) -> Path:
    """Return the CSV that a configuration names: beside it, wherever the run is started."""
    own = Path(named)
    return own if path is None or own.is_absolute() else path.parent / own


def misplaced(read: Configuration, owner: dict[int, int], ranks: int) -> list[str]:
    """Complain of the first stage that the CSV has on another rank than the schedule that the configuration names."""
    vee = read.schedule.lower() in VEES
    if vee and len(read.stages) != 2 * ranks:
        return [f"{read.schedule} needs two stages on each rank; there are {len(read.stages)} on {ranks} ranks"]
    if len(read.stages) % ranks:
        return [f"has {len(read.stages)} stages on {ranks} ranks; TorchTitan needs equally many on each"]
    shape = "in a V" if vee else "in a loop"
    for stage, rank in sorted(owner.items()):
        theirs = 2 * ranks - 1 - stage if vee and stage >= ranks else stage % ranks
        if rank != theirs:
            named = f" ({read.schedule})" if read.schedule else ""
            return [f"stage {stage} is on rank {rank}; TorchTitan{named} lays stages {shape} and has it on {theirs}"]
    return []
