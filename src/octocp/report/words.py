"""The arguments behind lower bounds, in words for people who do not read the proofs."""

from __future__ import annotations

# By name, as in `octocp bound` and in a plan's solve.bound_name.
BOUND_WORDS = {
    "work": "all work together, spread evenly over the devices",
    "averaged heads": "all work spread evenly, plus the time that devices wait for their first op",
    "head, load, tail": "all work of one device, and what must run before and after it",
    "indivisible layer": "layers that cannot be cut run every microbatch on one device, one after the other",
    "shared device": "layers that must share a device run every microbatch there, one after the other",
    "one microbatch": "a single microbatch passes all layers forward and all layers backward",
    "in flight": "memory lets a stage take the next microbatch only when an earlier one has come back",
    "energy": "little work can be done early and late, while first microbatches arrive and last ones leave",
    "balanced load": "the most even way to share whole layers out over the devices, with what each waits for and holds",
    "joint model": "CP-SAT has ruled out anything lower, over all partitions, placements and orders together",
}

# Bounds whose detail adds which layer, device or group it is.
_TELLING = {"head, load, tail", "indivisible layer", "shared device"}


def bound_words(name: str, detail: str = "", *, applies: bool = True) -> str:
    """Word a bound: the argument, and where it comes from; or what it would need."""
    if not applies:
        return f"does not apply: {detail}" if detail else "does not apply"
    words = BOUND_WORDS.get(name, detail)
    return f"{words} ({detail})" if detail and name in _TELLING else words
