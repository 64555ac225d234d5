"""Numba's compiler as this package uses it: cached where that is possible, and working where it is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit
from numba.core.caching import NullCache

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_COMPILED: list[Any] = []


def compiled(function: FunctionT) -> FunctionT:
    """Compile a function on first use, without Python's lock; keep the machine code on disk if any place takes it."""
    dispatcher: Any
    try:
        dispatcher = njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no place for a cache: neither the package nor the home folder can be written
        dispatcher = njit(nogil=True)(function)
    _COMPILED.append(dispatcher)
    return cast(FunctionT, dispatcher)


def is_cached(function: Callable[..., Any]) -> bool:
    """Whether machine code of a compiled function lies on disk, of whatever version; False where none is kept."""
    cache = getattr(function, "_cache", None)
    index = getattr(getattr(cache, "_cache_file", None), "_index_path", None)
    return index is not None and Path(index).is_file()


def forget_caches() -> None:
    """Compile anew from here on: what is on disk cannot be read."""
    for dispatcher in _COMPILED:
        dispatcher._cache = NullCache()
