"""What each layer of a model takes: times of F, I, W and the fused backward, and the bytes it holds and hands on."""

from __future__ import annotations

import gc
import math
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import quantiles
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward, stage_backward_input, stage_backward_weight

from octocp.errors import InputError
from octocp.torch.models import Workload
from octocp.torch.user_code import guarded, one_tensor, title

OPS = ("forward", "backward_input", "backward_weight", "backward")
# A measurement below this share of the whole step can vary as it likes.
NEGLIGIBLE = 0.01
# Of so many rounds in a row the second fastest counts: what else a machine does adds to a time, and now and then one
# round is lucky with the caches.
BLOCK = 5
# The spread is one of blocks, so there are at least so many, of fewer rounds where there are few rounds.
LEAST_BLOCKS = 5


@dataclass(frozen=True)
class Timing:
    """Repeated measurements of one op, in milliseconds: median, first and third quartile over blocks of rounds."""

    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """The middle half's width over the median."""
        return (self.high - self.low) / self.median if self.median > 0 else 0.0


@dataclass
class LayerProfile:
    """One layer, for one microbatch.

    Attributes
    ----------
    signature : str
        Equal for layers that are alike: class, settings, shapes.
    times : dict of Timing
        By op (`OPS`); `backward` is the fused one.
    saved_bytes : int
        What autograd keeps from F to the input gradient, parameters left out.
    late_bytes : int
        What it keeps from there to the weight gradient, captured gradients included.
    output_bytes : int
        What crosses to the next layer.
    parameters, parameter_bytes : int
        Numbers that are trained, and their size.
    """

    title: str
    signature: str
    times: dict[str, Timing] = field(default_factory=dict)
    saved_bytes: int = 0
    late_bytes: int = 0
    output_bytes: int = 0
    parameters: int = 0
    parameter_bytes: int = 0


def measure(work: Workload, device: torch.device, *, repeats: int, warm_up: int) -> list[LayerProfile]:
    """Measure every layer in turn, `repeats` times over after `warm_up` rounds that do not count.

    The first layer's input needs no gradient, so its I is nothing and its W all of the backward; the last layer's F
    includes the loss. A round is over all layers, so that a disturbance hits all of them alike; the second fastest of
    each `BLOCK` rounds count, and their median is the time.

    Raises
    ------
    InputError
        A layer does not fit the ones before it, or cannot run backward.
    """
    cases = _cases(work, device)
    found: list[dict[str, list[float]]] = [{op: [] for op in OPS} for _ in cases]
    with _no_collections():
        for round_ in range(warm_up + repeats):
            for case, of_layer in zip(cases, found, strict=True):
                with case.naming():
                    marks = _one_round(case, _Stopwatch(device))
                if round_ >= warm_up:
                    for op, milliseconds in marks.items():
                        of_layer[op].append(milliseconds)
    for case, of_layer in zip(cases, found, strict=True):
        case.profile.times = {op: _timing(values) for op, values in of_layer.items()}
        with case.naming():
            case.profile.saved_bytes, case.profile.late_bytes = _bytes_held(case)
    return [case.profile for case in cases]


def refuse_noise(profiles: Sequence[LayerProfile], limit: float) -> float:
    """Return the largest spread of a measurement that matters.

    Raises
    ------
    InputError
        It is above `limit`; the text has the numbers.
    """
    for index, profile in enumerate(profiles):
        for op, timing in profile.times.items():
            if not all(map(math.isfinite, (timing.median, timing.low, timing.high))):
                where = f"{op} of layer {index} ({profile.title})"
                raise InputError(f"{where} took {timing.median} ms by the clock", right="a clock that can be trusted")
    total = sum(profile.times[op].median for profile in profiles for op in OPS[:3])
    worst = (0.0, 0, "")
    for index, profile in enumerate(profiles):
        for op, timing in profile.times.items():
            if timing.median >= NEGLIGIBLE * total:
                worst = max(worst, (timing.spread, index, op))
    spread, index, op = worst
    if spread > limit:
        timing = profiles[index].times[op]
        raise InputError(
            f"measurements vary too much: {op} of layer {index} ({profiles[index].title}) takes "
            f"{timing.median:.4g} ms, the middle half of its measurements {timing.low:.4g} to {timing.high:.4g} ms: "
            f"{100 * spread:.0f} %, at most {100 * limit:.0f} %",
            right="a quiet machine, larger microbatches, more --repeats, or --max-spread",
        )
    return spread


