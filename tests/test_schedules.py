"""Known schedules against published figures, closed forms, rules written apart from them, and the checker."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from octocp.bounds import all_bounds
from octocp.checker import check_plan
from octocp.costs import build_problem
from octocp.decode import to_plan
from octocp.errors import InfeasibleError
from octocp.heuristics import ALL_HEURISTICS, HEURISTICS, Heuristic, NotApplicableError, attempts
from octocp.heuristics.dualpipe_v import DUALPIPE_V
from octocp.heuristics.eager_one_f_one_b import EAGER_ONE_F_ONE_B
from octocp.heuristics.gpipe import GPIPE
from octocp.heuristics.hanayo import HANAYO
from octocp.heuristics.interleaved import INTERLEAVED, INTERLEAVED_GROUPED, interleaved
from octocp.heuristics.looped_breadth_first import LOOPED_BREADTH_FIRST
from octocp.heuristics.one_f_one_b import ONE_F_ONE_B
from octocp.heuristics.partition import ALL_PARTITION_RULES, uniform
from octocp.heuristics.v_schedules import V_HALF, V_MIN, V_ZB
from octocp.heuristics.zb_auto import ZB_1P, ZB_2P, ZB_AUTO
from octocp.heuristics.zb_h1 import ZB_H1
from octocp.heuristics.zb_h2 import ZB_H2
from octocp.problem import Problem
from octocp.schedule import Layout, Op, Schedule
from octocp.schema import Instance
from random_instances import random_instance
from tiny import problem

UNITS = {"activation_gb": 1, "weight_activation_gb": 1}


def equal(devices: int, microbatches: int, times: tuple[float, ...], **more: Any) -> Problem:
    """One layer per device, all alike."""
    return problem([times] * devices, devices=devices, microbatches=microbatches, placement="linear", **more)


def chunks(family: str, devices: int, per_device: int, microbatches: int, times: Any, **more: Any) -> Problem:
    """One layer per stage, all alike, the same number of stages on every device."""
    stages = devices * per_device
    kind = {"ms": times, **UNITS}
    return problem(
        "a" * stages, {"a": kind}, devices=devices, microbatches=microbatches, placement=family, count=stages,
        max_per_device=None, **more,
    )  # fmt: skip


def run(heuristic: Heuristic, given: Problem) -> Schedule:
    stages = given.min_stages
    placement = given.placement_for(stages)
    assert placement is not None
    assert placement in heuristic.placements(given)
    return heuristic.run(given, Layout(uniform(given, stages), placement))


def load(schedule: Schedule) -> int:
    return int(schedule.layout.durations(schedule.problem)[:, schedule.layout.stages_on(0)].sum())


def text(order: Sequence[Op]) -> str:
    return " ".join(f"{'FBW'[op.kind]}{op.stage},{op.microbatch}" for op in order)


# ---- closed forms --------------------------------------------------------------------------------

SIZES = [(P, M) for P in (2, 3, 4, 8, 16) for M in sorted({P, P + 1, 2 * P - 1, 2 * P, 3 * P + 1, 64})]
TIMES = [(1, 1, 1), (5, 6, 4), (6, 5, 5), (3, 7, 2)]


@pytest.mark.parametrize(("P", "M"), SIZES)
@pytest.mark.parametrize("times", TIMES)
def test_closed_forms_of_idle_time(times: tuple[int, int, int], P: int, M: int) -> None:
    """ZB-H2's in span, and from 2P - 1 microbatches on: its warm-up has as many."""
    forward, backward, weight = times
    given = equal(P, M, times)
    for heuristic in (GPIPE, ONE_F_ONE_B, EAGER_ONE_F_ONE_B):
        schedule = run(heuristic, given)
        assert schedule.makespan - load(schedule) == (P - 1) * (forward + backward + weight)
    schedule = run(ZB_H1, given)
    assert schedule.makespan - load(schedule) == (P - 1) * (forward + backward - weight)
    if M >= 2 * P - 1:
        schedule = run(ZB_H2, given)
        assert schedule.span - load(schedule) == (P - 1) * (forward + backward - 2 * weight)


