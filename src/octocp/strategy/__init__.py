"""The strategy behind `octocp solve`: phases that feed one incumbent and one bound."""

from octocp.strategy.solve import Answer, solve_problem

__all__ = ["Answer", "solve_problem"]
