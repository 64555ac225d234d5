"""One tiny instance per constraint family, solved by hand in its comment.

Costs are (F, B) with fused backward unless W matters. "One stage each" is max_per_device 1.
"""

from __future__ import annotations

import pytest

from octocp.cpsat.families import FAMILIES
from octocp.cpsat.joint import build_joint
from octocp.cpsat.run import Outcome, run
from octocp.problem import Problem
from octocp.schedule import Schedule
from tiny import problem

REDUNDANT = [family.name for family in FAMILIES if family.role == "redundant"]
SYMMETRY = [family.name for family in FAMILIES if family.role == "symmetry"]


def solve(given: Problem, without: tuple[str, ...] = ()) -> Outcome:
    return run(build_joint(given, without=without), seconds=60, workers=1, seed=0)


def fused(layers, kinds=None, **more) -> Problem:
    return problem(layers, kinds, split_backward=False, **more)


def optimum(given: Problem) -> Schedule:
    """Return the schedule that the whole model proves optimal, with and without what changes no optimum."""
    outcome = solve(given)
    assert outcome.status == "optimal"
    assert outcome.schedule is not None
    assert outcome.schedule.value == outcome.bound
    assert outcome.schedule.layout.violation(given) is None
    assert solve(given, (*REDUNDANT, *SYMMETRY)).bound == outcome.bound
    return outcome.schedule


def relaxed(given: Problem, *families: str) -> int:
    """Return the optimum without some families; bounds that know the problem are left out too."""
    outcome = solve(given, (*families, *REDUNDANT))
    assert outcome.status == "optimal"
    return outcome.bound


# ---- partition -----------------------------------------------------------------------------------


def test_cuts():
    """One stage each. Cut [2 | 1]: both stages F 2, B 2, so (M + P - 1)(F + B) = 12.

    Cut [1 | 2]: stage 1 has F 3, B 3: 1 + 2 x 6 + 1 = 14.
    """
    schedule = optimum(fused([(1, 1), (1, 1), (2, 2)], max_per_device=1))
    assert (schedule.value, schedule.layout.partition) == (12, (2, 1))


def test_cuts_of_equal_layers():
    """One stage each; here the cut alone carries all sums. [2 | 1]: the load of stage 0 is 8, reached:

    F 0-2, 2-4; stage 1: F 2-3, B 3-4, F 4-5, B 5-6; B 4-6, 6-8. [1 | 2]: 1 + 8 + 1 = 10.
    """
    schedule = optimum(fused("aaa", {"a": (1, 1)}, max_per_device=1))
    assert (schedule.value, schedule.layout.partition) == (8, (2, 1))


def test_a_fixed_partition():
    """The worse cut of `test_cuts`, asked for."""
    schedule = optimum(fused([(1, 1), (1, 1), (2, 2)], partition=[1, 2]))
    assert (schedule.value, schedule.layout.partition) == (14, (1, 2))


def test_keep_together():
    """One stage each. [2 | 1] would take 12 (the load of stage 0); layers 1 and 2 force [1 | 2]: 1 + 12 + 1 = 14."""
    layers = [(1, 1), (2, 2), (1, 1)]
    assert optimum(fused(layers, max_per_device=1)).value == 12
    kept = optimum(fused(layers, max_per_device=1, keep_together=[[1, 2]]))
    assert (kept.value, kept.layout.partition) == (14, (1, 2))


def test_durations_round_up_with_their_overhead():
    """One device, overhead 1.5: one stage takes 2 x ceil(2 + 1.5) = 8, two stages 4 x ceil(1 + 1.5) = 12."""
    schedule = optimum(fused([(1, 1), (1, 1)], devices=1, microbatches=1, op_overhead_us=1500))
    assert (schedule.value, schedule.layout.stages) == (8, 1)


def test_the_number_of_stages_is_decided():
    """Four layers. One stage each: (M + P - 1) x 4 = 12. Two each, cyclic or there and back: work 8, and idle

    time 2: device 0 waits for the first microbatch once. 8 + 1 = 9 would need device 1 to start at once.
    """
    layers = [(1, 1)] * 4
    assert optimum(fused(layers, max_per_device=1)).value == 12
    schedule = optimum(fused(layers, max_per_device=2))
    assert schedule.value == 10
    assert schedule.layout.stages > 2


def test_a_fixed_number_of_stages():
    """Three stages of three layers on one device: everything in a row, 3 x 2 x 2."""
    schedule = optimum(fused([(1, 1)] * 3, devices=1, count=3))
    assert (schedule.value, schedule.layout.stages) == (12, 3)


# ---- placement -----------------------------------------------------------------------------------


def test_presence_gives_every_device_a_stage():
    """Alone, one device would take 4; both must hold a stage, so a link of 100 is crossed and crossed back."""
    schedule = optimum(fused([(1, 1), (1, 1)], microbatches=1, link={"latency_us": 100_000}))
    assert schedule.value == 204


