"""One row per op, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io

from octocp.report.units import milliseconds
from octocp.schema import Plan

COLUMNS = ("device", "stage", "microbatch", "kind", "start", "end", "start_ms", "end_ms")


def export(plan: Plan) -> bytes:
    """Return the ops as CSV, by device and start; `start` and `end` in ticks, and again in milliseconds."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for op in sorted(plan.ops, key=lambda op: (op.device, op.start, op.end)):
        times = milliseconds(plan, op.start), milliseconds(plan, op.end)
        writer.writerow([op.device, op.stage, op.microbatch, op.kind, op.start, op.end, *times])
    return out.getvalue().encode()
