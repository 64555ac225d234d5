"""The strategy behind `octocp solve`: phases that feed one incumbent and one bound."""

from octocp.strategy.solve import PHASES, Answer, solve_problem

__all__ = ["PHASES", "Answer", "solve_problem"]
