"""Megatron's order: (interleaved) 1F1B in groups of microbatches, with a fused backward.

Narayanan et al., SC 2021, section 2.2; ``microbatch_group_size_per_vp_stage`` of Megatron-Core. Read from its
description and kept apart from `octocp.heuristics.interleaved`, so that the one can be tested with the other.
"""

from __future__ import annotations

from octocp.errors import InputError

Step = tuple[str, int, int]
"""Kind (F, or B for the whole backward), stage, microbatch."""


def check_group(ranks: int, chunks: int, microbatches: int, group: int) -> None:
    """Check Megatron's condition on the group: P <= g <= M, and a remainder of M is 0 or at least P.

    Raises
    ------
    InputError
        It does not hold.
    """
    if chunks == 1:
        return
    place = "--microbatch-group-size-per-virtual-pipeline-stage"
    if not ranks <= group <= microbatches:
        raise InputError(
            f"is {group}, with {ranks} ranks and {microbatches} microbatches",
            place=place,
            right=f"{ranks} to {microbatches}" if ranks <= microbatches else f"at least {ranks} microbatches",
        )
    rest = microbatches % group
    if 0 < rest < ranks:
        raise InputError(
            f"is {group}, which leaves {rest} of {microbatches} microbatches over",
            place=place,
            right=f"none or at least {ranks} left over",
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
    """Return the group sizes that Megatron takes, P (its default) first; with one chunk they are all the same."""
    if chunks == 1:
        return [ranks]
    return [g for g in range(ranks, microbatches + 1) if microbatches % g == 0 or microbatches % g >= ranks]
