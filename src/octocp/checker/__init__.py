"""The independent checker: knows the file formats and nothing of how plans are made."""

from octocp.checker.checker import check_plan
from octocp.checker.memory import memory_timeline

__all__ = ["check_plan", "memory_timeline"]
