"""``octocp.model/1``: a layer sequence and what each kind of layer costs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from octocp.schema.base import MAX_LAYERS, Gigabytes, Megabytes, Milliseconds, Name, Strict

SIZES_AND_TIMES = (
    "forward_ms",
    "backward_input_ms",
    "backward_weight_ms",
    "static_gb",
    "activation_gb",
    "weight_activation_gb",
    "output_mb",
)


class KindCosts(Strict):
    """Costs of one layer of one kind, for a microbatch of relative length 1.

    Times are milliseconds, sizes decimal giga- and megabytes. `forward_ms` may be left out only
    where every profile of the model gives it.
    """

    name: Name | None = None
    forward_ms: Milliseconds | None = None
    backward_input_ms: Milliseconds = 0.0
    backward_weight_ms: Milliseconds = 0.0
    static_gb: Gigabytes = 0.0
    activation_gb: Gigabytes = 0.0
    weight_activation_gb: Gigabytes = 0.0
    output_mb: Megabytes = 0.0


class Provenance(Strict):
    """Where costs come from; travels into every plan made with them."""

    kind: Literal["measured", "published", "derived", "unknown"] = "unknown"
    source: str = ""
    hardware: str = ""
    note: str = ""


class Profile(Strict):
    """A named set of costs: per kind, the fields that differ from the model's own `kinds`."""

    kinds: dict[Name, KindCosts] = Field(default_factory=dict)
    provenance: Provenance = Provenance()


class ModelSpec(Strict):
    """A model: its layers in order, the costs of each kind, and optional named profiles.

    Attributes
    ----------
    layers : str or list of str
        One symbol per layer with blanks ignored, or a list of kind names.
    kinds : dict
        Costs by kind.
    profiles : dict
        Further named cost sets; the first one is the default. Without any, `kinds` is the profile.
    provenance : Provenance
        Source of `kinds`.
    """

    format: Literal["octocp.model/1"] = "octocp.model/1"
    name: Name
    description: str = ""
    layers: (
        Annotated[str, Field(min_length=1, max_length=4 * MAX_LAYERS)]
        | Annotated[list[Name], Field(min_length=1, max_length=MAX_LAYERS)]
    )
    kinds: Annotated[dict[Name, KindCosts], Field(min_length=1, max_length=1000)]
    profiles: Annotated[dict[Name, Profile], Field(max_length=1000)] = Field(default_factory=dict)
    provenance: Provenance = Provenance()

    @model_validator(mode="after")
    def _layers_are_known(self) -> ModelSpec:
        sequence = self.layer_kinds()
        if not sequence:
            raise ValueError("layers: there is no layer in it; one symbol per layer, e.g. 'E TTTT L'")
        if len(sequence) > MAX_LAYERS:
            raise ValueError(f"layers: {len(sequence)} layers; at most {MAX_LAYERS}")
        for index, kind in enumerate(sequence):
            if kind not in self.kinds:
                raise ValueError(
                    f"layers: layer {index} is of kind {kind!r}; known kinds: {', '.join(map(repr, self.kinds))}"
                )
        for profile_name, profile in self.profiles.items():
            for kind in profile.kinds:
                if kind not in self.kinds:
                    raise ValueError(
                        f"profiles.{profile_name}.kinds.{kind}: unknown kind; known: {', '.join(map(repr, self.kinds))}"
                    )
        for kind in dict.fromkeys(sequence):
            for profile_name in self.profiles or [""]:
                if self.costs(kind, profile_name or None).forward_ms is None:
                    where = f" in profile {profile_name!r}" if profile_name else ""
                    raise ValueError(f"kinds.{kind}.forward_ms: missing{where}; a time in milliseconds, e.g. 2.7")
        return self

    def layer_kinds(self) -> list[str]:
        """Return the kind of each layer, first to last; in a list, a kind's `name` may stand for its key."""
        if isinstance(self.layers, str):
            return [symbol for symbol in self.layers if not symbol.isspace()]
        alias = {costs.name: key for key, costs in self.kinds.items() if costs.name}
        return [kind if kind in self.kinds else alias.get(kind, kind) for kind in self.layers]

    def costs(self, kind: str, profile: str | None = None) -> KindCosts:
        """Return the costs of `kind` under a profile; None means the default one."""
        base = self.kinds[kind]
        name = profile if profile is not None else next(iter(self.profiles), None)
        if name is None or kind not in self.profiles[name].kinds:
            return base
        override = self.profiles[name].kinds[kind]
        return base.model_copy(update={field: getattr(override, field) for field in override.model_fields_set})

    def flattened(self, profile: str | None = None) -> ModelSpec:
        """Return the model with one profile's costs written into `kinds` and no profiles left."""
        name = profile if profile is not None else next(iter(self.profiles), None)
        if name is None:
            return self
        return self.model_copy(
            update={
                "kinds": {kind: self.costs(kind, name) for kind in self.kinds},
                "profiles": {},
                "provenance": self.profiles[name].provenance,
            }
        )
