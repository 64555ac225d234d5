"""``octocp.dataset/1``: which instances a data set has, and how they are solved."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from octocp.errors import InputError
from octocp.schema.base import MAX_DEVICES, MAX_LAYERS, MAX_MICROBATCHES, Name, Strict
from octocp.schema.files import load_model
from octocp.schema.messages import place_of, validate
from octocp.schema.model import ModelSpec
from octocp.schema.reading import Path_, read_document, shorten

FORMAT = "octocp.dataset/1"
MAX_INSTANCES = 10_000_000
MAX_AXIS = 10_000

Whole = Annotated[int, Field(ge=0, le=10**9)]
Placement = Literal["free", "linear", "interleaved", "wave", "given"]
Partition = Literal["free", "given"]
Memory = Literal["none", "tight", "loose", "uneven", "some"]
Links = Literal["none", "latency", "bandwidth", "both", "nodes"]
Together = Literal["none", "ends", "random"]
Archetype = Literal["dense", "moe", "moe-alternating", "hybrid", "hybrid-moe"]


class Range(Strict):
    """Whole numbers from `least` to `most`, both included, `step` apart."""

    least: Whole
    most: Whole
    step: Annotated[int, Field(ge=1, le=10**9)] = 1


Numbers = Annotated[
    Annotated[list[Whole], Field(min_length=1, max_length=MAX_AXIS), Tag("list")] | Annotated[Range, Tag("range")],
    Discriminator(lambda value: "range" if isinstance(value, dict | Range) else "list"),
]


def values(axis: Sequence[Any] | Range) -> list[Any]:
    """Return the values of an axis; one that is listed twice comes twice as often."""
    return list(range(axis.least, axis.most + 1, axis.step)) if isinstance(axis, Range) else list(axis)


# Axes that are whole numbers, with their limits.
LIMITS = {
    "devices": (1, MAX_DEVICES),
    "microbatches": (1, MAX_MICROBATCHES),
    "max_per_device": (1, MAX_LAYERS),
    "op_overhead_us": (0, 10**9),
    "tick_us": (1, 10**9),
    "blocks": (1, MAX_LAYERS),
    "hidden": (64, 65_536),
    "vocabulary": (1000, 10_000_000),
    "experts": (2, 4096),
    "sequence": (128, 1_048_576),
    "layers": (1, MAX_LAYERS),
    "kinds": (1, 52),
    "heterogeneity": (0, 10_000),
}


class Family(Strict):
    """What every family has: how many instances, and the axes that do not depend on where its models come from.

    Every axis lists its values; each comes equally often. Times in microseconds.

    Attributes
    ----------
    memory : list of str
        Limits per device. "tight" is close to what one microbatch in flight needs, "loose" closer to what 1F1B needs,
        "uneven" differs by device, "some" leaves devices without.
    links : list of str
        Delays between devices; "nodes" puts devices on two nodes.
    keep_together, colocate : list of str
        "ends": each end with its neighbour, or the first layer and the last on one device; "random": any.
    max_ops : int
        Ops of an instance with the most stages that it allows, at most.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=60)]
    count: Annotated[int, Field(ge=1, le=MAX_INSTANCES)]
    devices: Numbers = Field([2, 3, 4])
    microbatches: Numbers = Field([2, 4, 6, 8])
    max_per_device: Numbers = Field([1, 2])
    placement: Annotated[list[Placement], Field(min_length=1)] = Field(["free"])
    partition: Annotated[list[Partition], Field(min_length=1)] = Field(["free"])
    split_backward: Annotated[list[bool], Field(min_length=1)] = Field([True])
    objective: Annotated[list[Literal["makespan", "span"]], Field(min_length=1)] = Field(["makespan"])
    memory: Annotated[list[Memory], Field(min_length=1)] = Field(["none"])
    links: Annotated[list[Links], Field(min_length=1)] = Field(["none"])
    keep_together: Annotated[list[Together], Field(min_length=1)] = Field(["none"])
    colocate: Annotated[list[Together], Field(min_length=1)] = Field(["none"])
    op_overhead_us: Numbers = Field([0])
    tick_us: Numbers = Field([10])
    max_ops: Annotated[int, Field(ge=1, le=1_000_000)] = 200

    def axes(self) -> dict[str, list[Any]]:
        """Return the values of every axis by its name."""
        plain = {"name", "count", "source", "max_ops"}
        return {key: values(getattr(self, key)) for key in type(self).model_fields if key not in plain}

    @model_validator(mode="after")
    def _axes_are_right(self) -> Family:
        for key, (least, most) in LIMITS.items():
            axis = getattr(self, key, None)
            if axis is None:
                continue
            if isinstance(axis, Range) and axis.least > axis.most:
                raise ValueError(f"{key}: from {axis.least} to {axis.most} is nothing; least is at most most")
            if isinstance(axis, Range) and (axis.most - axis.least) // axis.step >= MAX_AXIS:
                raise ValueError(f"{key}: more than {MAX_AXIS} values; a larger step")
            wrong = next((value for value in values(axis) if not least <= value <= most), None)
            if wrong is not None:
                raise ValueError(f"{key}: {wrong} is out of range; {least} to {most}")
        return self


class Profiles(Family):
    """Published profiles of the catalogue, or one's own model files: runs of their blocks, the ends kept."""

    source: Literal["profiles"]
    models: Annotated[list[Name], Field(min_length=1, max_length=1000)]
    blocks: Numbers = Range(least=4, most=10)


