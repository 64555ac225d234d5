"""OctoPipe's schedule and tuner: `rule` (dispatch on a given layout), `beam` (layouts to try), `tuner`."""

from octocp.heuristics.octopipe.rule import OCTOPIPE_DISPATCH, OCTOPIPE_RULE, octopipe_dispatch
from octocp.heuristics.octopipe.tuner import OCTOPIPE, RELEASED, Effort, Tuner

__all__ = ["OCTOPIPE", "OCTOPIPE_DISPATCH", "OCTOPIPE_RULE", "RELEASED", "Effort", "Tuner", "octopipe_dispatch"]
