"""Known schedules, OctoPipe's tuner, schedules of one's own and the solver, side by side."""

from octocp.comparison.choice import SOLVER, Choice, row_names
from octocp.comparison.instance import PARTITION_SECONDS, PartitionEffort, compare_instance
from octocp.comparison.methods import KNOWN
from octocp.comparison.own import Added, file_and_partition, read_added
from octocp.comparison.rows import Comparison, Excess, Row, plan_of
from octocp.comparison.standings import WITHIN, Standing, standings

__all__ = [
    "KNOWN",
    "PARTITION_SECONDS",
    "SOLVER",
    "WITHIN",
    "Added",
    "Choice",
    "Comparison",
    "Excess",
    "PartitionEffort",
    "Row",
    "Standing",
    "compare_instance",
    "file_and_partition",
    "plan_of",
    "read_added",
    "row_names",
    "standings",
]
