"""What can go wrong in a user's function and layers, in one line: exceptions of any kind, sys.exit, wrong types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from octocp.errors import InputError, OctoCPError
from octocp.torch.models import Workload

MAX_TEXT = 500
RETURNS = "a function that returns (layers, sample) or (layers, sample, target, loss), layers a list of modules"


def first_cause(error: BaseException) -> BaseException:
    """Return what an exception was raised from, in the end."""
    seen = {id(error)}
    while error.__cause__ is not None and id(error.__cause__) not in seen:
        error = error.__cause__
        seen.add(id(error))
    return error


def words(error: BaseException) -> str:
    """Say in one line what was raised, whatever it is."""
    cause = first_cause(error)
    try:
        if isinstance(cause, SystemExit):
            return f"called sys.exit({'' if cause.code is None else repr(cause.code)[:MAX_TEXT]})"
        text = " ".join(str(cause).split())
    # Code of the user's too: it may raise anything.
    except BaseException:
        text = "(its text cannot be shown)"
    text = text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."
    return f"failed: {type(cause).__name__}" + (f": {text}" if text else "")


@contextmanager
def guarded(what: str, *, place: str = "", right: str = "") -> Iterator[None]:
    """Turn whatever a user's code raises, a wish to exit included, into one line that says where.

    Raises
    ------
    InputError
        It raised; `what` and the first cause are in the text.
    """
    try:
        yield
    except (OctoCPError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        cause = first_cause(error)
        if isinstance(cause, OctoCPError):
            raise cause from None
        raise InputError(f"{what} {words(error)}", place=place, right=right) from None


def built(name: str, build: Callable[[], Workload]) -> Workload:
    """Call what makes a workload of the user's, and return it once it is certain that it is one.

    Raises
    ------
    InputError
        It fails, or gives something that cannot be run.
    """
    with guarded(name, place="--module", right=RETURNS):
        work = build()
    layers: Any = work.layers
    if not isinstance(layers, list) or not layers or not all(isinstance(layer, nn.Module) for layer in layers):
        raise InputError(f"{name} returns layers that are no list of modules", place="--module", right=RETURNS)
    for what, tensor in (("sample", work.sample), ("target", work.target)):
        if not isinstance(tensor, Tensor) or not tensor.dim() or not tensor.numel():
            right = "a tensor whose first dimension is the samples of a microbatch, one at least"
            raise InputError(f"{name}: the {what} is empty or no tensor", place="--module", right=right)
        if tensor.is_meta:
            raise InputError(f"{name}: the {what} is on the meta device", place="--module", right="one with numbers")
    for index, layer in enumerate(layers):
        _has_numbers(layer, f"{name}: layer {index} ({title(layer)})")
    return replace(work, loss=_one_number(work.loss))


def _one_number(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss function, with a line for whatever it raises or gives that is no loss."""

    def checked(output: Tensor, target: Tensor) -> Tensor:
        with guarded("the loss"):
            value: Any = loss(output, target)
        if not isinstance(value, Tensor) or value.numel() != 1:
            given = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise InputError(f"the loss is {given}", right="a tensor with one number, the mean over a microbatch")
        return value

    return checked


def one_tensor(out: Any, index: int, layer: nn.Module) -> Tensor:
    """Return a layer's output, once it is certain that it is one tensor."""
    if isinstance(out, Tensor):
        return out
    right = "one tensor; a module around the layer can take it out of a tuple, or pack several into one"
    raise InputError(f"layer {index} ({title(layer)}) returns {type(out).__name__}", right=right)


def title(layer: nn.Module) -> str:
    """Name a layer by its class, or by those of its parts."""
    parts = [type(part).__name__ for part in layer.children()] if isinstance(layer, nn.Sequential) else []
    return "+".join(parts or [type(layer).__name__]).lower()[:60]


def _has_numbers(layer: nn.Module, where: str) -> None:
    for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
        if is_lazy(tensor):
            right = "layers that have run once, or no lazy ones"
            raise InputError(f"{where} has no size for {name} yet", place="--module", right=right)
        if tensor.is_meta:
            right = "layers with numbers: built on a real device, or after to_empty() and their initialization"
            raise InputError(f"{where} has {name} on the meta device", place="--module", right=right)


__all__ = ["built", "first_cause", "guarded", "one_tensor", "title", "words"]