@pytest.mark.parametrize(("P", "V", "M"), [(2, 2, 3), (4, 2, 4), (4, 3, 9), (8, 2, 16), (3, 5, 4)])
def test_looped_bfs_divides_the_bubble_by_the_chunks(P: int, V: int, M: int) -> None:
    """Idle (P - 1)(F + B + W), of chunks that are a V-th; every microbatch is held."""
    schedule = run(LOOPED_BREADTH_FIRST, chunks("interleaved", P, V, M, (3, 4, 2)))
    assert schedule.makespan - load(schedule) == (P - 1) * 9
    assert schedule.peak_memory() == [V * M] * P


@pytest.mark.parametrize(("P", "M"), [(2, 2), (4, 12), (8, 16)])
def test_memory_of_the_long_warm_ups(P: int, M: int) -> None:
    given = chunks("linear", P, 1, M, (2, 3, 2))
    assert run(EAGER_ONE_F_ONE_B, given).peak_memory() == [min(M, 2 * (P - stage) - 1) for stage in range(P)]
    assert max(run(ZB_H2, given).peak_memory()) == min(M, 2 * P - 1)


def test_eager_1f1b_hides_link_delays() -> None:
    """A round trip of 2 x 2 ticks between neighbours stalls 1F1B at every microbatch, the longer warm-up covers it."""
    given = equal(4, 32, (3, 3, 3), link={"latency_us": 2000})
    eager, plain = run(EAGER_ONE_F_ONE_B, given), run(ONE_F_ONE_B, given)
    assert eager.makespan == 32 * 9 + 3 * (9 + 2 * 2)
    assert plain.makespan > eager.makespan + 32


# ---- zero-bubble's automatic scheduler -------------------------------------------------------------

# P, M, (F, B, W), link delay; spans of ZB-1p and ZB-2p, microseconds (Qi et al., ICLR 2024, profiles of its appendix).
PROFILES = [
    (8, 24, (18522, 18086, 9337), 601, 1310405, 1152599),
    (8, 32, (18513, 18086, 9331), 626, 1678164, 1475535),
    (8, 64, (18546, 18097, 9321), 762, 3154286, 2949221),
    (16, 48, (11347, 11248, 8132), 377, 1714461, 1484721),
    pytest.param(32, 96, (10419, 10207, 7715), 408, 3171569, 2731004, marks=pytest.mark.slow),
]


def profile(devices: int, microbatches: int, ticks: tuple[int, ...], delay: int, memory: int | None) -> Problem:
    kind = {"ms": tuple(count / 1000 for count in ticks), "activation_gb": 2, "weight_activation_gb": 1}
    return problem(
        "a" * devices, {"a": kind}, devices=devices, microbatches=microbatches, placement="linear", memory=memory,
        link={"latency_us": delay}, tick_us=1, objective="span",
    )  # fmt: skip


@pytest.mark.parametrize(("P", "M", "ticks", "delay", "zb_1p", "zb_2p"), PROFILES)
def test_zb_auto_equals_the_published_spans(
    P: int, M: int, ticks: tuple[int, ...], delay: int, zb_1p: int, zb_2p: int
) -> None:
    for cap, published, limited in ((2 * P, zb_1p, ZB_1P), (4 * P, zb_2p, ZB_2P)):
        given = profile(P, M, ticks, delay, cap)
        schedule = run(ZB_AUTO, given)
        assert schedule.memory_excess() is None
        assert schedule.span == published
        if M == 24:
            # The limit may also come from the schedule, with no limit in the instance.
            assert run(limited, profile(P, M, ticks, delay, None)).span == published


@pytest.mark.parametrize("memory", [2, 3, 4, 6, 11, 40])
def test_zb_auto_keeps_every_limit_that_holds_one_microbatch(memory: int) -> None:
    """Weight parts above activations too: a B must not be what breaks the limit."""
    for activation, weight in ((2, 1), (2, 2), (1, 2)):
        kind = {"ms": (5, 6, 4), "activation_gb": activation, "weight_activation_gb": weight}
        given = problem("aaaa", {"a": kind}, devices=4, microbatches=9, placement="linear", memory=memory)
        assert run(ZB_AUTO, given).memory_excess() is None


