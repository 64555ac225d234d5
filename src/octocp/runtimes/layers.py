"""What the layers of a model are to a runtime: embedding, blocks, multi-token prediction, head."""

from __future__ import annotations

import re
from dataclasses import dataclass

from octocp.schema import ModelSpec

# Layers that are half a block: runtimes whose unit is a block of attention and MLP cannot tell them apart.
HALVES = {"mamba", "attention", "mlp", "moe"}
# What else they are called, alone or with words that do not make another thing of them.
_HALVES_BY_WORD = {
    **{name: name for name in HALVES},
    **dict.fromkeys(("attn", "mha", "gqa", "mla", "selfattention"), "attention"),
    **dict.fromkeys(("ffn", "feedforward"), "mlp"),
    **dict.fromkeys(("mamba2", "ssm"), "mamba"),
    "experts": "moe",
}
_HEAD = re.compile("head|loss|output")
_BESIDE_HALVES = {
    "block",
    "layer",
    "self",
    "multi",
    "head",
    "multihead",
    "causal",
    "local",
    "global",
    "grouped",
    "query",
}


@dataclass(frozen=True)
class Layers:
    """The layers of a model by role.

    Attributes
    ----------
    names : tuple of str
        What each layer's kind is called, in small letters.
    embedding, head : bool
        Whether the first layer is the embedding and the last one the head with the loss. Where one is not, the
        model leaves it out (it costs nothing), and a runtime adds it to the first or the last stage.
    mtp : int
        Layers for multi-token prediction, right before the head.
    """

    names: tuple[str, ...]
    embedding: bool
    head: bool
    mtp: int

    @property
    def blocks(self) -> int:
        """The number of layers that are none of the others."""
        return len(self.names) - self.embedding - self.head - self.mtp

    @property
    def hybrid(self) -> bool:
        """Whether the blocks are of several kinds, each half of what other models call a block."""
        found = set(self.names[self.embedding : len(self.names) - self.head - self.mtp])
        return found <= HALVES and bool(found & {"mamba", "mlp"})

    def role(self, layer: int) -> str:
        """Return what a layer is: embedding, decoder, mtp or loss."""
        if layer == 0 and self.embedding:
            return "embedding"
        behind = len(self.names) - layer
        if behind == 1 and self.head:
            return "loss"
        return "mtp" if behind <= self.mtp + self.head else "decoder"


def layers_of(model: ModelSpec) -> Layers:
    """Tell the layers of a model by role, from the keys (E, m, L) and the names of their kinds.

    A name that says that a layer is half of a block counts for more than its key.
    """
    keys = model.layer_kinds()
    names = [_half((model.kinds[key].name or key).lower()) for key in keys]
    first, last = (name not in HALVES for name in (names[0], names[-1]))
    embedding = keys.count(keys[0]) == 1 and len(keys) > 1 and first and (keys[0] == "E" or "embed" in names[0])
    head = keys.count(keys[-1]) == 1 and last and (keys[-1] == "L" or bool(_HEAD.search(names[-1])))
    mtp = 0
    for layer in range(len(keys) - 1 - head, int(embedding) - 1, -1):
        if keys[layer] != "m" and "mtp" not in names[layer]:
            break
        mtp += 1
    return Layers(tuple(names), embedding, head, mtp)


def _half(name: str) -> str:
    """Return what half of a block a name means, or the name."""
    words = re.findall("[a-z0-9]+", name)
    found = {_HALVES_BY_WORD[word] for word in words if word in _HALVES_BY_WORD}
    known = all(word in _HALVES_BY_WORD or word in _BESIDE_HALVES for word in words)
    return found.pop() if known and len(found) == 1 else name


def layers_by_count(symbols: str, layers: int) -> Layers | None:
    """Guess the roles of `layers` layers of which nothing else is known from the letters of a Megatron layout."""
    blocks, mtp = symbols.count("t"), symbols.count("m")
    for embedding, head in ((True, True), (False, True), (True, False), (False, False)):
        if blocks + mtp + embedding + head == layers:
            names = ("embedding",) * embedding + ("block",) * blocks + ("mtp",) * mtp + ("head",) * head
            return Layers(names, embedding, head, mtp)
    return None
