"""Which instances a data set has: the same for ever, all different, every value of every axis equally often."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from hashlib import sha256
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octocp.costs import build_problem
from octocp.dataset.canonical import canonical, canonical_hash
from octocp.dataset.draws import Stream, dealt
from octocp.dataset.generate import Drawn, generate
from octocp.dataset.spec import Spec, digest, load_models, load_spec, values
from octocp.errors import InputError, OctoCPError
from octocp.schema import Instance
from random_instances import random_instance
from tiny import instance, problem

ROOT = Path(__file__).resolve().parents[1]
GROUNDTRUTH = ROOT / "scripts" / "groundtruth.yaml"

EVERYTHING = """
format: octocp.dataset/1
name: everything
seed: 7
families:
  - name: published
    source: profiles
    count: 30
    models: [llama3-8b, nemotron-nano-v2-9b, jamba-20b, gemma-proxy-small, llama-2-7b]
    memory: [none, tight, loose, uneven, some]
    links: [none, latency, bandwidth, both, nodes]
  - {name: built, source: architecture, count: 40, memory: [none, tight], keep_together: [none, ends, random]}
  - name: mix
    source: mix
    count: 60
    devices: {least: 1, most: 4}
    max_per_device: [1, 2, 3]
    placement: [free, linear, interleaved, wave, given]
    partition: [free, given]
    split_backward: [true, false]
    objective: [makespan, span]
    memory: [none, tight, loose, uneven, some]
    links: [none, latency, bandwidth, both, nodes]
    keep_together: [none, ends, random]
    colocate: [none, ends, random]
    op_overhead_us: [0, 20, 3]
    tick_us: [10, 100]
