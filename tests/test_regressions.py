"""Instances that once went wrong, as found by attacks on the solver."""

from __future__ import annotations

from typing import Any

import pytest

import octocp
from octocp.schema import Instance


def instance(layers: str, kinds: dict[str, dict[str, float]], devices: int, microbatches: int, **more: Any) -> Instance:
    cluster = {"devices": devices, "memory_gb": more.pop("memory_gb", None)}
    return Instance.model_validate(
        {
            "format": "octocp.instance/1",
            "name": "regression",
            "model": {"format": "octocp.model/1", "name": "m", "layers": layers, "kinds": kinds},
            "cluster": cluster,
            "microbatches": microbatches,
            **more,
        }
    )


def test_a_bound_that_cp_sat_tells_as_126_and_a_bit() -> None:
    """Rounded up, 126.00000000000001 was a bound above the optimum."""
    kind = {
        "forward_ms": 0.09,
        "backward_input_ms": 0.07,
        "backward_weight_ms": 0.05,
        "static_gb": 0.25,
        "activation_gb": 0.75,
        "weight_activation_gb": 0.25,
    }
    found = octocp.solve(instance("AAA", {"A": kind}, 2, 3, memory_gb=3.08, objective="span"), time_limit=30, workers=1)
    assert (found.status, found.value) == ("optimal", 126)


def test_ops_of_length_zero_hold_nothing() -> None:
    """F and B take no time, so the activation of 5 GB is never held: 1 GB is enough."""
    kinds = {
        "A": {"forward_ms": 0, "backward_weight_ms": 1, "activation_gb": 5},
        "B": {"forward_ms": 0, "backward_weight_ms": 1},
    }
    found = octocp.solve(instance("AB", kinds, 2, 3, memory_gb=1), time_limit=30, workers=1)
    assert (found.status, found.value) == ("optimal", 300)


def test_a_last_stage_of_length_zero_holds_nothing() -> None:
    kinds = {
        "A": {"forward_ms": 1, "backward_input_ms": 1, "backward_weight_ms": 1, "activation_gb": 1},
        "L": {"forward_ms": 0, "backward_weight_ms": 1, "activation_gb": 5},
    }
    stages = {"placement": "linear"}
    found = octocp.solve(
        instance("AL", kinds, 2, 2, memory_gb=1, stages=stages, tick_us=1000.0), time_limit=30, workers=1
    )
    assert (found.status, found.value) == ("optimal", 6)


def test_a_weight_part_that_does_not_fit_is_named() -> None:
    """0.5 static and 2 of weight part need 2.5 GB; activation alone would fit."""
    kinds = {"A": {"forward_ms": 1, "backward_input_ms": 1, "backward_weight_ms": 1, "static_gb": 0.5,
                   "activation_gb": 1, "weight_activation_gb": 2}}  # fmt: skip
    with pytest.raises(octocp.InfeasibleError, match=r"needs 2\.5 GB; its limit is 1\.95 GB: 0\.55 GB too much"):
        octocp.solve(instance("A", kinds, 1, 1, memory_gb=1.95), time_limit=30, workers=1)


def test_sixteen_devices_that_hold_three_layers_each_hold_no_fifty() -> None:
    """6.4 GB a layer at 24 GB: counting proves it at once; a plain sum of sizes does not."""
    kinds = {"M": {"forward_ms": 8, "static_gb": 6, "activation_gb": 0.4}}
    given = instance("M" * 50, kinds, 16, 64, memory_gb=24, stages={"max_per_device": 2})
    with pytest.raises(octocp.InfeasibleError, match="memory cannot fit"):
        octocp.solve(given, time_limit=30, workers=1)


@pytest.mark.parametrize(
    ("option", "value"),
    [("time_limit", 0), ("time_limit", float("nan")), ("workers", 0), ("seed", -1), ("gap", 2)],
)
def test_options_out_of_range_are_refused_before_the_search(option: str, value: float) -> None:
    options: dict[str, Any] = {option: value}
    with pytest.raises(octocp.InputError, match=option):
        octocp.solve(octocp.load_instance("tiny-two-devices"), **options)


def test_weight_parts_larger_than_activations_leave_room_for_a_plan() -> None:
    """When W of a stage runs, the stages below it still hold theirs: only some layouts leave room for it."""
    kind = {
        "forward_ms": 1,
        "backward_input_ms": 1,
        "backward_weight_ms": 1,
        "activation_gb": 1,
        "weight_activation_gb": 3,
    }
    given = instance("A" * 24, {"A": kind}, 3, 8, memory_gb=12.5)
    found = octocp.solve(given, time_limit=60, workers=1, phases=())
    assert octocp.check(found.plan) == []