def test_max_per_device():
    """Stage 0 alone has a load of 24, and hides the others: 24. With two each, it takes one more: 28."""
    layers = [(6, 6), (1, 1), (1, 1), (1, 1)]
    apart = optimum(fused(layers, partition=[1] * 4, max_per_device=3))
    assert (apart.value, apart.layout.placement) == (24, (0, 1, 1, 1))
    assert optimum(fused(layers, partition=[1] * 4, max_per_device=2)).value == 28


def test_colocate():
    """Stages 1 and 2 together work 12, after 1 and before 1: 14. Apart, with 0 and 2 together: 1 + 8 + 1 = 10."""
    given = fused([(1, 1), (2, 2), (1, 1)], partition=[1] * 3, colocate=[[1, 2]])
    schedule = optimum(given)
    assert schedule.value == 14
    assert schedule.layout.device_of_layer(1) == schedule.layout.device_of_layer(2)
    assert relaxed(given, "colocate") == 10


def test_colocate_with_free_cuts():
    """First and last layer together, so three stages or more: the 10 of above, (0, 1, 0)."""
    schedule = optimum(fused([(1, 1), (2, 2), (1, 1)], colocate=[[0, 2]]))
    assert (schedule.value, schedule.layout.placement) == (10, (0, 1, 0))


NODES = {
    "devices": [{"node": 0}, {"node": 0}, {"node": 1}],
    "link": {"intra_node": {"latency_us": 1_000}, "inter_node": {"latency_us": 10_000}},
}


def test_transfers_by_node():
    """A chain of 6 through three devices. The lone node at an end: 2 x (1 + 10). In the middle: 2 x (10 + 10)."""
    given = fused([(1, 1)] * 3, microbatches=1, **NODES)
    schedule = optimum(given)
    assert schedule.value == 28
    assert schedule.layout.placement[1] != 2
    assert relaxed(given, "transfers") == 6


@pytest.mark.parametrize(("placement", "value"), [([0, 1, 2], 28), ([0, 2, 1], 46), ([2, 0, 1], 28)])
def test_transfers_of_a_fixed_placement(placement, value):
    assert optimum(fused([(1, 1)] * 3, microbatches=1, placement=placement, **NODES)).value == value


def test_transfers_by_boundary():
    """10 MB cross after the first layer, 1 MB after the second, at 1 GB/s: 6 + 2 x 1."""
    kinds = {"a": {"ms": (1, 1), "output_mb": 10}, "b": {"ms": (1, 1), "output_mb": 1}, "c": (1, 1)}
    given = fused("abc", kinds, microbatches=1, link={"bandwidth_gb_s": 1})
    schedule = optimum(given)
    assert (schedule.value, schedule.layout.partition) == (8, (2, 1))
    assert relaxed(given, "transfers") == 6


@pytest.mark.parametrize(
    ("placement", "costs", "value"),
    [
        # Two stages of F 2, B 2: (M + P - 1) x 4.
        ("linear", (1, 1), 12),
        # Cyclic: work 2 x 2 x 3 = 12 a device, idle (P - 1)(F + B) once, 3.
        ("interleaved", (1, 2), 15),
        # There and back: device 1 runs F1 F2 B2 B1 of a microbatch without pause, and the last B of device 0
        # follows: 1 + 12 + 2 and one tick that two microbatches cannot share.
        ("wave", (1, 2), 16),
        ([0, 1, 0, 1], (1, 2), 15),
        ([1, 0, 0, 1], (1, 2), 16),
        # Stages 0 to 2 together: their work of 2 x 9.
        ([0, 0, 0, 1], (1, 2), 18),
    ],
)
def test_placement_families(placement, costs, value):
    count = None if placement == "linear" else 4
    schedule = optimum(fused([costs] * 4, placement=placement, count=count))
    assert schedule.value == value
    if isinstance(placement, list):
        assert list(schedule.layout.placement) == placement


def test_a_family_decides_the_number_of_stages_too():
    """As `test_the_number_of_stages_is_decided`; placement follows from it."""
    for family in ("interleaved", "wave"):
        schedule = optimum(fused([(1, 1)] * 4, placement=family))
        assert schedule.value == 10
        assert schedule.layout.stages in (3, 4)


# ---- ordering ------------------------------------------------------------------------------------


def test_precedence():
    """One microbatch is a chain of 4; without precedence, each device just runs its F and its B: 2."""
    given = fused([(1, 1), (1, 1)], microbatches=1)
    assert optimum(given).value == 4
    assert relaxed(given, "precedence") == 2


def test_w_follows_its_b():
    """One device, one microbatch: F 1, B 2, W 3. Without precedence they still exclude each other: 6 as well."""
    given = problem([(1, 2, 3)], devices=1, microbatches=1)
    schedule = optimum(given)
    assert schedule.value == 6
    assert [int(start) for start in schedule.start[:, 0, 0]] == [0, 1, 3]


def test_no_overlap():
    """One device: 3 x (1 + 2). Without no-overlap, FIFO chains leave 1 + 3 x 2, and no rule at all 1 + 2."""
    given = fused([(1, 2)], devices=1, microbatches=3)
    assert optimum(given).value == 9
    assert relaxed(given, "no-overlap") == 7
    assert relaxed(given, "no-overlap", *SYMMETRY) == 3


