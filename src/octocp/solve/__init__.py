"""The strategy behind `octocp solve`: phases that feed one incumbent and one bound."""

from octocp.solve.progress import Event, Progress
from octocp.solve.strategy import Answer, solve_problem

__all__ = ["Answer", "Event", "Progress", "solve_problem"]