"""


def drawn(text: str, path: Path) -> list[Drawn]:
    path.write_text(text)
    spec = load_spec(path)
    return list(generate(spec, load_models(spec, path)))


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> list[Drawn]:
    return drawn(EVERYTHING, tmp_path_factory.mktemp("spec") / "spec.yaml")


# ---- random numbers --------------------------------------------------------------------------


def test_the_generator_is_splitmix64() -> None:
    stream = Stream()
    stream._state = 1234567
    # The published sequence for this seed.
    assert [stream.word() for _ in range(3)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_streams_never_change() -> None:
    stream = Stream("test", 1)
    found = [stream.below(1000) for _ in range(5)], stream.shuffled(range(6)), stream.between(-3, 3)
    assert found == ([137, 776, 493, 224, 629], [5, 1, 3, 4, 2, 0], 2)


@given(st.integers(1, 1000), st.integers(0, 2**32))
def test_numbers_are_in_range(limit: int, seed: int) -> None:
    stream = Stream(seed)
    assert all(0 <= stream.below(limit) < limit for _ in range(20))
    assert sorted(stream.shuffled(range(limit % 50))) == list(range(limit % 50))


def test_decks_deal_every_value_equally_often_and_do_not_know_how_many_are_dealt() -> None:
    hands = [dealt("aab", index, "deck") for index in range(30)]
    assert Counter(hands) == {"a": 20, "b": 10}
    assert all(Counter(hands[start : start + 3]) == {"a": 2, "b": 1} for start in range(0, 30, 3))


# ---- the same instances for ever -------------------------------------------------------------


def test_a_seed_gives_the_same_instances_for_ever(everything: list[Drawn]) -> None:
    """A change here makes every published spec mean other instances: it needs a new version of the generator."""
    text = "\n".join(f"{one.id} {one.hash} {one.instance.model_dump_json(exclude_defaults=True)}" for one in everything)
    assert sha256(text.encode()).hexdigest()[:16] == "e0ca3312f4471e59"


def test_the_published_spec_gives_the_instances_of_the_published_set() -> None:
    spec = load_spec(GROUNDTRUTH)
    hashes = [one.hash for one in generate(spec, load_models(spec, GROUNDTRUTH))]
    assert len(hashes) == len(set(hashes)) == spec.count
    assert sha256(" ".join(hashes).encode()).hexdigest()[:16] == "61d3cc3e15e14670"


def test_another_seed_gives_others(everything: list[Drawn], tmp_path: Path) -> None:
    other = drawn(EVERYTHING.replace("seed: 7", "seed: 8"), tmp_path / "spec.yaml")
    assert len({one.hash for one in other} & {one.hash for one in everything}) < 10


def test_a_larger_count_keeps_the_first_ones(tmp_path: Path) -> None:
    text = "{format: octocp.dataset/1, name: a, families: [{name: mix, source: mix, count: %d}]}"
    few, many = (drawn(text % count, tmp_path / "spec.yaml") for count in (10, 25))
    assert many[:10] == few


def test_instances_are_valid_different_and_stratified(everything: list[Drawn]) -> None:
    assert len({one.hash for one in everything}) == len(everything) == 130
    for one in everything:
        found = build_problem(one.instance)
        assert canonical_hash(found) == one.hash
        assert one.instance.name == one.id
        assert found.max_stages * found.n_microbatches * len(found.kinds) <= 200
        assert Instance.model_validate(one.instance.model_dump(mode="json", exclude_defaults=True)) == one.instance
    mixes = [one.instance for one in everything if one.family == "mix"]
    split = Counter(one.training.split_backward for one in mixes)
    placements = Counter("given" if isinstance(one.stages.placement, list) else one.stages.placement for one in mixes)
    # Some strata contradict themselves and are drawn anew, so it need not be exact.
    assert min(split.values()) > 20
    assert min(placements.values()) >= 6
    assert len(placements) == 5
    tight = [one for one in everything if build_problem(one.instance).has_memory_limit]
    assert len(tight) > 50


def test_ranges_that_hold_too_few_are_refused(tmp_path: Path) -> None:
    text = (
        "{format: octocp.dataset/1, name: a, families: [{name: few, source: architecture, count: 20, devices: [2], "
        "microbatches: [2], blocks: [2, 3], hidden: [1024], vocabulary: [32000], experts: [8], sequence: [2048]}]}"
    )
    with pytest.raises(InputError, match=r"families\[0\].count \(few\): no more than \d+ different instances"):
        drawn(text, tmp_path / "spec.yaml")


# ---- specs that are wrong --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("count: 30", "families[0].count: 0 is not right here"),
        ("models: [llama3-8b, ", "no model file or catalogue entry named 'llama3-9b'"),
        ("devices: {least: 1, most: 4}", "families[2].devices: from 4 to 1 is nothing"),
        ("tick_us: [10, 100]", "families[2].tick_us: 0 is out of range"),
        (
            "memory: [none, tight, loose, uneven, some]\n    links: [none, latency, bandwidth, both, nodes]\n  -",
            "memory",
        ),
        ("seed: 7", "unknown key 'seeds' (did you mean 'seed'?)"),
        ("name: mix", "families[2].name: 'published' is given twice"),
        ("format: octocp.dataset/1", "format: is 'octocp.instance/1' (format: octocp.dataset/1)"),
        ("source: mix", "source"),
    ],
)
def test_mistakes_are_one_line_with_their_place(wrong: str, told: str, tmp_path: Path) -> None:
    right = {
        "count: 30": "count: 0",
        "models: [llama3-8b, ": "models: [llama3-9b, ",
        "devices: {least: 1, most: 4}": "devices: {least: 4, most: 1}",
        "tick_us: [10, 100]": "tick_us: [0]",
        "seed: 7": "seeds: 7",
        "name: mix": "name: published",
        "format: octocp.dataset/1": "format: octocp.instance/1",
        "source: mix": "source: dream",
    }
    path = tmp_path / "spec.yaml"
    replacement = right.get(wrong, wrong.replace("tight", "tigth"))
    with pytest.raises(OctoCPError) as caught:
        drawn(EVERYTHING.replace(wrong, replacement, 1), path)
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    assert told in text


def test_the_digest_tells_specs_apart_that_ask_for_other_rows(tmp_path: Path) -> None:
    def of(text: str) -> str:
        path = tmp_path / "spec.yaml"
        path.write_text(text)
        spec = load_spec(path)
        return digest(spec, load_models(spec, path))

    assert of(EVERYTHING) == of(EVERYTHING + "\ndescription: other words\n")
    assert of(EVERYTHING) != of(EVERYTHING.replace("count: 60", "count: 61"))
    assert of(EVERYTHING) != of(EVERYTHING + "\nsolve: {time_limit: 1}\n")


def test_ranges_and_lists_are_axes() -> None:
    data = {"format": "octocp.dataset/1", "name": "a"}
    family = {"name": "mix", "source": "mix", "count": 1, "devices": {"least": 2, "most": 7, "step": 2}}
    spec = Spec.model_validate(data | {"families": [family]})
    assert values(spec.families[0].devices) == [2, 4, 6]


# ---- the canonical form ----------------------------------------------------------------------


def hash_of(*args: Any, **more: Any) -> str:
    return canonical_hash(problem(*args, **more))


def test_equal_problems_have_equal_hashes() -> None:
    base = hash_of("aab", {"a": (1, 2, 1), "b": (2, 2, 2)})
    assert hash_of("xxy", {"x": (1, 2, 1), "y": (2, 2, 2)}, name="other") == base  # names
    assert hash_of([(1, 2, 1), (1, 2, 1), (2, 2, 2)]) == base  # equal costs, other kinds
    assert hash_of("aab", {"a": (3, 6, 3), "b": (6, 6, 6)}) == base  # everything three times as long
    assert hash_of("aab", {"a": (1, 2, 1), "b": (2, 2, 2)}, memory=1000) == base  # nothing uses memory
    assert hash_of("aab", {"a": {"ms": (1, 2, 1), "activation_gb": 1}, "b": (2, 2, 2)}) == base  # no limit
    assert hash_of("aab", {"a": (1, 2, 1), "b": (2, 2, 2)}, max_per_device=7) == base  # as many as can be anyway


def test_different_problems_have_different_hashes() -> None:
    kinds = {"a": (1, 2, 1), "b": (2, 2, 2)}
    made = [
        hash_of("aab", kinds),
        hash_of("aba", kinds),
        hash_of("aab", kinds, microbatches=3),
        hash_of("aab", kinds, devices=1),
        hash_of("aab", kinds, objective="span"),
        hash_of("aab", kinds, split_backward=False),
        hash_of("aab", kinds, op_overhead_us=1000),
        hash_of("aab", kinds, link={"latency_us": 1000}),
        hash_of("aab", kinds, max_per_device=1),
        hash_of("aab", kinds, keep_together=[[0, 1]]),
        hash_of("aab", kinds, colocate=[[0, 2]]),
        hash_of("aab", kinds, placement="interleaved"),
        hash_of("aab", kinds, placement="wave"),
        hash_of("aab", kinds, placement=[0, 1, 1]),
        hash_of("aab", kinds, partition=[1, 2]),
        hash_of("aab", kinds, partition=[2, 1]),
    ]
    assert len(set(made)) == len(made)


def test_interchangeable_devices_are_one() -> None:
    kinds = {"a": {"ms": (1, 2, 1), "activation_gb": 1, "weight_activation_gb": 1, "static_gb": 1}}
    limits = [3, 4, 5]
    made = {hash_of("aaaa", kinds, devices=[{"memory_gb": gb} for gb in order]) for order in permutations(limits)}
    assert len(made) == 1
    linear = {
        hash_of("aaaa", kinds, devices=[{"memory_gb": gb} for gb in order], placement="linear")
        for order in permutations(limits)
    }
    assert len(linear) == 6  # there the order of the devices is the order of the stages
    assert hash_of("aaaa", kinds, placement=[0, 1, 0]) == hash_of("aaaa", kinds, placement=[1, 0, 1])
    assert hash_of("aaaa", kinds, placement=[1, 0]) == hash_of("aaaa", kinds, placement="linear")
    nodes = [{"node": node} for node in (0, 0, 1)], [{"node": node} for node in (5, 2, 5)]
    link = {"intra_node": {"latency_us": 1000}, "inter_node": {"latency_us": 3000}}
    assert hash_of("aaaa", kinds, devices=nodes[0], link=link) == hash_of("aaaa", kinds, devices=nodes[1], link=link)


def test_layers_that_stay_together_are_one() -> None:
    kinds = {"a": (1, 2, 1), "b": (2, 2, 2), "c": (3, 4, 3)}
    assert hash_of("abab", kinds, keep_together=[[0, 1], [2, 3]]) == hash_of("cc", kinds)
    assert hash_of("abab", kinds, partition=[2, 2]) == hash_of("baba", kinds, partition=[2, 2])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 5000), st.randoms())
def test_renumbering_devices_renames_nothing_else(seed: int, random: Any) -> None:
    made = random_instance(seed)
    devices = made.cluster.device_list()
    order = list(range(len(devices)))
    random.shuffle(order)
    if made.stages.placement not in ("free",) and not isinstance(made.stages.placement, list):
        order.sort()
    listed = [devices[old].model_dump(exclude={"name"}) for old in order]
    data = made.model_dump()
    data["cluster"] |= {"devices": listed, "memory_gb": None}
    if isinstance(made.stages.placement, list):
        data["stages"]["placement"] = [order.index(device) for device in made.stages.placement]
    try:
        before = build_problem(made)
    except OctoCPError:
        return
    assert canonical(build_problem(Instance.model_validate(data))) == canonical(before)


def test_what_the_form_does_not_know_tells_problems_apart() -> None:
    """A field that `Problem` gets one day, with a default, changes no hash until it is used."""
    from dataclasses import dataclass

    from octocp.problem import Problem

    @dataclass(frozen=True)
    class Later(Problem):
        extra: int = 0

    now = problem([(1, 1, 1)] * 3)
    fields = {name: getattr(now, name) for name in Problem.__dataclass_fields__}
    assert canonical_hash(Later(**fields)) == canonical_hash(now)
    assert canonical_hash(replace(Later(**fields), extra=1)) != canonical_hash(now)


def test_instances_in_ticks_are_what_they_say() -> None:
    assert isinstance(instance([(1, 1, 1)] * 2), Instance)
