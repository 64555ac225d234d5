"""Schedules that others made, read for an instance: partition, placement and order, timed like any other.

One module a format, each from text to `Parsed`; `read_schedule` tells the format and times what it reads.
"""

from octocp.importers.as_plan import read_as_plan
from octocp.importers.parsed import Parsed
from octocp.importers.read import Imported, read_schedule, read_text_as

__all__ = ["Imported", "Parsed", "read_as_plan", "read_schedule", "read_text_as"]
