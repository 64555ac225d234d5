"""The strategy: what it reports on the way, where it stops, what it refuses, and that it repeats itself."""

from __future__ import annotations

import time

import pytest

import octocp
from octocp.bounds import Bound
from octocp.checker import check_plan
from octocp.cpsat.joint import build_joint, tightened
from octocp.cpsat.packing import pack
from octocp.cpsat.run import run
from octocp.errors import InfeasibleError, NoPlanError
from octocp.heuristics.one_f_one_b import ONE_F_ONE_B
from octocp.heuristics.serial import SERIAL
from octocp.problem import Problem
from octocp.progress import Event, Progress
from octocp.schedule import Layout
from octocp.schema.files import load_instance
from octocp.strategy import solve_problem
from tiny import instance, problem

# Uneven enough that heuristics are beaten, small enough to close at once.
UNEVEN = [(1, 2, 1), (2, 2, 2), (1, 1, 1), (4, 6, 3)]
PHASES = ("heuristics", "search", "joint")


def uneven(**more) -> octocp.Instance:
    return instance(UNEVEN, microbatches=3, **more)


# ---- progress ------------------------------------------------------------------------------------


def test_the_trace_is_monotone_and_complete():
    events: list[Event] = []
    result = octocp.solve(uneven(), time_limit=60, workers=1, on_event=events.append)
    assert events == result.trace
    assert [event.seconds for event in events] == sorted(event.seconds for event in events)
    known = [event.incumbent for event in events if event.incumbent is not None]
    assert known == sorted(known, reverse=True)
    assert [event.bound for event in events] == sorted(event.bound for event in events)
    assert all(event.incumbent is None or event.bound <= event.incumbent for event in events)
    assert (events[-1].incumbent, events[-1].bound) == (result.value, result.lower_bound)
    assert (events[-1].gap, events[0].gap) == (0, None)
    phases = list(dict.fromkeys(event.phase for event in events))
    assert phases[:2] == ["bounds", "heuristics"]
    assert len(result.plan.solve.trace) == len(events)
    assert result.status == result.plan.status == "optimal"
    assert result.value == result.lower_bound
    assert check_plan(result.plan) == []


def schedule_of(given: Problem, heuristic=ONE_F_ONE_B):
    return heuristic.run(given, Layout((0, 1, 2), (0, 1)))


def test_progress_takes_only_improvements():
    """1F1B of two equal stages takes 9, one microbatch at a time 10."""
    given = problem([(1, 1, 1)] * 2)
    slow, fast = schedule_of(given, SERIAL), schedule_of(given)
    assert (slow.value, fast.value) == (10, 9)
    progress = Progress(60)
    assert progress.value is None
    assert not progress.closed
    progress.enter("first")
    assert progress.offer(slow)
    progress.enter("second")
    assert progress.offer(fast, "by name")
    assert not progress.offer(slow)
    assert (progress.value, progress.found_by) == (9, "by name")
    assert progress.prove(Bound("one", 6))
    assert not progress.prove(Bound("other", 6))
    assert progress.bound.name == "one"
    assert not progress.done
    assert progress.prove(Bound("best", 9))
    assert progress.closed
    assert progress.done
    assert progress.stop.is_set()
    assert [(e.incumbent, e.bound, e.phase) for e in progress.trace] == [
        (None, 0, "first"),
        (10, 0, "first"),
        (10, 0, "second"),
        (9, 0, "second"),
        (9, 6, "second"),
        (9, 9, "second"),
    ]


def test_progress_refuses_what_breaks_a_limit():
    kinds = {"a": {"ms": (1, 1, 1), "activation_gb": 1}}
    given = problem("aa", kinds, memory=1)
    progress = Progress(60)
    assert not progress.offer(schedule_of(given))  # holds two microbatches
    assert progress.offer(schedule_of(given, SERIAL))


def test_progress_ends_at_the_gap_and_at_the_limit():
    given = problem([(1, 1, 1)] * 2)
    progress = Progress(60, gap=0.4)
    progress.offer(schedule_of(given))
    progress.prove(Bound("5", 5))
    assert not progress.closed  # 4 of 9
    progress.prove(Bound("6", 6))
    assert progress.closed  # 3 of 9
    over = Progress(0.0)
    assert over.done
    assert over.left == 0


def test_events_come_from_any_thread_and_in_order():
    seen: list[Event] = []
    result = octocp.solve(uneven(), time_limit=60, workers=2, on_event=seen.append)
    assert seen == result.trace
    assert result.status == "optimal"


# ---- where it stops ------------------------------------------------------------------------------


def test_it_stops_at_the_gap():
    """Any plan of these is within half of the bound, so the heuristics end it."""
    result = octocp.solve(uneven(), time_limit=60, workers=1, gap=0.5)
    assert result.gap <= 0.5
    assert {event.phase for event in result.trace} == {"bounds", "heuristics"}
    assert result.status == ("optimal" if result.value == result.lower_bound else "feasible")


