"""Megatron's ways of cutting a model: the layout string, its list form, and the pattern of hybrid models.

The layout is ``--pipeline-model-parallel-layout`` of Megatron-Core, -Bridge and NeMo: E is the embedding, t a decoder
layer, m a layer for multi-token prediction, L the loss; ``|`` ends a stage, ``(...)*n`` repeats a group, ``c*n`` one
character, commas mean nothing. A hybrid model's ``--hybrid-layer-pattern`` has a character per layer and ``|`` between
stages; embedding and loss are in the first and the last stage without being written. In both, stage k is chunk
k div P of rank k mod P.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from octocp.errors import InputError

LETTERS = {"E": "embedding", "t": "decoder", "m": "mtp", "L": "loss"}
NAMES = {name: letter for letter, name in LETTERS.items()}
HYBRID = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
# Letters that hybrid models have beyond those: gated delta net, sparse and latent attention.
OTHER_HYBRID = "GD+"
MOST_SYMBOLS = 50_000
# The flag of the group size of interleaving.
GROUP = "microbatch-group-size-per-virtual-pipeline-stage"

_GROUP = re.compile(r"\(([^)]+)\)\*([0-9]+)")
_REPEAT = re.compile(r"(.)\*([0-9]+)")
# A name begins with a small letter, so that the -- of a hybrid pattern is none.
_FLAG = re.compile(r"""(?<!\S)--(?P<name>[a-z][\w-]*)(?:[ \t]+|=)(?:"([^"\n]*)"|'([^'\n]*)'|(\S+))""")
_BARE_FLAG = re.compile(r"(?<!\S)--(pipeline-model-parallel-layout|hybrid-layer-pattern)(?![\w-])")

Stages = tuple[str, ...]
"""The symbols of each stage, empty for an empty one."""


@dataclass(frozen=True)
class Arguments:
    """What a file of Megatron's arguments says.

    Attributes
    ----------
    stages : tuple of str
        Symbols by stage: letters of the layout, or those of the hybrid pattern.
    hybrid : bool
        Whether it is a hybrid pattern.
    mtp_depths : int
        Layers for multi-token prediction behind a hybrid pattern.
    places : tuple of tuples of str
        Where in the file each symbol stands, for messages.
    ranks, group : int or None
        Pipeline ranks, and microbatches per group of interleaving, where the file says so.
    """

    stages: Stages
    hybrid: bool
    mtp_depths: int = 0
    places: tuple[tuple[str, ...], ...] = ()
    ranks: int | None = None
    group: int | None = None


def parse_arguments(text: str) -> Arguments:
    """Read a layout string, its list form, a hybrid pattern, or command line arguments with one of them.

    Raises
    ------
    InputError
        With the position of the character, or the index of the list's element, that is wrong.
    """
    # Flags first: a comment may hold anything, and a pattern may start with any of its characters.
    kept = "\n".join("" if line.lstrip().startswith("#") else line for line in text.splitlines())
    flags = {match["name"]: next(v for v in match.groups()[1:] if v is not None) for match in _FLAG.finditer(kept)}
    whole = kept.strip()
    ranks, group = _number(flags, "pipeline-model-parallel-size"), None
    for name in (GROUP, "microbatch-group-size-per-vp-stage"):
        group = _number(flags, name) or group
    layout, hybrid = flags.get("pipeline-model-parallel-layout"), flags.get("hybrid-layer-pattern")
    if layout is None and hybrid is None:
        if bare := _BARE_FLAG.search(kept):
            raise InputError("has no value", place=f"--{bare[1]}", right="the symbols of all stages behind it")
        if flags:
            raise InputError("has no --pipeline-model-parallel-layout and no --hybrid-layer-pattern")
        whole = whole[1:-1] if len(whole) > 1 and whole[0] == whole[-1] and whole[0] in "\"'" else whole
        # Letters that only the one or the other has; a wrong one must not make it the other.
        if whole.startswith("[") or sum(map("tmL()".count, whole)) > sum(map("MGD-+/".count, whole)):
            layout = whole
        else:
            hybrid = whole
    if layout is not None and hybrid is not None:
        raise InputError("has both a layout and a hybrid pattern", right="one of them")
    if layout is not None:
        stages, places = parse_list(layout) if layout.startswith("[") else parse_layout(layout)
        return Arguments(stages, False, 0, places, ranks, group)
    stages, places, depths = parse_hybrid(hybrid or "")
    return Arguments(stages, True, depths, places, ranks, group)


