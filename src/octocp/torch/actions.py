"""A plan as what each rank runs under torch: the actions of PyTorch's own CSV, as `octocp export` writes it.

The papers' B, the gradient with respect to the input, is torch's `I`; torch's `B` is the whole backward.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Literal, NamedTuple

from octocp.checker import check_plan
from octocp.costs import build_problem
from octocp.errors import InputError
from octocp.report.export import torch_csv
from octocp.runtimes.torch_csv import parse
from octocp.runtimes.torch_rules import violations
from octocp.schema import Plan

CsvFormat = Literal["compute_only", "compute_comms"]


class Action(NamedTuple):
    """One compute action of a rank: `F`, `I`, `W` or the fused `B` of a stage and a microbatch."""

    stage: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


Actions = list[list[Action]]
"""Per rank, in the order of execution."""


def ranks(plan: Plan) -> int:
    """Return how many processes a plan needs: one per device."""
    return len(plan.instance.cluster.device_list())


def microbatches(plan: Plan) -> int:
    """Return how many microbatches a plan runs."""
    return len(plan.instance.lengths())


def order_file(plan: Plan, form: CsvFormat = "compute_only") -> str:
    """Return the plan's order as torch loads it.

    Raises
    ------
    InputError
        The plan is not valid, or breaks a rule of torch.
    """
    wrong = check_plan(plan)
    if wrong:
        raise InputError(f"is not a valid plan: {wrong[0]}", right="octocp check shows all that is wrong")
    export = torch_csv.export if form == "compute_only" else torch_csv.export_with_transfers
    text = export(plan).decode()
    wrong = violations(parse(text))
    if wrong:
        raise InputError(f"torch cannot run this plan: {wrong[0]}")
    return text


def compute_actions(plan: Plan) -> Actions:
    """Return what each rank computes, in the plan's order."""
    table = parse(order_file(plan))
    return [[Action(cell.stage, cell.kind, cell.microbatch or 0) for cell in row] for row in table.rows]


def delays(plan: Plan) -> Callable[[int], int]:
    """Return a function: the ticks that a transfer between a stage and the one before it takes."""
    problem = build_problem(plan.instance)
    bounds = [0, *accumulate(plan.partition)]

    def delay(stage: int) -> int:
        return problem.delay(bounds[stage], plan.placement[stage], plan.placement[stage - 1]) if stage else 0

    return delay


__all__ = ["Action", "Actions", "CsvFormat", "compute_actions", "delays", "microbatches", "order_file", "ranks"]