class Architectures(Family):
    """Transformer, mixture-of-experts and hybrid architectures; costs follow from their sizes."""

    source: Literal["architecture"]
    archetype: Annotated[list[Archetype], Field(min_length=1)] = Field(list(get_args(Archetype)))
    blocks: Numbers = Range(least=4, most=10)
    hidden: Numbers = Field([1024, 2048, 4096])
    vocabulary: Numbers = Field([32_000, 128_256, 256_000])
    experts: Numbers = Field([8, 16, 64])
    sequence: Numbers = Field([2048, 4096])


class Mixes(Family):
    """Random layers. `heterogeneity` is in percent: 100 means that a kind may cost up to twice the cheapest."""

    source: Literal["mix"]
    layers: Numbers = Range(least=4, most=10)
    kinds: Numbers = Field([1, 2, 3, 4])
    heterogeneity: Numbers = Field([0, 50, 100, 300])


SOURCES = ("profiles", "architecture", "mix")
SOURCES_WORDS = "profiles, architecture or mix"
AnyFamily = Annotated[Profiles | Architectures | Mixes, Field(discriminator="source")]


def _writable(text: str) -> str:
    """Refuse half of a surrogate pair, which no file can be written with."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("has text that is no Unicode") from None
    return text


class SolveSettings(Strict):
    """How each instance is solved: seconds at most, and the seed. One worker, so that the seed decides the search."""

    time_limit: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 20.0
    seed: Annotated[int, Field(ge=0, lt=2**31 - 1)] = 0


class Spec(Strict):
    """A data set.

    Attributes
    ----------
    generator : int
        Version of the code that draws instances: with it, the seed gives the same instances for ever.
    """

    format: Literal["octocp.dataset/1"]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
    description: Annotated[str, AfterValidator(_writable)] = ""
    licence: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 .,:+()_-]*$", max_length=100)] = "Apache-2.0"
    seed: Annotated[int, Field(ge=0, le=2**63)] = 0
    generator: Literal[1] = 1
    solve: SolveSettings = SolveSettings()
    families: Annotated[list[AnyFamily], Field(min_length=1, max_length=1000)]

    @model_validator(mode="after")
    def _fits_together(self) -> Spec:
        for problem in self._contradictions():
            raise ValueError(problem)
        return self

    def _contradictions(self) -> Iterator[str]:
        names = [family.name for family in self.families]
        for index, name in enumerate(names):
            if name in names[:index]:
                yield f"families[{index}].name: {name!r} is given twice; names must differ"
        if self.count > MAX_INSTANCES:
            yield f"families: {self.count} instances; at most {MAX_INSTANCES}"

    @property
    def count(self) -> int:
        """How many instances it has."""
        return sum(family.count for family in self.families)


def load_spec(path: str | Path) -> Spec:
    """Load a spec, YAML or JSON.

    Raises
    ------
    InputError
        It is missing or wrong.
    """
    path = Path(path)
    try:
        document = read_document(path)
    except InputError as error:
        if error.problem == "is empty":
            right = "a spec; docs/datasets.md shows one with every key"
            raise InputError(error.problem, place=error.place, file=str(path), right=right) from None
        raise
    found = document.data.get("format") if isinstance(document.data, dict) else None
    if isinstance(document.data, dict) and found != FORMAT:
        problem = "is missing" if found is None else f"is {shorten(found)}"
        raise InputError(problem, place="format", file=str(path), right=f"format: {FORMAT}")
    for keys, problem, right in _family_problems(document.data):
        raise InputError(problem, place=place_of(keys, document), file=str(path), right=right)
    return validate(Spec, document, str(path))


def _family_problems(data: Any) -> Iterator[tuple[Path_, str, str]]:
    """Yield what the schema would say in words that are not a user's: an unknown source, a list without values."""
    families = data.get("families") if isinstance(data, dict) else None
    if families == []:
        yield ("families",), "is empty", "a list of at least one family"
    for number, family in enumerate(families if isinstance(families, list) else ()):
        if not isinstance(family, dict):
            continue
        source = family.get("source")
        if not isinstance(source, str) or source not in SOURCES:
            problem = "is required and missing" if "source" not in family else f"{shorten(source)} is no source"
            yield ("families", number, "source"), problem, SOURCES_WORDS
        for key, value in family.items():
            if value == []:
                yield ("families", number, key), "is empty", "a list of at least one value"


def load_models(spec: Spec, path: str | Path) -> dict[str, ModelSpec]:
    """Load the models that a spec names; paths are relative to the spec's own, `path`.

    Raises
    ------
    InputError
        There is no such model, or it is wrong.
    """
    found: dict[str, ModelSpec] = {}
    for number, family in enumerate(spec.families):
        for place, name in enumerate(family.models if isinstance(family, Profiles) else ()):
            where = f"families[{number}].models[{place}]"
            try:
                found[name] = load_model(name, Path(path).parent)
            except InputError as error:
                raise InputError(str(error), place=where, file=str(path)) from None
            try:
                _writable(json.dumps(found[name].model_dump(), ensure_ascii=False))
            except ValueError as error:
                raise InputError(f"{name} {error}", place=where, file=str(path)) from None
    return found


def as_data(spec: Spec) -> dict[str, Any]:
    """Return the spec as plain data, without what only repeats a default."""
    data: dict[str, Any] = spec.model_dump(mode="json", exclude_defaults=True)
    return data


def digest(spec: Spec, models: Mapping[str, ModelSpec]) -> str:
    """Return what identifies a spec's rows: equal for specs that ask for the same instances, solved alike."""
    data = spec.model_dump(mode="json")
    for key in ("description", "licence"):
        del data[key]
    data["models"] = {name: model.model_dump(mode="json") for name, model in models.items()}
    return sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:32]
