"""What the layers of a model are to a runtime: embedding, blocks, multi-token prediction, head."""

from __future__ import annotations

from dataclasses import dataclass

from octocp.schema import ModelSpec

# Layers that are half a block: runtimes whose unit is a block of attention and MLP cannot tell them apart.
HALVES = {"mamba", "attention", "mlp", "moe"}


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
    """Tell the layers of a model by role, from the keys (E, m, L) and the names of their kinds."""
    keys = model.layer_kinds()
    names = [(model.kinds[key].name or key).lower() for key in keys]
    embedding = keys.count(keys[0]) == 1 and (keys[0] == "E" or "embed" in names[0]) and len(keys) > 1
    head = keys.count(keys[-1]) == 1 and (keys[-1] == "L" or any(w in names[-1] for w in ("head", "loss", "output")))
    mtp = 0
    for layer in range(len(keys) - 1 - head, int(embedding) - 1, -1):
        if keys[layer] != "m" and "mtp" not in names[layer]:
            break
        mtp += 1
    return Layers(tuple(names), embedding, head, mtp)


def layers_by_count(symbols: str, layers: int) -> Layers | None:
    """Guess the roles of `layers` layers of which nothing else is known from the letters of a Megatron layout."""
    blocks, mtp = symbols.count("t"), symbols.count("m")
    for embedding, head in ((True, True), (False, True), (True, False), (False, False)):
        if blocks + mtp + embedding + head == layers:
            names = ("embedding",) * embedding + ("block",) * blocks + ("mtp",) * mtp + ("head",) * head
            return Layers(names, embedding, head, mtp)
    return None