def test_it_stops_when_time_is_up():
    """Far from closed; what is known by then is a valid plan."""
    result = octocp.solve(load_instance("llama3-8b-p8-m16"), time_limit=0.3, workers=1)
    assert result.status == "feasible"
    assert result.lower_bound < result.value
    assert check_plan(result.plan) == []


def test_an_interrupt_keeps_the_best_plan():
    began = []

    def interrupt(event: Event) -> None:
        if event.incumbent is not None and not began:
            began.append(event)
            raise KeyboardInterrupt

    given = problem(UNEVEN, microbatches=3)
    answer = solve_problem(given, Progress(60, on_event=interrupt), workers=1, seed=0)
    assert began
    assert answer.schedule.value == began[0].incumbent


def test_a_model_stops_when_told():
    given = problem("ab" * 6, {"a": (3, 5, 2), "b": (2, 7, 4)}, devices=4, microbatches=8)
    began = time.monotonic()
    outcome = run(build_joint(given), seconds=600, workers=1, seed=0, stopped=lambda: time.monotonic() > began + 0.2)
    assert outcome.status in {"unknown", "feasible"}
    assert outcome.bound >= 0


# ---- phases and ablation ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phases", "seen"),
    [
        (("heuristics",), {"bounds", "heuristics"}),
        (("joint",), {"bounds", "packing", "joint model"}),
        (("search",), {"bounds", "packing", "local search"}),
    ],
)
def test_phases_can_be_run_alone(phases, seen):
    result = octocp.solve(uneven(), time_limit=1.5 if phases == ("search",) else 60, workers=1, phases=phases)
    assert {event.phase for event in result.trace} <= seen
    assert check_plan(result.plan) == []
    if phases == ("joint",):
        assert result.status == "optimal"


def test_phases_alone_agree_with_all():
    whole = octocp.solve(uneven(), time_limit=60, workers=1)
    joint = octocp.solve(uneven(), time_limit=60, workers=1, phases=["joint"])
    assert whole.value == joint.value
    assert whole.lower_bound == joint.lower_bound


@pytest.mark.parametrize("family", ["fifo", "device-symmetry", "head-load-tail", "loads", "analytic"])
def test_families_can_be_left_out(family):
    whole = octocp.solve(uneven(), time_limit=60, workers=1)
    less = octocp.solve(uneven(), time_limit=60, workers=1, without=[family])
    assert (less.value, less.status) == (whole.value, "optimal")


def test_unknown_families_are_refused():
    with pytest.raises(ValueError, match="unknown families"):
        octocp.solve(uneven(), time_limit=10, workers=1, phases=["joint"], without=["no such"])


# ---- what has no plan ------------------------------------------------------------------------------


def test_memory_that_cannot_fit_names_device_need_and_cap():
    """Layers of 3 + 2 GB on limits of 4 and 6: one of them lies on the device of 4."""
    kinds = {"a": {"ms": (1, 1, 1), "static_gb": 3, "activation_gb": 2}}
    devices = [{"name": "small", "memory_gb": 4}, {"name": "large", "memory_gb": 6}]
    with pytest.raises(InfeasibleError) as caught:
        octocp.solve(instance("aa", kinds, devices=devices), time_limit=30, workers=1)
    assert str(caught.value) == (
        "memory cannot fit: in the best layout found, small needs 5 GB; its limit is 4 GB: 1 GB too much"
    )
    assert caught.value.exit_code == 3


def test_memory_that_fits_in_one_layout_only():
    """4 + 1 + 1 on limits of 2 and 4: the large layer alone on the large device, whatever it costs."""
    kinds = {"a": {"ms": (1, 1, 1), "static_gb": 4}, "b": {"ms": (5, 5, 5), "static_gb": 1}}
    devices = [{"memory_gb": 2}, {"memory_gb": 4}]
    result = octocp.solve(instance("abb", kinds, devices=devices), time_limit=60, workers=1)
    assert result.status == "optimal"
    assert result.plan.peak_memory_gb == [2, 4]


def test_memory_for_one_microbatch_at_a_time():
    """No heuristic fits: the packed layout, run one by one, is where the search begins."""
    kinds = {"a": {"ms": (1, 2, 1), "activation_gb": 1}}
    result = octocp.solve(instance("aaa", kinds, memory=2, microbatches=3), time_limit=60, workers=1)
    assert result.status == "optimal"
    assert max(result.plan.peak_memory_gb) <= 2