def _number(flags: dict[str, str], name: str) -> int | None:
    if name not in flags:
        return None
    if not re.fullmatch(r"[0-9]{1,5}", flags[name]) or not int(flags[name]):
        raise InputError(f"{flags[name][:20]!r} is no number", place=f"--{name}", right="a whole number from 1 on")
    return int(flags[name])


# ---- the layout string -----------------------------------------------------------------------


def parse_layout(text: str) -> tuple[Stages, tuple[tuple[str, ...], ...]]:
    """Read a layout string as Megatron does: groups are unrolled first, then single characters.

    Returns
    -------
    stages : tuple of str
        Letters of each stage.
    places : tuple of tuples of str
        Where each letter came from.
    """
    if len(text) > MOST_SYMBOLS:
        raise InputError(f"has {len(text)} characters", right=f"{MOST_SYMBOLS} at most")
    letters = [(character, index) for index, character in enumerate(text) if character != ","]
    for pattern in (_GROUP, _REPEAT):
        letters = _unrolled(letters, pattern)
    stages: list[list[tuple[str, int]]] = [[]]
    for character, index in letters:
        if character == "|":
            stages.append([])
        elif character in LETTERS:
            stages[-1].append((character, index))
        else:
            raise InputError(f"{character!r} {_reason(character)}", place=_at(index))
    return (
        tuple("".join(character for character, _ in stage) for stage in stages),
        tuple(tuple(_at(index) for _, index in stage) for stage in stages),
    )


def _at(index: int) -> str:
    return f"character {index + 1}"


def _reason(character: str) -> str:
    if character.isspace():
        return "is a blank; a layout has none"
    if character in "()":
        return "is no part of a group: groups are (...)*n, not empty and not one inside another"
    if character == "*" or character.isdigit():
        return "repeats nothing: write c*n for one character or (...)*n for several"
    return f"is no layer; the letters are {', '.join(f'{k} ({v})' for k, v in LETTERS.items())}"


def _unrolled(letters: list[tuple[str, int]], pattern: re.Pattern[str]) -> list[tuple[str, int]]:
    text = "".join(character for character, _ in letters)
    made: list[tuple[str, int]] = []
    done = 0
    for match in pattern.finditer(text):
        made += letters[done : match.start()]
        digits = match[2].lstrip("0") or "0"
        times = int(digits) if len(digits) < 8 else MOST_SYMBOLS
        body = letters[match.start(1) : match.end(1)]
        if len(made) + times * len(body) > MOST_SYMBOLS:
            raise InputError(f"unrolls to more than {MOST_SYMBOLS} symbols", place=_at(letters[match.start()][1]))
        made += body * times
        done = match.end()
    return made + letters[done:]


def print_layout(stages: Sequence[str]) -> str:
    """Return stages in the one form that OctoCP prints: ``(tt|)*n`` for equal stages in a row, ``t*n`` from three on.

    The last stage stands alone, since every stage of a group ends with ``|``. A comma, which means nothing, follows a
    group.
    """
    parts = []
    for stage, run in groupby(stages[:-1]):
        count, one = len(list(run)), _print_stage(stage) + "|"
        parts.append(f"({one})*{count}," if count > 1 else one)
    return "".join(parts) + _print_stage(stages[-1])


def _print_stage(stage: str) -> str:
    runs = ((letter, len(list(run))) for letter, run in groupby(stage))
    return "".join(f"{letter}*{count}" if count > 2 else letter * count for letter, count in runs)


def parse_list(text: str) -> tuple[Stages, tuple[tuple[str, ...], ...]]:
    """Read the list form: a list of stages, each a list of ``embedding``, ``decoder``, ``mtp`` and ``loss``."""
    try:
        # No number is a layer: left as text, one of any length does no harm.
        data: Any = json.loads(text.replace("'", '"'), parse_int=str)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InputError(f"not a list of lists: {error.msg}", place=place) from None
    except RecursionError:
        raise InputError("is nested too deep") from None
    stages, places = [], []
    for index, stage in enumerate(data):
        if not isinstance(stage, list):
            raise InputError("is no list", place=f"[{index}]", right='a list of layers, e.g. ["decoder", "decoder"]')
        for position, name in enumerate(stage):
            if not isinstance(name, str) or name.strip().lower() not in NAMES:
                right = ", ".join(NAMES)
                raise InputError(f"{str(name)[:30]!r} is no layer", place=f"[{index}][{position}]", right=right)
        stages.append("".join(NAMES[name.strip().lower()] for name in stage))
        places.append(tuple(f"[{index}][{position}]" for position in range(len(stage))))
    if not stages:
        raise InputError("has no stage")
    return tuple(stages), tuple(places)