def test_zb_auto_says_what_one_microbatch_lacks() -> None:
    kind = {"ms": (5, 6, 4), "activation_gb": 2}
    given = problem("aa", {"a": kind}, microbatches=3, placement="linear", memory=1.5)
    [found] = attempts(ZB_AUTO, given)
    assert found.status == "infeasible"
    assert found.reason == "device 1 needs 2 GB; its limit is 1.5 GB: 0.5 GB too much"


# ---- Megatron's interleaved order ------------------------------------------------------------------


def legal(devices: int, microbatches: int, group: int) -> bool:
    left_over = microbatches % group
    return devices <= group <= microbatches and not 0 < left_over < devices


def megatron_order(rank: int, P: int, V: int, M: int, group: int) -> list[tuple[str, int, int]]:
    """The rule as sorting: forwards by (group, chunk, microbatch), backwards by (group, chunk descending, microbatch).

    The k-th backward comes right after the forward that is the warm-up's length further on.
    """
    pairs = [(chunk, microbatch) for chunk in range(V) for microbatch in range(M)]
    there = sorted(pairs, key=lambda pair: (pair[1] // group, pair[0], pair[1]))
    back = sorted(pairs, key=lambda pair: (pair[1] // group, -pair[0], pair[1]))
    lead = (P - 1 - rank) * 2 + (V - 1) * group
    when = [(position, 0, "F", *pair) for position, pair in enumerate(there)]
    when += [(position + lead, 1, "B", *pair) for position, pair in enumerate(back)]
    return [(kind, chunk, microbatch) for _, _, kind, chunk, microbatch in sorted(when)]


@pytest.mark.parametrize("P", [2, 4, 8])
@pytest.mark.parametrize("V", [2, 3, 5])
def test_interleaved_equals_megatrons_rule_with_groups(P: int, V: int) -> None:
    compared = 0
    for M in (P, 2 * P, 3 * P, 4 * P + 1):
        given = chunks("interleaved", P, V, M, (1, 2, 1), split_backward=False)
        layout = Layout(tuple(range(P * V + 1)), given.placement_for(P * V) or ())
        for group in (P, 2 * P):
            if not legal(P, M, group):
                with pytest.raises(NotApplicableError, match=f"{M} in groups of {group} are not so"):
                    interleaved(given, layout, group)
                continue
            for rank, row in enumerate(interleaved(given, layout, group)):
                assert [("FBW"[op.kind], op.stage // P, op.microbatch) for op in row] == megatron_order(
                    rank, P, V, M, group
                )
                assert {op.stage % P for op in row} == {rank}
            compared += 1
    # P microbatches in one group of P, 2P and 3P in groups of either size; a single one left over is never legal.
    assert compared == 5


def test_grouped_runs_where_microbatches_are_no_multiple_of_devices() -> None:
    given = chunks("interleaved", 4, 2, 17, (1, 2, 1))
    assert [attempt.status for attempt in attempts(INTERLEAVED, given)] == ["not-applicable"]
    assert [attempt.status for attempt in attempts(INTERLEAVED_GROUPED, given)] == ["feasible"]


def test_larger_groups_hide_link_delays() -> None:
    given = chunks("interleaved", 4, 2, 16, (4, 4, 4), link={"latency_us": 3000})
    assert run(INTERLEAVED_GROUPED, given).makespan < run(INTERLEAVED, given).makespan


# ---- V schedules ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("heuristic", "span", "held"), [(V_MIN, 59, 4), (V_HALF, 53, 6), (V_ZB, 48, 8)])
@pytest.mark.parametrize("objective", ["makespan", "span"])
def test_v_schedules_on_the_unit_case(heuristic: Heuristic, span: int, held: int, objective: str) -> None:
    """P = 4, M = 8, all memory freed at W; what is held counts stages, two of them are one microbatch."""
    schedule = run(heuristic, chunks("wave", 4, 2, 8, (1, 1, 1), objective=objective))
    assert schedule.span == span
    assert max(schedule.peak_memory()) == held


@pytest.mark.parametrize(("P", "M"), [(2, 6), (3, 9), (5, 12), (6, 12), (8, 16)])
def test_v_schedules_keep_their_memory(P: int, M: int) -> None:
    """(P + 4) / 3, (P + 2) / 2 and P microbatches; V-ZB has no bubble in span."""
    given = chunks("wave", P, 2, M, (1, 1, 1))
    assert max(run(V_MIN, given).peak_memory()) <= 2 * (P + 4) / 3
    assert max(run(V_HALF, given).peak_memory()) <= P + 2
    best = run(V_ZB, given)
    assert max(best.peak_memory()) <= 2 * P
    assert best.span == load(best)


@pytest.mark.parametrize("times", [(2, 3, 1), (7, 5, 9), (10, 9, 6)])
def test_v_schedules_on_other_costs(times: tuple[int, int, int]) -> None:
    """More memory never costs time, and delays and uneven stages run."""
    for more in ({}, {"link": {"latency_us": 2000}}):
        given = chunks("wave", 4, 2, 12, times, **more)
        spans = [run(heuristic, given).span for heuristic in (V_MIN, V_HALF, V_ZB)]
        assert spans == sorted(spans, reverse=True)
    uneven = problem([(n % 3 + 1, n % 4 + 1, n % 2 + 1) for n in range(11)], devices=4, microbatches=9)
    for heuristic in (V_MIN, V_HALF, V_ZB):
        assert {attempt.status for attempt in attempts(heuristic, uneven)} == {"feasible"}


# ---- DualPipeV and Hanayo -----------------------------------------------------------------------------


def test_dualpipe_v_by_hand() -> None:
    given = chunks("wave", 2, 2, 4, (1, 1, 1))
    assert [text(row) for row in DUALPIPE_V.orders(given, Layout((0, 1, 2, 3, 4), (0, 1, 1, 0)))] == [
        "F0,0 F0,1 F0,2 F3,0 B3,0 W3,0 F3,1 F0,3 B3,1 W3,1 F3,2 B0,0 W0,0 "
        "B3,2 W3,2 F3,3 B0,1 W0,1 B3,3 W3,3 B0,2 W0,2 B0,3 W0,3",
        "F1,0 F2,0 F1,1 F2,1 F1,2 B2,0 W2,0 F2,2 B1,0 W1,0 F1,3 B2,1 W2,1 F2,3 B1,1 W1,1 "
        "B2,2 W2,2 B1,2 W1,2 B2,3 B1,3 W2,3 W1,3",
    ]


@pytest.mark.parametrize(("P", "M"), [(2, 4), (4, 8), (4, 13), (8, 16), (8, 40)])
def test_dualpipe_v_holds_half_a_microbatch_more_than_1f1b(P: int, M: int) -> None:
    schedule = run(DUALPIPE_V, chunks("wave", P, 2, M, (1, 1, 1)))
    assert max(schedule.peak_memory()) == 2 * P + 1
    assert schedule.makespan - load(schedule) == P - 1


def test_hanayo_by_hand() -> None:
    """The third microbatch enters when the first has left."""
    given = chunks("wave", 2, 2, 3, (1, 2), split_backward=False)
    assert [text(row) for row in HANAYO.orders(given, Layout((0, 1, 2, 3, 4), (0, 1, 1, 0)))] == [
        "F0,0 F0,1 F3,0 B3,0 F3,1 B3,1 B0,0 F0,2 B0,1 F3,2 B3,2 B0,2",
        "F1,0 F2,0 F1,1 F2,1 B2,0 B1,0 B2,1 B1,1 F1,2 F2,2 B2,2 B1,2",
    ]


@pytest.mark.parametrize("P", [4, 8])
def test_hanayos_waves_shrink_the_bubble(P: int) -> None:
    """Near the paper's (2P - 2) / (3PW + P - 1) at M = P and B = 2F, never more than P microbatches of a stage."""
    for waves in (1, 2, 3, 4):
        given = chunks("wave", P, 2 * waves, P, (12 // waves, 24 // waves), split_backward=False)
        schedule = run(HANAYO, given)
        share = 1 - load(schedule) / schedule.makespan
        assert share <= (2 * P - 2) / (3 * P * waves + P - 1) + 0.002
    given = chunks("wave", P, 4, 3 * P, (1, 2), split_backward=False)
    assert max(run(HANAYO, given).peak_memory()) <= 4 * P


# ---- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heuristic", "change", "reason"),
    [
        (EAGER_ONE_F_ONE_B, {"count": 4}, "needs one stage per device"),
        (INTERLEAVED_GROUPED, {"microbatches": 2}, "2 microbatches on 2 devices leave no choice"),
        (LOOPED_BREADTH_FIRST, {"placement": "wave"}, "with wave placement"),
        (LOOPED_BREADTH_FIRST, {"devices": 1}, "more than one device"),
        (HANAYO, {"placement": "interleaved"}, "needs 2 stages on every device, in wave order"),
        (ZB_H2, {"split_backward": False}, "needs split_backward: true"),
        (ZB_AUTO, {"split_backward": False}, "needs split_backward: true"),
        (ZB_2P, {"count": 3}, "at least 3 stages"),
        (V_MIN, {"split_backward": False}, "needs split_backward: true"),
        (V_HALF, {"max_per_device": 1}, "needs 2 stages on every device, in wave order; the instance allows 2 stages"),
        (V_ZB, {"devices": 1}, "more than one device"),
        (DUALPIPE_V, {"microbatches": 3}, "twice as many microbatches as devices; 3 are fewer than 4"),
    ],
)
def test_refusals_say_why(heuristic: Heuristic, change: dict[str, Any], reason: str) -> None:
    [found] = attempts(heuristic, problem([(1, 1, 1)] * 6, **{"microbatches": 4, **change}))
    assert found.status == "not-applicable"
    assert reason in found.reason


# ---- all of them -------------------------------------------------------------------------------------


def test_solve_starts_from_the_quick_ones_only() -> None:
    assert [heuristic.name for heuristic in HEURISTICS] == ["gpipe", "1f1b", "interleaved-1f1b", "zb-h1"]


def test_each_is_described() -> None:
    names = [heuristic.name for heuristic in ALL_HEURISTICS]
    assert len(set(names)) == len(names)
    page = (Path(__file__).parents[1] / "docs" / "schedules.md").read_text(encoding="utf-8")
    described = set(
        re.findall(r"`([\w-]+)`", "\n".join(line.split("|")[1] for line in page.splitlines() if "|" in line))
    )
    assert set(names) <= described
    assert all(heuristic.source and heuristic.needs for heuristic in ALL_HEURISTICS)
    assert all(f"`-{rule}`" in page for rule in ALL_PARTITION_RULES if rule != "uniform")


SEEDS = 500


def drawn(seed: int) -> tuple[Instance, Problem] | None:
    """The random instance of a seed with 1 to 8 microbatches, or None where it cannot be."""
    given = random_instance(seed).model_copy(update={"microbatches": 1 + seed % 8})
    try:
        return given, build_problem(given)
    except InfeasibleError:
        return None


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_every_plan_is_valid_or_refused_and_no_better_than_a_bound(first: int) -> None:
    for seed in range(first, first + 50):
        made = drawn(seed)
        if made is None:
            continue
        given, integers = made
        bound = all_bounds(integers)[0].value
        for heuristic in ALL_HEURISTICS:
            for attempt in attempts(heuristic, integers, ALL_PARTITION_RULES):
                if attempt.status == "not-applicable":
                    assert attempt.schedule is None
                    assert attempt.reason
                    continue
                assert attempt.schedule is not None
                violations = check_plan(to_plan(attempt.schedule, given, method="test", lower_bound=0))
                if attempt.status == "feasible":
                    assert violations == []
                    assert attempt.schedule.value >= bound
                else:
                    assert violations
                    assert all("memory" in violation for violation in violations)
                    assert re.search(r"needs .* GB; its limit is .* GB: .* GB too much", attempt.reason)


def test_the_random_instances_run_each_of_them() -> None:
    """Each schedule has a placement on some, and refuses some."""
    seen: Counter[tuple[str, bool]] = Counter()
    for seed in range(SEEDS):
        made = drawn(seed)
        for heuristic in ALL_HEURISTICS if made else ():
            status = next(attempts(heuristic, made[1], {"uniform": uniform})).status if made else ""
            seen[heuristic.name, status != "not-applicable"] += 1
    for heuristic in ALL_HEURISTICS:
        assert min(seen[heuristic.name, True], seen[heuristic.name, False]) >= 5, heuristic.name
