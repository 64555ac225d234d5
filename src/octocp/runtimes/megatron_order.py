"""Megatron's order: (interleaved) 1F1B in groups of microbatches, with a fused backward.

Narayanan et al., SC 2021, section 2.2; ``microbatch_group_size_per_vp_stage`` of Megatron-Core. Read from its
description and kept apart from `octocp.heuristics.interleaved`, so that the one can be tested with the other.
"""

from __future__ import annotations

from octocp.errors import InputError
from octocp.runtimes.megatron import GROUP

Step = tuple[str, int, int]
"""Kind (F, or B for the whole backward), stage, microbatch."""


def check_group(ranks: int, chunks: int, microbatches: int, group: int | None) -> None:
    """Check Megatron's condition on the group: P <= g <= M, and a remainder of M is 0 or at least P.

    Parameters
    ----------
    group : int or None
        None is Megatron's default, P.

    Raises
    ------
    InputError
        It does not hold.
    """
    if chunks == 1:
        return
    if microbatches < ranks:
        raise InputError(
            f"Megatron interleaves only with as many microbatches as ranks or more, not {microbatches} on {ranks}",
            right=f"at least {ranks} microbatches, or one stage on every rank",
        )
    place = f"--{GROUP}"
    size = f"is {group}" if group is not None else f"is {ranks} by default"
    group = group or ranks
    if not ranks <= group <= microbatches:
        raise InputError(
            f"{size}, with {ranks} ranks and {microbatches} microbatches",
            place=place,
            right=f"{ranks} to {microbatches}",
        )
    rest = microbatches % group
    if 0 < rest < ranks:
        fitting = next(size for size in group_sizes(ranks, chunks, microbatches) if size > group)
        raise InputError(
            f"{size}, which leaves {rest} of {microbatches} microbatches over",
            place=place,
            right=f"none or at least {ranks} left over, e.g. {fitting}",
        )


def orders(ranks: int, chunks: int, microbatches: int, group: int) -> list[list[Step]]:
    """Return what every rank runs.

    Rank r warms up with P - r - 1 forwards where it has one chunk, else with min(MV, 2(P - r - 1) + (V - 1)g), and
    then alternates one forward with one backward; both go through the chunks group by group.
    """
    forward: list[tuple[int, int]] = []
    backward: list[tuple[int, int]] = []
    for first in range(0, microbatches, group):
        members = range(first, min(first + group, microbatches))
        forward += [(chunk, microbatch) for chunk in range(chunks) for microbatch in members]
        backward += [(chunk, microbatch) for chunk in reversed(range(chunks)) for microbatch in members]
    made: list[list[Step]] = []
    for rank in range(ranks):
        ahead = ranks - rank - 1 if chunks == 1 else 2 * (ranks - rank - 1) + (chunks - 1) * group
        warm_up = min(len(forward), ahead)
        steps: list[Step] = [("F", chunk * ranks + rank, microbatch) for chunk, microbatch in forward[:warm_up]]
        for position, (chunk, microbatch) in enumerate(backward):
            if position + warm_up < len(forward):
                following, its_microbatch = forward[position + warm_up]
                steps.append(("F", following * ranks + rank, its_microbatch))
            steps.append(("B", chunk * ranks + rank, microbatch))
        made.append(steps)
    return made


def group_sizes(ranks: int, chunks: int, microbatches: int) -> list[int]:
    """Return the group sizes that Megatron takes, the smallest first; with one chunk they are all the same."""
    if chunks == 1:
        return [ranks]
    return [g for g in range(ranks, microbatches + 1) if microbatches % g == 0 or microbatches % g >= ranks]