@dataclass
class _Case:
    """A layer with its input, and with the loss where it is the last one."""

    index: int
    layer: nn.Module
    sample: Tensor
    loss: Callable[[Tensor], Tensor] | None
    profile: LayerProfile

    def fresh(self) -> Tensor:
        """Return the input as the stage before hands it over; that of the first layer needs no gradient."""
        return self.sample.detach().requires_grad_(self.index > 0 and self.sample.is_floating_point())

    def forward(self, x: Tensor) -> Tensor:
        """Run the layer, and the loss after it; the output is never a view, as in a stage."""
        out: Tensor = self.layer(x)
        if self.loss:
            return self.loss(out)
        return out.clone() if out._is_view() else out

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Turn whatever the layer raises into one line that names it."""
        with guarded(f"layer {self.index} ({self.profile.title})"):
            yield


def _cases(work: Workload, device: torch.device) -> list[_Case]:
    """Run forward once; return each layer with its input and what is known of it without a clock."""
    x, target = work.sample.to(device), work.target.to(device)
    cases: list[_Case] = []
    for index, module in enumerate(work.layers):
        with guarded(f"layer {index} ({title(module)})"):
            layer, last = module.to(device).train(), index == len(work.layers) - 1
        parameters = [parameter for parameter in layer.parameters() if parameter.requires_grad]
        shapes = [tuple(tensor.shape) for tensor in (*parameters, x)]
        profile = LayerProfile(
            title=title(layer),
            signature="|".join(map(str, (type(layer), layer, shapes, x.dtype, index == 0, last))),
            parameters=sum(parameter.numel() for parameter in parameters),
            parameter_bytes=sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        )
        case = _Case(index, layer, x.detach(), (lambda out: work.loss(out, target)) if last else None, profile)
        with case.naming(), torch.no_grad():
            x = one_tensor(layer(x), index, layer)
        profile.output_bytes = x.numel() * x.element_size()
        cases.append(case)
    return cases


class _Stopwatch:
    """Laps of one round: the host's clock, or events on a GPU, read at the end of the round."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.marks: list[tuple[str, Any]] = []

    def lap(self, op: str) -> None:
        """End the lap of an op; "" is for what does not count."""
        if self.device.type != "cuda":
            self.marks.append((op, time.perf_counter()))
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.marks.append((op, event))

    def read(self) -> dict[str, float]:
        """Return each op's last lap in milliseconds."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        laps: dict[str, float] = {}
        for (_, start), (op, end) in pairwise(self.marks):
            if op:
                laps[op] = start.elapsed_time(end) if self.device.type == "cuda" else 1000 * (end - start)
        return laps


def _one_round(case: _Case, watch: _Stopwatch) -> dict[str, float]:
    """Run one layer twice, with a split and with a fused backward; return the milliseconds of each op."""
    for split in (True, False):
        x = case.fresh()
        watch.lap("")
        out = case.forward(x)
        watch.lap("forward")
        gradient = None if case.loss else torch.ones_like(out)
        watch.lap("")
        if not split:
            stage_backward((out,), (gradient,), [x])
            watch.lap("backward")
        elif x.requires_grad:
            _, groups = _input_gradient(case, out, gradient, x)
            watch.lap("backward_input")
            stage_backward_weight(case.layer.parameters(), groups)
            watch.lap("backward_weight")
        else:
            watch.lap("backward_input")
            stage_backward((out,), (gradient,), [x])
            watch.lap("backward_weight")
        del out
    return watch.read()


def _input_gradient(case: _Case, out: Tensor, gradient: Tensor | None, x: Tensor) -> Any:
    return stage_backward_input([out], None if gradient is None else [gradient], [x], case.layer.parameters())


@contextmanager
def _no_collections() -> Iterator[None]:
    """Keep Python's garbage collector from running within what is timed."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _timing(values: list[float]) -> Timing:
    size = max(1, min(BLOCK, len(values) // LEAST_BLOCKS))
    blocks = [sorted(values[start : start + size]) for start in range(0, len(values) - size + 1, size)]
    counted = [block[1 if size == BLOCK else 0] for block in blocks]
    low, middle, high = quantiles(counted, n=4, method="inclusive") if len(counted) > 1 else counted * 3
    return Timing(middle, low, high)


class _Kept:
    """A tensor that autograd keeps for backward; gone once autograd drops it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def _bytes_held(case: _Case) -> tuple[int, int]:
    """Return the bytes of the tensors kept from F on, and of those still kept once I is done."""
    kept: list[weakref.ref[_Kept]] = []

    def pack(tensor: Tensor) -> _Kept:
        holder = _Kept(tensor)
        kept.append(weakref.ref(holder))
        return holder

    def now() -> list[Tensor]:
        return [holder.tensor for reference in kept if (holder := reference()) is not None]

    parameters = [*case.layer.parameters(), *case.layer.buffers()]
    x = case.fresh()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda holder: holder.tensor):
        out = case.forward(x)
    saved = _distinct_bytes(now(), parameters)
    if not x.requires_grad:  # I is nothing, and W is all of the backward
        return saved, saved
    gradient = None if case.loss else torch.ones_like(out)
    _, groups = _input_gradient(case, out, gradient, x)
    grads = [grad for group in groups for held in group.get("grads", ()) for grad in held or ()]
    captured = [grad for grad in grads if grad is not None]
    late = _distinct_bytes([*now(), *captured], parameters)
    return saved, late if groups else 0


def _distinct_bytes(tensors: Iterable[Tensor], without: Iterable[Tensor]) -> int:
    ignored = {tensor.untyped_storage().data_ptr() for tensor in without}
    sizes = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(size for pointer, size in sizes.items() if pointer not in ignored)
