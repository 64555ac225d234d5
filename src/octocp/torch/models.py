"""Small models to run plans with: transformer, Mamba-like and MLP blocks; and layers that sleep as planned."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from octocp.schema import Plan

# What a part of a kind's name makes of it; the first that fits.
_FAMILIES = (
    ("embed", "embedding"),
    ("head", "head"),
    ("loss", "head"),
    ("mamba", "mamba"),
    ("ssm", "mamba"),
    ("mlp", "mlp"),
    ("ffn", "mlp"),
    ("moe", "mlp"),
    ("att", "attention"),
    ("transformer", "attention"),
)
_BLOCKS = ("attention", "mamba", "mlp")


@dataclass(frozen=True)
class Sizes:
    """Sizes of a synthetic model: samples in a microbatch, tokens in a sample, numbers per token, known tokens."""

    samples: int = 2
    tokens: int = 16
    width: int = 32
    vocabulary: int = 64


@dataclass(frozen=True)
class Workload:
    """What to train for one step.

    Attributes
    ----------
    layers : list of nn.Module
        A tensor in, a tensor out, each.
    sample : Tensor
        The input of one microbatch.
    target : Tensor
        What `loss` compares the output with; one microbatch.
    loss : callable
        (output, target) -> a scalar, the mean over the microbatch.
    """

    layers: list[nn.Module]
    sample: Tensor
    target: Tensor
    loss: Callable[[Tensor, Tensor], Tensor]


class Attention(nn.Module):
    """Causal self-attention with a residual."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.inward, self.outward = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return x plus what each token gathers from those before it."""
        batch, tokens, width = x.shape
        parts = self.inward(self.norm(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + self.outward(mixed.transpose(1, 2).reshape(batch, tokens, width))


class Mamba(nn.Module):
    """A gated state-space block in its matrix form: per head, a decaying sum over the tokens so far."""

    def __init__(self, width: int, heads: int = 4, state: int = 8) -> None:
        super().__init__()
        self.heads, self.state = heads, state
        self.norm = nn.LayerNorm(width)
        self.inward = nn.Linear(width, 2 * width, bias=False)
        self.steer = nn.Linear(width, heads + 2 * state, bias=False)
        self.mix = nn.Conv1d(width, width, 4, padding=3, groups=width)
        self.outward = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return x plus the gated output of the state."""
        batch, tokens, width = x.shape
        clean = self.norm(x)
        signal, gate = self.inward(clean).chunk(2, dim=-1)
        signal = nn.functional.silu(self.mix(signal.transpose(1, 2))[..., :tokens].transpose(1, 2))
        decay, write, read = self.steer(clean).split([self.heads, self.state, self.state], dim=-1)
        passed = nn.functional.logsigmoid(decay).cumsum(dim=1).transpose(1, 2)
        between = passed.unsqueeze(-1) - passed.unsqueeze(-2)
        later = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
        weight = between.masked_fill(later, -math.inf).exp() * (read @ write.transpose(1, 2)).unsqueeze(1)
        values = signal.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)
        state = (weight @ values).transpose(1, 2).reshape(batch, tokens, width)
        return x + self.outward(state * nn.functional.silu(gate))


class MLP(nn.Module):
    """Two linear layers with a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return x plus what the layers make of it."""
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Head(nn.Module):
    """From numbers per token to a score for every known token."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores."""
        return self.out(self.norm(x))


def token_loss(scores: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross entropy over all tokens."""
    return nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())


def hybrid(kinds: list[str], sizes: Sizes) -> Workload:
    """Build a language model with one layer for each kind.

    A kind's name tells its block (attention, mamba, mlp, embedding, head); kinds that tell nothing take
    attention, Mamba and MLP in turn. The first layer embeds tokens and the last one scores them, whatever else they do.
    """
    families = dict(zip(dict.fromkeys(kinds), _families(list(dict.fromkeys(kinds))), strict=True))
    blocks: dict[str, Callable[[], nn.Module]] = {
        "attention": lambda: Attention(sizes.width),
        "mamba": lambda: Mamba(sizes.width),
        "mlp": lambda: MLP(sizes.width),
        "embedding": nn.Identity,
        "head": nn.Identity,
    }
    layers: list[nn.Module] = []
    for index, kind in enumerate(kinds):
        parts = [blocks[families[kind]]()]
        if index == 0:
            parts.insert(0, nn.Embedding(sizes.vocabulary, sizes.width))
        if index == len(kinds) - 1:
            parts.append(Head(sizes.width, sizes.vocabulary))
        parts = [part for part in parts if not isinstance(part, nn.Identity)] or [MLP(sizes.width)]
        layers.append(parts[0] if len(parts) == 1 else nn.Sequential(*parts))
    sample = torch.randint(sizes.vocabulary, (sizes.samples, sizes.tokens))
    return Workload(layers, sample, sample.roll(-1, dims=1), token_loss)


def small_hybrid() -> Workload:
    """Return a hybrid of 10 layers that takes a while even on a fast CPU: the example of docs/running.md."""
    kinds = ["embedding", *["mamba", "mlp", "attention", "mlp"] * 2, "head"]
    return hybrid(kinds, Sizes(samples=4, tokens=128, width=256, vocabulary=4096))


def _families(kinds: list[str]) -> list[str]:
    made, unknown = [], 0
    for kind in kinds:
        family = next((family for part, family in _FAMILIES if part in kind.lower()), "")
        made.append(family or _BLOCKS[unknown % len(_BLOCKS)])
        unknown += not family
    return made


class _SleepOnTheWay(torch.autograd.Function):
    """Sleep forward and, where a gradient passes, backward; times in seconds."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: float, backward: float) -> Tensor:
        ctx.backward_seconds = backward
        _sleep(forward)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        _sleep(ctx.backward_seconds)
        return grad, None, None


class SleepingLayer(nn.Module):
    """A layer that does next to nothing, but takes a given time for F, I and W each; in seconds.

    No layer sleeps while the class is `awake`.
    """

    awake = False

    def __init__(self, width: int, forward: float, backward_input: float, backward_weight: float) -> None:
        super().__init__()
        self.seconds = (forward, backward_input, backward_weight)
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the input times the weight; the gradients of the two sleep apart from each other."""
        forward, backward_input, backward_weight = self.seconds
        if not x.requires_grad:  # there is no gradient to pass on: the fused backward is all there is
            backward_weight += backward_input
        weight = _SleepOnTheWay.apply(self.weight, 0.0, backward_weight)
        return torch.tanh(_SleepOnTheWay.apply(x, forward, backward_input) * weight)


def _sleep(seconds: float) -> None:
    if seconds > 0 and not SleepingLayer.awake:
        time.sleep(seconds)


def sleeping(plan: Plan, *, scale: float = 1.0, width: int = 8) -> Workload:
    """Return layers that take as long as the plan's costs say, times `scale`."""
    model = plan.instance.model.flattened(plan.instance.profile)
    layers: list[nn.Module] = []
    for kind in model.layer_kinds():
        costs = model.kinds[kind]
        times = costs.forward_ms or 0.0, costs.backward_input_ms, costs.backward_weight_ms
        layers.append(SleepingLayer(width, *(scale * ms / 1000 for ms in times)))
    return Workload(layers, torch.randn(2, width), torch.randn(2, width), nn.functional.mse_loss)
