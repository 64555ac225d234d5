"""Data sets of proven optimal schedules: drawn from a spec, solved anywhere, checked twice.

`load_rows` loads one, `judge` holds a heuristic of one's own against it; `octocp dataset` builds them.
"""

from octocp.dataset.reading import load_rows
from octocp.dataset.rows import Row, distance
from octocp.dataset.tools import Judged, judge

__all__ = ["Judged", "Row", "distance", "judge", "load_rows"]
