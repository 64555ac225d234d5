"""Layers to pipeline stages that note when they compute."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.pipelining import PipelineStage

from octocp.errors import InputError
from octocp.schema import Plan
from octocp.torch.actions import Action
from octocp.torch.board import Post
from octocp.torch.timeline import Span
from octocp.torch.user_code import guarded, one_tensor, title


class StageModule(nn.Sequential):
    """The layers of one stage; its output is never a view, since torch detaches outputs in place.

    Parameters
    ----------
    first : int
        Which of the model's layers the first one is.
    """

    def __init__(self, layers: Sequence[nn.Module], first: int) -> None:
        super().__init__(*layers)
        self.first = first

    def forward(self, x: Tensor) -> Tensor:
        """Run the layers one after the other; whatever one raises names it."""
        for index, layer in enumerate(self, self.first):
            with guarded(f"layer {index} ({title(layer)})"):
                x = one_tensor(layer(x), index, layer)
        return x.clone() if x._is_view() else x


def stage_modules(plan: Plan, layers: list[nn.Module]) -> list[StageModule]:
    """Cut layers into the plan's stages.

    Raises
    ------
    InputError
        Two stages share a parameter: their gradients would not be added up.
    """
    ends = list(accumulate(plan.partition))
    stages = [StageModule(layers[end - size : end], end - size) for end, size in zip(ends, plan.partition, strict=True)]
    holder: dict[int, int] = {}
    for index, stage in enumerate(stages):
        for name, parameter in stage.named_parameters():
            other = holder.setdefault(id(parameter), index)
            if other != index:
                raise InputError(
                    f"stages {other} and {index} share the parameter {name}",
                    right="layers that share parameters in one stage (stages.keep_together)",
                )
    return stages


class Clock:
    """Marks in time on one rank: the host's clock, or events on a GPU's stream, read once the step is over.

    Attributes
    ----------
    post : Post
        Where whoever watches the rank is told what it is at.
    """

    def __init__(self, device: torch.device, post: Post | None = None) -> None:
        self.device = device
        self.post = post or Post.unwatched()
        self.spans: list[tuple[Action, Any, Any]] = []
        self._base: tuple[float, Any] = (0.0, None)

    def restart(self) -> None:
        """Forget what was recorded; GPU events count from here."""
        self.spans.clear()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            base = torch.cuda.Event(enable_timing=True)
            base.record()
            self._base = (time.perf_counter(), base)

    def begin(self, action: Action) -> Any:
        """Tell that an action begins now, and return the mark."""
        self.post.begins(action)
        return self.now()

    def now(self) -> Any:
        """Return a mark."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def note(self, action: Action, start: Any) -> None:
        """Record an action that ends now."""
        self.spans.append((action, start, self.now()))
        self.post.ends()

    def extend(self, action: Action) -> None:
        """Move the end of the last recorded action to now, if it is this one."""
        if self.spans and self.spans[-1][0] == action:
            self.spans[-1] = (*self.spans[-1][:2], self.now())

    def read(self, rank: int) -> list[Span]:
        """Return what was recorded, in milliseconds of the host's clock."""
        if self.device.type != "cuda":
            return [Span(action, rank, 1000 * start, 1000 * end) for action, start, end in self.spans]
        torch.cuda.synchronize(self.device)
        zero, base = 1000 * self._base[0], self._base[1]
        return [
            Span(action, rank, zero + base.elapsed_time(start), zero + base.elapsed_time(end))
            for action, start, end in self.spans
        ]


class TimedStage(PipelineStage):
    """A pipeline stage that notes when it computes: after its input has come, until its output is there."""

    def __init__(
        self, module: nn.Module, index: int, count: int, device: torch.device, clock: Clock, group: ProcessGroup | None
    ) -> None:
        super().__init__(module, index, count, device, group=group)
        self.clock = clock

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run F."""
        action = Action(self.stage_index, "F", fwd_chunk_id)
        start = self.clock.begin(action)
        output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        self.clock.note(action, start)
        return output

    def backward_one_chunk(self, bwd_chunk_id: int, *, full_backward: bool = True, **kwargs: Any) -> None:
        """Run B, or I where the backward is split."""
        action = Action(self.stage_index, "B" if full_backward else "I", bwd_chunk_id)
        start = self.clock.begin(action)
        super().backward_one_chunk(bwd_chunk_id, full_backward=full_backward, **kwargs)
        self.clock.note(action, start)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, **kwargs: Any) -> None:
        """Run W."""
        action = Action(self.stage_index, "W", bwd_chunk_id)
        start = self.clock.begin(action)
        super().backward_weight_one_chunk(bwd_chunk_id, **kwargs)
        self.clock.note(action, start)


def timed_loss(
    loss: Callable[[Tensor, Tensor], Tensor], clock: Clock, last_stage: int
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss function; what it takes counts as part of the last stage's F."""

    def timed(output: Tensor, target: Tensor) -> Tensor:
        value = loss(output, target)
        action = clock.spans[-1][0] if clock.spans else None
        if action is not None and action.stage == last_stage and action.kind == "F":
            clock.extend(action)
        return value

    return timed