def print_list(stages: Sequence[str]) -> str:
    """Return the list form of stages, on one line."""
    return json.dumps([[LETTERS[letter] for letter in stage] for stage in stages])


# ---- the pattern of hybrid models ------------------------------------------------------------


def parse_hybrid(text: str) -> tuple[Stages, tuple[tuple[str, ...], ...], int]:
    """Read a hybrid pattern; returns stages, places, and how many depths of multi-token prediction follow ``/``."""
    main, *depths = text.split("/")
    stages: list[list[str]] = [[]]
    places: list[list[str]] = [[]]
    known = {**HYBRID, **dict.fromkeys(OTHER_HYBRID, "")}
    for index, character in enumerate(main):
        if character == "|":
            stages.append([])
            places.append([])
        elif character in known:
            stages[-1].append(character)
            places[-1].append(_at(index))
        else:
            right = ", ".join(f"{k} ({v})" for k, v in HYBRID.items())
            raise InputError(f"{character!r} is no layer of a hybrid model", place=_at(index), right=right)
    start = len(main) + 1
    for depth in depths:
        if depth != depths[0]:
            raise InputError("differs from the first depth; all depths are alike", place=_at(start))
        bad = next((index for index, character in enumerate(depth) if character not in known), None)
        if bad is not None:
            raise InputError(f"{depth[bad]!r} is no layer of a hybrid model", place=_at(start + bad))
        start += len(depth) + 1
    return tuple(map("".join, stages)), tuple(map(tuple, places)), len(depths) if any(depths) else 0


def print_hybrid(stages: Sequence[str]) -> str:
    """Return a hybrid pattern, which has no short forms."""
    return "|".join(stages)


# ---- what Megatron asks of a layout ----------------------------------------------------------


def check_layout(arguments: Arguments, ranks: int) -> None:
    """Check what Megatron checks when it starts.

    Raises
    ------
    InputError
        With the place of the layer that is wrong.
    """
    stages, places = arguments.stages, arguments.places or tuple(("",) * len(stage) for stage in arguments.stages)
    if arguments.ranks not in (None, ranks):
        raise InputError(f"is {arguments.ranks}; there are {ranks} devices", place="--pipeline-model-parallel-size")
    if len(stages) % ranks:
        raise InputError(
            f"has {len(stages)} stages on {ranks} ranks", right="a multiple of the ranks; empty stages count"
        )
    if arguments.hybrid:
        if not any(stages):
            letters = ", ".join(f"{letter} ({name})" for letter, name in HYBRID.items())
            raise InputError("the pattern has no layer", right=f"a letter for each layer: {letters}")
    else:
        flat = [
            (letter, place)
            for stage, row in zip(stages, places, strict=True)
            for letter, place in zip(stage, row, strict=True)
        ]
        _check_order(flat)
        _check_mtp(stages, places, ranks)


def _check_order(flat: list[tuple[str, str]]) -> None:
    if not flat:
        raise InputError("has no layer")
    _refuse_if(flat[0][0] != "E", flat[0][1], lambda: f"{flat[0][0]!r} comes first; the embedding E must")
    _refuse_if(flat[-1][0] != "L", flat[-1][1], lambda: f"{flat[-1][0]!r} comes last; the loss L must")
    prediction = False
    for position, (letter, place) in enumerate(flat):
        _refuse_if(letter == "E" and position > 0, place, lambda: "a second embedding E; there is one")
        _refuse_if(letter == "L" and position < len(flat) - 1, place, lambda: "a loss L before the end; there is one")
        prediction = prediction or letter == "m"
        _refuse_if(letter == "t" and prediction, place, lambda: "a decoder layer t after m; all t come before all m")


def _check_mtp(stages: Stages, places: Sequence[Sequence[str]], ranks: int) -> None:
    with_mtp = [number for number, stage in enumerate(stages) if "m" in stage]
    for number in with_mtp:
        place = places[number][stages[number].index("m")]
        _refuse_if(number != with_mtp[0], place, lambda: f"m in a second stage; all are in one, stage {with_mtp[0]}")
        chunk = number // ranks
        _refuse_if(
            chunk != len(stages) // ranks - 1,
            place,
            lambda n=number: f"m in stage {n}, which is not the last chunk of rank {n % ranks}",  # type: ignore[misc]
        )


def _refuse_if(wrong: bool, place: str, problem: Callable[[], str]) -> None:
    if wrong:
        raise InputError(problem(), place=place)
