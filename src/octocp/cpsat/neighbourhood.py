"""Parts of the joint model held at a known plan: exact pieces, and large neighbourhoods around it."""

from __future__ import annotations

from collections.abc import Collection

from octocp.cpsat.build import Build
from octocp.cpsat.joint import build_joint
from octocp.problem import Problem
from octocp.schedule import Schedule


def around(
    problem: Problem,
    incumbent: Schedule,
    *,
    lower: int,
    loose_cuts: Collection[int] = (),
    loose_stages: Collection[int] = (),
    reach: int = 0,
    without: Collection[str] = (),
) -> Build:
    """Build the joint model with the stage count and most of the layout of a known plan.

    Parameters
    ----------
    loose_cuts : collection of int
        Cuts (numbered by the stage that they begin) that may move.
    loose_stages : collection of int
        Stages that may change device.
    reach : int
        How many layers a loose cut may move.

    Returns
    -------
    Build
        With the plan as hint; its bounds hold for the neighbourhood only.
    """
    stages = incumbent.layout.stages
    build = build_joint(
        problem,
        incumbent=incumbent,
        stages=(stages, stages),
        lower=lower,
        # Numbering devices by first use would forbid keeping the plan's own numbers.
        without={*without, "device-symmetry"},
    )
    for stage, cut in enumerate(incumbent.layout.bounds[:-1]):
        position = build.cut[stage]
        if isinstance(position, int):
            continue
        if stage not in loose_cuts:
            build.model.add(position == cut)
        else:
            build.model.add_linear_constraint(position, cut - reach, cut + reach)
    for stage, device in enumerate(incumbent.layout.placement):
        if stage not in loose_stages and not isinstance(build.on[stage][device], int):
            build.model.add(build.on[stage][device] == 1)
    return build
