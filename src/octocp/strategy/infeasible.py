"""What to say where no plan exists: which constraint cannot be met, and by how much."""

from __future__ import annotations

from octocp.cpsat.packing import Packing, pack
from octocp.errors import InfeasibleError
from octocp.heuristics import SERIAL
from octocp.heuristics.base import describe_excess
from octocp.problem import Problem

PACKING_SECONDS = 20.0


def refuse(problem: Problem, packing: Packing) -> None:
    """Raise `InfeasibleError` where a packing proves that no plan exists."""
    if packing.status == "no layout":
        raise InfeasibleError(_contradiction(problem))
    if packing.status == "impossible":
        told = describe_excess(problem, packing.device, packing.need)
        raise InfeasibleError(f"memory cannot fit: in the best layout found, {told}")


def no_order(problem: Problem) -> str:
    """Say what is short where CP-SAT proves that no plan exists and sizes alone do not."""
    told = "no plan exists: CP-SAT proved that the constraints cannot all be met"
    layout = pack(problem, seconds=PACKING_SECONDS).layout
    if layout is None or not problem.has_memory_limit:
        return told
    excess = SERIAL.run(problem, layout).memory_excess()
    if excess is None:
        return told
    return f"{told}; even one microbatch at a time, {describe_excess(problem, *excess[:2])}"


def _contradiction(problem: Problem) -> str:
    if problem.colocate:
        groups = ", ".join(str(list(group)) for group in problem.colocate)
        return (
            f"colocate cannot be met: no partition into {problem.min_stages} to {problem.max_stages} stages on "
            f"{problem.n_devices} devices, at most {problem.max_per_device} each, puts the layers {groups} together"
        )
    return f"no partition and placement meets the stage rules with {problem.max_stages} stages at most"
