"""What every schema class shares: strict types, no unknown keys, bounded finite numbers."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MAX_LAYERS = 10_000
MAX_DEVICES = 1_024
MAX_MICROBATCHES = 16_384
# An hour per layer, a petabyte per layer: beyond any real profile, and safely inside exact arithmetic.
MAX_MS = 3.6e6
MAX_GB = 1e6

Milliseconds = Annotated[float, Field(ge=0, le=MAX_MS, allow_inf_nan=False)]
Gigabytes = Annotated[float, Field(ge=0, le=MAX_GB, allow_inf_nan=False)]
Megabytes = Annotated[float, Field(ge=0, le=MAX_GB * 1000, allow_inf_nan=False)]
Microseconds = Annotated[float, Field(ge=0, le=MAX_MS * 1000, allow_inf_nan=False)]
Ratio = Annotated[float, Field(ge=1e-3, le=1e3, allow_inf_nan=False)]
LONGEST_NAME = 200
Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
LayerIndex = Annotated[int, Field(ge=0, lt=MAX_LAYERS)]


class Strict(BaseModel):
    """Base of the schema: unknown keys are errors, ``"4"`` is not a number, nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, validate_default=False)
