"""Proven optima, reproduced: `octocp.solve` closes each shipped instance at exactly the known value."""

from __future__ import annotations

import json

import pytest

import octocp
from octocp import catalog

KNOWN = {
    name: entry["value"]
    for name, entry in json.loads((catalog.folder("instances") / "best_known.json").read_text()).items()
    if entry["proven"] and "OctoCP" not in entry["source"]  # what others have proven
}
# One stage per device: what chunks are worth (no published value).
KNOWN |= {"nemotron-nano-v2-9b-p4-m8-v1": 94_379, "nemotron-nano-v2-9b-p4-m4-v1": 58_918}

# Closed by one worker within about a second; the others take up to minutes.
FAST = {
    "f5b6w4-p4-m12-cap10-span",
    "f5b6w4-p4-m12-cap14",
    "f5b6w4-p4-m12-cap16",
    "f5b6w4-p4-m12-cap8",
    "ppss-p4-m6",
    "ppss-p4-m8",
    "slackpipe-w2-n2-b1-l16-c0",
    "slackpipe-w2-n2-b1-l16-c2",
    "slackpipe-w2-n2-b2-l16-c0",
    "slackpipe-w2-n2-b2-l16-c2",
    "slackpipe-w2-n2-b4-l16-c0",
    "slackpipe-w2-n2-b4-l16-c2",
    "slackpipe-w2-n4-b2-l32-c0",
    "slackpipe-w2-n4-b2-l32-c2",
    "slackpipe-w2-n4-b4-l32-c0",
    "slackpipe-w2-n4-b4-l32-c2",
    "slackpipe-w2-n4-b4-l8-f1b1-c0",
    "slackpipe-w4-n4-b4-l32-c0",
    "slackpipe-w4-n4-b4-l32-c2",
    "slackpipe-w4-n4-b8-l32-c0",
    "slackpipe-w4-n8-b4-l64-c2",
    "tiny-memory",
    "tiny-two-devices",
    "tiny-uneven-head",
    "unit-v-p4-m4-cap10",
    "unit-v-p4-m4-cap12",
    "unit-v-p4-m4-cap8",
    "unit-v-p4-m8-cap16",
}


def _cases() -> list[object]:
    return [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in KNOWN]


def test_the_fast_ones_exist():
    assert set(KNOWN) >= FAST


@pytest.mark.parametrize("name", _cases())
def test_proven_optimum(name):
    result = octocp.solve(octocp.load_instance(name), time_limit=120, workers=1)
    assert result.status == "optimal"
    assert (result.value, result.lower_bound) == (KNOWN[name], KNOWN[name])
    assert result.gap == 0
