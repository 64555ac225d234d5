"""Where the layers of a run come from: a function of the user's, a synthetic hybrid, or layers that sleep."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from octocp.errors import InputError
from octocp.schema import Plan
from octocp.torch.models import Sizes, Workload, hybrid, sleeping


@dataclass(frozen=True)
class Source:
    """How to build the layers, the same way in every process.

    Attributes
    ----------
    name : str
        `hybrid`, `sleep`, or ``package.module:function``.
    scale : float
        How much longer than planned the layers of `sleep` take.
    seed : int
        Of parameters and data.
    double : bool
        Whether to compute in float64.
    """

    name: str = "hybrid"
    scale: float = 1.0
    sizes: Sizes = field(default_factory=Sizes)
    seed: int = 0
    double: bool = False

    def build(self, plan: Plan) -> Workload:
        """Build the layers for a plan; they are as many as the plan's."""
        torch.manual_seed(self.seed)
        if self.name == "sleep":
            made = sleeping(plan, scale=self.scale)
        elif self.name == "hybrid":
            model = plan.instance.model
            made = hybrid([model.kinds[kind].name or kind for kind in model.layer_kinds()], self.sizes)
        else:
            made = load(self.name)
        if len(made.layers) != sum(plan.partition):
            raise InputError(
                f"{self.name} gives {len(made.layers)} layers; the plan's model has {sum(plan.partition)}",
                right="the model that the plan was made for",
            )
        return _in_double(made) if self.double else made


def load(name: str) -> Workload:
    """Call a user's function, ``package.module:function``, and return what it gives as a workload.

    It returns (layers, sample), with layers a list or an nn.Sequential and sample the input of one microbatch; the
    loss is then the last layer's mean output. Or (layers, sample, target, loss), or a `Workload`.

    Raises
    ------
    InputError
        There is no such function, it fails, or it gives something else.
    """
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise InputError(f"{name!r} names no function", place="--module", right="package.module:function")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        function = getattr(importlib.import_module(module_name), function_name)
        given = function()
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{name} failed: {type(error).__name__}: {error}", place="--module") from None
    return _workload(given, name)


def _workload(given: Any, name: str) -> Workload:
    if isinstance(given, Workload):
        return given
    right = "(layers, sample) or (layers, sample, target, loss)"
    if not isinstance(given, tuple) or len(given) not in (2, 4):
        raise InputError(f"{name} returns {type(given).__name__}", place="--module", right=right)
    layers, sample, *rest = given
    if isinstance(layers, nn.Module) and not isinstance(layers, nn.Sequential | nn.ModuleList):
        raise InputError(f"{name} returns one module as layers", place="--module", right="a list or an nn.Sequential")
    layers = list(layers)
    if not layers or not all(isinstance(layer, nn.Module) for layer in layers):
        raise InputError(f"{name} returns layers that are no modules", place="--module", right=right)
    if not isinstance(sample, Tensor) or not sample.dim() or (rest and not isinstance(rest[0], Tensor)):
        raise InputError(f"{name} returns no tensor as sample or target", place="--module", right=right)
    target, loss = rest or (torch.zeros(sample.shape[0]), mean_output)
    return Workload(layers, sample, target, loss)


def mean_output(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean of the output, which is the loss itself where the last layer computes it."""
    del target
    return output.mean()


def batch(tensor: Tensor, microbatches: int) -> Tensor:
    """Return that many different microbatches in one batch: `tensor`, its numbers turned by one step more each."""
    flat = tensor.flatten()
    return torch.cat([flat.roll(shift).view_as(tensor) for shift in range(microbatches)])


def _in_double(made: Workload) -> Workload:
    def cast(tensor: Tensor) -> Tensor:
        return tensor.double() if tensor.is_floating_point() else tensor

    layers = [layer.double() for layer in made.layers]
    return Workload(layers, cast(made.sample), cast(made.target), made.loss)