def test_an_op_of_length_zero_does_not_lie_inside_another():
    """Stage 2 takes no time, on device 0. Its first turn comes at 5, when device 0 may be in F of 4-8.

    If it could slip in there, B of stage 1 would run at 5, and all would end at 11: device 0 either delays that F
    to 5, or lets stage 2 wait to 8. Both end at 12.
    """
    given = fused([(4, 1), (1, 1), (0, 0)], placement=[0, 1, 0], partition=[1, 1, 1])
    assert optimum(given).value == 12
    assert relaxed(given, "no-overlap") < 12


# ---- memory --------------------------------------------------------------------------------------


def test_memory_of_activations():
    """Room for one microbatch: F of stage 0 waits for its B, so round trips of 4. Without limit, 1F1B takes 6."""
    given = fused("aa", {"a": {"ms": (1, 1), "activation_gb": 1}}, memory=1)
    schedule = optimum(given)
    assert schedule.value == 8
    assert schedule.peak_memory() == [1, 1]
    assert relaxed(given, "memory") == 6


@pytest.mark.parametrize(("weight", "value"), [(1, 10), (0, 9)])
def test_memory_of_weight_activations(weight, value):
    """One stage each, room for one activation of 2. A weight part of 1 keeps the next F waiting for W:

    F, F, B, B, W of stage 0 by 5, twice. With none, the second F starts at 4, and W fills the wait: 4 + 4 + 1.
    """
    kinds = {"a": {"ms": (1, 1, 1), "activation_gb": 2, "weight_activation_gb": weight}}
    given = problem("aa", kinds, max_per_device=1, memory=2)
    assert optimum(given).value == value
    assert relaxed(given, "memory") == 7


def test_memory_that_stages_hold_for_good():
    """Layer 0 fills a device, so the others share one: 1 + 2 x 8 + 1. Without limit: [2 | 1] in 14."""
    kinds = {"a": {"ms": (1, 1), "static_gb": 2}, "b": {"ms": (2, 2), "static_gb": 1}}
    given = fused("abb", kinds, memory=2)
    schedule = optimum(given)
    assert (schedule.value, schedule.layout.partition) == (18, (1, 2))
    assert relaxed(given, "memory") == 14


def test_memory_by_device():
    """Only device 1 has room for layer 0, so the second stage goes to device 0."""
    kinds = {"a": {"ms": (1, 1), "static_gb": 2}, "b": {"ms": (2, 2), "static_gb": 1}}
    schedule = optimum(fused("ab", kinds, devices=[{"memory_gb": 1}, {"memory_gb": 2}]))
    assert schedule.layout.placement == (1, 0)
    assert schedule.value == 1 + 2 * 4 + 1


def test_memory_that_nothing_fits():
    kinds = {"a": {"ms": (1, 1), "static_gb": 2}}
    assert solve(fused("aa", kinds, memory=1)).status == "infeasible"


def test_what_is_freed_is_taken_at_once():
    """Half-open: B of one microbatch ends at 2, and F of the next starts then: no pause on one device."""
    given = fused("a", {"a": {"ms": (1, 1), "activation_gb": 1}}, devices=1, memory=1)
    assert optimum(given).value == 4


# ---- objective -----------------------------------------------------------------------------------


def test_makespan_and_span():
    """F 0-1, 1-2, B 2-3, 3-4, and W of stage 1, 4 long, at 3-7: makespan 7, while no device is in use longer than 6."""
    layers = [(1, 1, 0), (1, 1, 4)]
    assert optimum(problem(layers, microbatches=1)).makespan == 7
    assert optimum(problem(layers, microbatches=1, objective="span")).span == 6


def test_span_of_the_busiest_device():
    """Each device works 12. Device 0, 3 x (3 + 1), can do so without pause, and so can device 1 if W waits for F: 12.

    The makespan has F of stage 0 before device 1's first op: 3 + 12.
    """
    layers = [(3, 1, 0), (1, 1, 2)]
    assert optimum(problem(layers, microbatches=3, objective="span")).span == 12
    assert optimum(problem(layers, microbatches=3)).makespan == 15


# ---- what can be left out --------------------------------------------------------------------------


def test_unknown_families_are_refused():
    with pytest.raises(ValueError, match="unknown families: nothing"):
        build_joint(fused([(1, 1)] * 2), without=["nothing"])


@pytest.mark.parametrize("name", [family.name for family in FAMILIES if family.role == "definition"])
def test_families_that_define_variables_stay(name):
    with pytest.raises(ValueError, match=f"cannot be left out, others are built on them: {name}"):
        build_joint(fused([(1, 1)] * 2), without=[name])


def test_names_are_unique():
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)


def test_every_core_family_is_relaxed_in_here():
    assert {family.name for family in FAMILIES if family.role == "core"} == {
        "colocate",
        "transfers",
        "precedence",
        "no-overlap",
        "memory",
    }


def test_a_restricted_number_of_stages():
    """With two stages only, the four layers take 12 again."""
    given = fused([(1, 1)] * 4, max_per_device=2)
    outcome = run(build_joint(given, stages=(2, 2)), seconds=60, workers=1, seed=0)
    assert (outcome.status, outcome.bound) == ("optimal", 12)
