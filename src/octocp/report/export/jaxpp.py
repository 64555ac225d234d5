"""A schedule class for JaxPP (`jaxpp.schedules.BaseSchedule`): every rank's tasks and the rank of every stage.

The partition is not in it: JaxPP cuts a model where it calls ``pipeline_enter_stage``.
"""

from __future__ import annotations

from octocp.report.export.timeline import Timeline, first_stage_apart, timeline
from octocp.report.units import counted, printable, stage_layers
from octocp.schema import Plan

TYPES = {"F": "FWD", "B": "BWD_I", "W": "BWD_W"}


def export(plan: Plan) -> bytes:
    """Return the class as a Python file.

    JaxPP runs stage 0's whole backward in one task, so its two halves are written one after the other where W is;
    nobody but W waits for that B.
    """
    line = timeline(plan)
    rows = [_row(line, device) for device in range(len(line.orders))]
    cuts = "; ".join(f"stage {stage}: layers {first}-{last}" for stage, (first, last) in enumerate(stage_layers(plan)))
    title = printable(f"{plan.instance.name} ({plan.method})").replace("\\", "/").replace('"', "'")
    # Three tasks a stage less one: JaxPP has one backward task in stage 0.
    count = "(num_tasks + 1) // 3" if line.split else "num_tasks // 2"
    lines = [
        f'"""{title}, planned by OctoCP.',
        "",
        "Call pipeline_enter_stage where these stages begin:",
        *_wrapped(cuts),
        '"""',
        "",
        "from dataclasses import dataclass",
        "",
        "from jaxpp.schedules import BaseSchedule, Task",
        "from jaxpp.types import MpmdIdx, TaskType",
        "",
        f"MICROBATCHES = {line.microbatches}",
        f"RANK_OF_STAGE = {tuple(plan.placement)!r}",
        "# By rank: (stage, microbatch, type of task).",
        "TASKS = (",
        *(f"    ({''.join(row)})," for row in rows),
        ")",
        "",
        "",
        "@dataclass(eq=True, frozen=True)",
        "class OctoCPSchedule(BaseSchedule):",
        f'    """{counted(line.stages, "stage")}, {counted(line.microbatches, "microbatch", "microbatches")}."""',
        "",
        f"    num_stages: int = {line.stages}",
        "",
        "    def __post_init__(self):",
        "        super().__post_init__()",
        f"        if self.num_stages != {line.stages}:",
        f'            raise ValueError(f"this schedule has {line.stages} stages, not {{self.num_stages}}")',
        f'        object.__setattr__(self, "is_partial_bwd", {line.split})',
        "",
        "    @property",
        "    def mpmd_dim(self):",
        f"        return {len(line.orders)}",
        "",
        "    def get_mpmd_idx(self, stage_id):",
        "        return MpmdIdx(RANK_OF_STAGE[stage_id])",
        "",
        "    @staticmethod",
        "    def get_num_stages(num_tasks):",
        f"        return {count}",
        "",
        "    def tasks(self, n_mubatches):",
        "        if n_mubatches != MICROBATCHES:",
        '            raise ValueError(f"this schedule has {MICROBATCHES} microbatches, not {n_mubatches}")',
        "        return [[Task.make(stage, m, TaskType[kind]) for stage, m, kind in row] for row in TASKS]",
    ]
    return ("\n".join(lines) + "\n").encode()


def _row(line: Timeline, device: int) -> list[str]:
    made = []
    for op in line.orders[device]:
        at = f"({op.stage}, {op.microbatch}, "
        if not line.split and op.kind == "B":
            made.append(f'{at}"BWD"), ')
        elif op.stage == 0 and op.kind == "B":
            continue
        elif op.stage == 0 and op.kind == "W":
            made += [f'{at}"BWD_I"), ', f'{at}"BWD_W"), ']
        else:
            made.append(f'{at}"{TYPES[op.kind]}"), ')
    return made


def _wrapped(text: str) -> list[str]:
    from textwrap import wrap

    return wrap(text, 110)


def notes(plan: Plan) -> list[str]:
    """Return what differs in JaxPP from the plan."""
    said = ["the partition is not in a schedule class: its docstring says where to call pipeline_enter_stage"]
    apart = first_stage_apart(timeline(plan))
    if apart:
        said.append(
            f"stage 0 runs {counted(len(apart), 'whole backward')} where the plan has W, because JaxPP has one task "
            "there: the step may take longer"
        )
    return said