def test_colocation_that_cannot_be_met():
    """Layers 0 and 3 on one device, 1 on another, and two stages at most: cuts are needed on both sides."""
    with pytest.raises(InfeasibleError) as caught:
        octocp.solve(instance([(1, 1, 1)] * 4, colocate=[[0, 3]], max_per_device=1), time_limit=30, workers=1)
    assert "colocate cannot be met" in str(caught.value)
    assert "the layers [0, 3] together" in str(caught.value)
    assert "2 to 2 stages on 2 devices, at most 1 each" in str(caught.value)


def test_no_plan_in_time():
    """Three stages with free placement and odd microbatches suit no heuristic, and there is no time for more."""
    with pytest.raises(NoPlanError, match=r"no plan found in .* proven lower bound \d+ ticks") as caught:
        octocp.solve(uneven(count=3), time_limit=1e-9, workers=1)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("placement", ["free", "wave", [0, 1, 1]])
def test_what_suits_no_heuristic_still_has_a_first_plan(placement):
    """Then one microbatch at a time, on balanced cuts and the placement that is asked for."""
    result = octocp.solve(uneven(count=3, placement=placement), time_limit=60, workers=1, phases=["heuristics"])
    assert result.plan.solve.found_by in {"serial", "gpipe"}


def test_more_stages_than_the_search_would_try():
    """Twenty on two devices: the search takes no fewer than the instance asks for."""
    given = instance("a" * 20, {"a": (1, 2, 1)}, count=20, max_per_device=None, microbatches=3)
    result = octocp.solve(given, time_limit=0.8, workers=1, phases=["search"])
    assert len(result.plan.partition) == 20
    assert len(result.trace) < 1000


# ---- determinism -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 7])
def test_one_worker_and_a_seed_repeat_themselves(seed):
    def plan() -> tuple:
        result = octocp.solve(uneven(link={"latency_us": 1000}), time_limit=60, workers=1, seed=seed)
        return result.value, result.plan.partition, result.plan.placement, result.plan.ops

    assert plan() == plan()


# ---- packing and decoding --------------------------------------------------------------------------


def test_packing_without_limits_needs_nothing():
    given = problem(UNEVEN)
    found = pack(given, seconds=10)
    assert found.status == "fits"
    assert found.layout is not None
    assert found.layout.violation(given) is None


def test_packing_balances_the_load_among_what_fits():
    """Memory lets any cut be; the loads 1 1 1 9 are best cut before the last."""
    layers = [{"ms": (n, 0, 0), "activation_gb": 1} for n in (1, 1, 1, 9)]
    kinds = dict(zip("abcd", layers, strict=True))
    given = problem("abcd", kinds, memory=3, max_per_device=1)
    found = pack(given, seconds=10, balance=True)
    assert found.status == "fits"
    assert found.layout is not None
    assert found.layout.partition == (3, 1)


def test_packing_finds_the_least_overrun():
    """5 + 5 + 6 on two devices of 8: 10 | 6 is 2 over, 5 | 11 is 3 over."""
    layers = [{"ms": (1, 1, 1), "static_gb": n} for n in (5, 5, 6)]
    given = problem("abc", dict(zip("abc", layers, strict=True)), memory=8, max_per_device=1)
    found = pack(given, seconds=10)
    assert found.status == "impossible"
    assert (found.need, found.cap) == (10, 8)


def test_tightening_starts_everything_as_early_as_the_order_allows():
    given = problem([(1, 1, 1)] * 2)
    schedule = schedule_of(given)
    late = type(schedule)(given, schedule.layout, schedule.start * 2)
    assert tightened(late).value <= schedule.value


# ---- compiling the search ------------------------------------------------------------------------


def test_what_is_not_compiled_yet_is_compiled_in_another_process(monkeypatch, tmp_path):
    """So that a short time limit, or Ctrl-C, does not throw the work away."""
    from octocp.search import compiled
    from octocp.strategy import compiler

    done = tmp_path / "done"
    monkeypatch.setattr(compiled, "is_cached", lambda function: False)
    monkeypatch.setattr(compiler, "COMPILE", f"open({str(done)!r}, 'w').close()")
    loading = compiler.Compiler()
    assert loading.wait(lambda: False)
    assert loading.compiling
    assert done.exists()


def test_what_is_compiled_is_only_loaded(monkeypatch):
    from octocp.search import compiled
    from octocp.search.local import warm_up
    from octocp.search.moves import anneal
    from octocp.strategy import compiler

    warm_up()
    assert compiled.is_cached(anneal)
    monkeypatch.setattr(compiler, "COMPILE", "raise SystemExit('not needed')")
    loading = compiler.Compiler()
    assert loading.wait(lambda: False)
    assert not loading.compiling


def test_a_bound_can_be_left_out_with_the_joint_model_on():
    """Its name is none of a constraint family: the joint model does not see it."""
    result = octocp.solve(uneven(), time_limit=20, workers=1, without=["energy", "loads"], phases=["joint"])
    assert result.status == "optimal"
    assert result.bound_name != "energy"
