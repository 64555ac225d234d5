"""Broken files: each is refused with exit code 2 and one line that names file, place and what is wrong."""

from __future__ import annotations

import copy
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from octocp import catalog
from terminal import octocp, refused

GOOD: dict[str, Any] = {
    "format": "octocp.instance/1",
    "name": "good",
    "model": {
        "name": "toy",
        "layers": "ETTTTL",
        "kinds": {
            "E": {"forward_ms": 0.5},
            "T": {"forward_ms": 1, "backward_input_ms": 1, "backward_weight_ms": 1, "activation_gb": 1},
            "L": {"forward_ms": 2, "backward_input_ms": 2, "backward_weight_ms": 1},
        },
    },
    "cluster": {"devices": 2, "memory_gb": 40, "link": {"latency_us": 1, "bandwidth_gb_s": 100}},
    "microbatches": 2,
    "training": {"split_backward": True, "recompute": "none", "op_overhead_us": 0},
    "stages": {"max_per_device": 1, "keep_together": [[0, 1]]},
    "objective": "makespan",
    "tick_us": 10,
}
HUGE = 10**400
DELETE = object()


def changed(path: str, value: Any, good: dict[str, Any] = GOOD) -> dict[str, Any]:
    """Return `good` with the value at a dotted path replaced, added or deleted."""
    data = copy.deepcopy(good)
    *parents, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    inner: Any = data
    for step in parents:
        inner = inner[step] if isinstance(inner, list) else inner.setdefault(step, {})
    if value is DELETE:
        del inner[last]
    else:
        inner[last] = value
    return data


def write(folder: Path, data: Any, name: str = "broken.yaml") -> Path:
    path = folder / name
    path.write_text(json.dumps(data) if name.endswith(".json") else yaml.safe_dump(data, sort_keys=False))
    return path


# (path to change, value, words that the line must hold: the place and what is wrong or right)
FIELDS: list[tuple[str, Any, list[str]]] = [
    # Wrong types, field by field.
    ("format", 1, ["format", "octocp.instance/1"]),
    ("format", "octocp.instance/2", ["format", "octocp.instance/1"]),
    ("format", "octocp.plan/1", ["format", "octocp.instance/1"]),
    ("format", None, ["format", "is missing"]),
    ("name", 5, ["name", "text is needed"]),
    ("name", "", ["name", "at least 1"]),
    ("name", "x" * 201, ["name", "at most 200"]),
    ("name", None, ["name", "is null"]),
    ("description", ["a"], ["description", "text is needed"]),
    ("model", 5, ["model", "5", "inline model"]),
    ("model", None, ["model"]),
    ("model", [], ["model"]),
    ("model", "", ["model", "octocp models"]),
    ("model", "nemotron-nano-v2-9bb", ["model", "did you mean 'nemotron-nano-v2-9b'?"]),
    ("model", "no/such/model.yaml", ["model", "no such file"]),
    ("model", "x" * 5000, ["model"]),
    ("model", "x" * 300 + ".yaml", ["model"]),
    ("model", "a\nb", ["model"]),
    ("profile", "fast", ["profile", "has no profile 'fast'"]),
    ("profile", 3, ["profile", "text is needed"]),
    ("cluster", [], ["cluster", "mapping"]),
    ("cluster", None, ["cluster", "null"]),
    ("cluster.devices", "2", ["cluster.devices", "'2' is a text (a whole number is needed, without quotes)"]),
    ("cluster.devices", 2.5, ["cluster.devices", "2.5 is not a whole number"]),
    ("cluster.devices", True, ["cluster.devices", "whole number is needed"]),
    ("cluster.devices", None, ["cluster.devices"]),
    ("cluster.devices", {}, ["cluster.devices: ", "list"]),
    ("cluster.devices", [1, 2], ["cluster.devices[0]", "mapping"]),
    ("cluster.devices", [{"memory_gb": "80"}, {}], ["cluster.devices[0].memory_gb", "number"]),
    ("cluster.devices", [{"node": -1}, {}], ["cluster.devices[0].node", "greater than or equal to 0"]),
    ("cluster.devices", [{"speed": 0}, {}], ["cluster.devices[0].speed"]),
    ("cluster.memory_gb", "80GB", ["cluster.memory_gb", "'80GB' is a text (a number is needed)"]),
    ("cluster.memory_gb", [80], ["cluster.memory_gb", "number"]),
    ("cluster.link", 5, ["cluster.link", "mapping"]),
    ("cluster.link.latency_us", "5us", ["cluster.link.latency_us", "number"]),
    ("cluster.link.bandwidth_gb_s", 0, ["cluster.link.bandwidth_gb_s", "greater"]),
    ("cluster.link.bandwidth_gb_s", "inf", ["cluster.link.bandwidth_gb_s", "number"]),
    ("cluster.link", {"intra_node": 5}, ["cluster.link.intra_node", "mapping"]),
    ("microbatches", "8", ["microbatches", "whole number is needed"]),
    ("microbatches", 1.5, ["microbatches", "whole number is needed"]),
    ("microbatches", {}, ["microbatches"]),
    ("microbatches", [1, "1"], ["microbatches[1]", "number"]),
    ("microbatches", [], ["microbatches", "at least 1"]),
    ("training", "fast", ["training", "mapping"]),
    ("training.split_backward", "true", ["training.split_backward", "true or false is needed"]),
    ("training.split_backward", 1, ["training.split_backward", "true or false is needed"]),
    ("training.recompute", True, ["training.recompute", "'none'"]),
    ("training.recompute", "some", ["training.recompute", "'none', 'full' or 'auto'"]),
    ("training.op_overhead_us", "1", ["training.op_overhead_us", "number"]),
    ("stages", [], ["stages", "mapping"]),
    ("stages.max_per_device", "4", ["stages.max_per_device", "whole number is needed"]),
    ("stages.count", 2.0, ["stages.count", "whole number is needed"]),
    ("stages.partition", "3,3", ["stages.partition", "list"]),
    ("stages.partition", ["3", 3], ["stages.partition[0]", "whole number is needed"]),
    ("stages.placement", "spiral", ["stages.placement", "'free'"]),
    ("stages.placement", 1, ["stages.placement", "'free'"]),
    ("stages.placement", {}, ["stages.placement"]),
    ("stages.placement", ["0", "1"], ["stages.placement[0]", "whole number is needed"]),
    ("stages.keep_together", [0, 1], ["stages.keep_together[0]", "list"]),
    ("stages.keep_together", [[0]], ["stages.keep_together[0]", "at least 2"]),
    ("stages.keep_together", [[0, 1, 2]], ["stages.keep_together[0]", "at most 2"]),
    ("stages.keep_together", [["E", "T"]], ["stages.keep_together[0][0]", "whole number is needed"]),
    ("stages.colocate", [[0]], ["stages.colocate[0]", "at least 2"]),
    ("stages.colocate", [[0, 1.5]], ["stages.colocate[0][1]", "whole number is needed"]),
    ("objective", "speed", ["objective", "'makespan' or 'span'"]),
    ("objective", None, ["objective"]),
    ("tick_us", "10", ["tick_us", "number"]),
    ("tick_us", 0, ["tick_us", "greater"]),
    ("tick_us", -1, ["tick_us", "greater"]),
    ("model.name", 7, ["model.name", "text is needed"]),
    ("model.format", "octocp.model/9", ["model.format", "octocp.model/1"]),
    ("model.layers", 7, ["model.layers", "text is needed"]),
    ("model.layers", [1, 2], ["model.layers"]),
    ("model.layers", "", ["model.layers"]),
    ("model.layers", "   ", ["model", "layers", "no layer"]),
    ("model.layers", [], ["model.layers"]),
    ("model.kinds", {}, ["model.kinds", "at least 1"]),
    ("model.kinds", [], ["model.kinds", "mapping"]),
    ("model.kinds.T", 1.0, ["model.kinds.T", "mapping"]),
    ("model.kinds.T.forward_ms", "1ms", ["model.kinds.T.forward_ms", "number"]),
    ("model.kinds.T.forward_ms", True, ["model.kinds.T.forward_ms", "number"]),
    ("model.kinds.T.forward_ms", [1], ["model.kinds.T.forward_ms", "number"]),
    # Unknown keys, with the closest valid one.
    ("microbatchs", 8, ["microbatchs", "did you mean 'microbatches'?"]),
    ("cluster.device", 8, ["cluster.device", "did you mean 'devices'?"]),
    ("cluster.link.latency", 1, ["cluster.link.latency", "did you mean 'latency_us'?"]),
    (
        "cluster.link",
        {"intra_node": {"latency": 1}},
        ["cluster.link.intra_node", "did you mean 'latency_us'?"],
    ),
    ("cluster.devices", [{"memory": 1}, {}], ["cluster.devices[0]", "did you mean 'memory_gb'?"]),
    ("training.split_backwards", True, ["training", "did you mean 'split_backward'?"]),
    ("stages.keep_togehter", [], ["stages", "did you mean 'keep_together'?"]),
    ("model.kinds.T.forward", 1, ["model.kinds.T.forward", "did you mean 'forward_ms'?"]),
    ("model.layer", "EL", ["model.layer", "did you mean 'layers'?"]),
    ("model.profiles", {"a": {"kind": {}}}, ["model.profiles.a.kind", "did you mean 'kinds'?"]),
    ("qqqq", 1, ["unknown key 'qqqq'", "known keys:"]),
    # Missing keys.
    ("name", DELETE, ["name", "missing"]),
    ("model", DELETE, ["model", "missing"]),
    ("cluster", DELETE, ["cluster", "missing"]),
    ("cluster.devices", DELETE, ["cluster.devices", "missing"]),
    ("microbatches", DELETE, ["microbatches", "missing"]),
    ("model.kinds.T.forward_ms", DELETE, ["model", "kinds.T.forward_ms", "missing"]),
    ("model.layers", DELETE, ["model.layers", "missing"]),
    ("model.kinds", DELETE, ["model.kinds", "missing"]),
    # Negative, not finite, zero.
    ("model.kinds.T.forward_ms", -1, ["model.kinds.T.forward_ms", "greater than or equal to 0"]),
    ("model.kinds.T.backward_input_ms", math.nan, ["model.kinds.T.backward_input_ms", "nan", "finite"]),
    ("model.kinds.T.backward_weight_ms", math.inf, ["model.kinds.T.backward_weight_ms", "inf", "finite"]),
    ("model.kinds.T.static_gb", -0.1, ["model.kinds.T.static_gb", "greater"]),
    ("model.kinds.T.activation_gb", math.inf, ["model.kinds.T.activation_gb", "finite"]),
    ("model.kinds.T.weight_activation_gb", -math.inf, ["model.kinds.T.weight_activation_gb", "finite"]),
    ("model.kinds.T.output_mb", -5, ["model.kinds.T.output_mb", "greater"]),
    ("cluster.memory_gb", -1, ["cluster.memory_gb", "greater"]),
    ("cluster.memory_gb", math.nan, ["cluster.memory_gb", "finite"]),
    ("cluster.link.latency_us", -1, ["cluster.link.latency_us", "greater"]),
    ("training.op_overhead_us", math.inf, ["training.op_overhead_us", "finite"]),
    ("tick_us", math.nan, ["tick_us", "finite"]),
    ("cluster.devices", 0, ["cluster.devices", "greater than or equal to 1"]),
    ("cluster.devices", -2, ["cluster.devices", "greater"]),
    ("cluster.devices", [], ["cluster.devices", "at least 1"]),
    ("microbatches", 0, ["microbatches", "greater"]),
    ("microbatches", [1, 0], ["microbatches[1]", "greater"]),
    ("microbatches", [1, math.nan], ["microbatches[1]", "finite"]),
    ("stages.max_per_device", 0, ["stages.max_per_device", "greater"]),
    # Huge.
    ("model.kinds.T.forward_ms", 1e308, ["model.kinds.T.forward_ms", "less than or equal to"]),
    ("model.kinds.T.forward_ms", HUGE, ["model.kinds.T.forward_ms", "401 digits"]),
    ("model.kinds.T.static_gb", 10**20, ["model.kinds.T.static_gb", "less"]),
    ("cluster.devices", 10**9, ["cluster.devices", "less"]),
    ("cluster.devices", HUGE, ["cluster.devices", "401 digits"]),
    ("microbatches", 10**12, ["microbatches", "less"]),
    ("stages.max_per_device", 10**9, ["stages.max_per_device", "less"]),
    ("stages.count", 10**9, ["stages.count", "less"]),
    ("stages.partition", [3, 10**18], ["stages.partition[1]", "less"]),
    ("tick_us", 1e308, ["tick_us", "less"]),
    ("tick_us", 1e-300, ["tick_us", "greater"]),
    ("model.layers", "T" * 50_000, ["model.layers"]),
    ("model.layers", "T" * 20_000, ["layers", "20000 layers", "at most 10000"]),
    # What contradicts what.
    ("model.layers", "ETXTL", ["layer 2", "'X'", "known kinds: 'E', 'T', 'L'"]),
    ("model.layers", ["E", "T", "head"], ["layer 2", "'head'"]),
    ("model.profiles", {"p": {"kinds": {"Q": {"forward_ms": 1}}}}, ["kinds.Q", "unknown kind"]),
    ("stages.partition", [3, 4], ["stages.partition", "sums to 7", "has 6"]),
    ("stages.partition", [2, 2, 2], ["stages.partition", "3 stages on 2 devices", "max_per_device"]),
    ("stages.partition", [6], ["stages.partition", "1 stages for 2 devices"]),
    ("stages.partition", [], ["stages.partition", "at least 1"]),
    ("stages.partition", [0, 6], ["stages.partition[0]", "greater"]),
    ("stages.partition", [-1, 7], ["stages.partition[0]", "greater"]),
    ("stages.partition", [1, 5], ["stages.keep_together[0]", "layers 0 to 1", "cuts between them"]),
    ("stages.count", 1, ["stages.count", "every device needs at least one"]),
    ("stages.count", 3, ["stages.count", "max_per_device"]),
    ("stages.keep_together", [[1, 0]], ["stages.keep_together[0]", "backwards", "[0, 1]"]),
    ("stages.keep_together", [[4, 6]], ["stages.keep_together[0]", "layer 6 does not exist", "0..5"]),
    ("stages.keep_together", [[-1, 1]], ["stages.keep_together[0][0]", "greater"]),
    ("stages.colocate", [[0, 6]], ["stages.colocate[0]", "layer 6 does not exist"]),
    ("stages.placement", [0, 2], ["stages.placement[1]", "device 2 does not exist"]),
    ("stages.placement", [1, 1], ["stages.placement", "device 0 holds no stage"]),
    ("stages.placement", [0, -1], ["stages.placement[1]", "greater"]),
    ("stages.placement", [0, 1, 0], ["stages.placement", "max_per_device"]),
    ("stages", {"placement": [0, 1], "partition": [2, 2, 2]}, ["stages.placement", "must agree"]),
    ("stages", {"placement": "linear", "count": 4}, ["stages.placement", "must agree"]),
    (
        "stages",
        {"placement": [0, 1], "partition": [3, 3], "colocate": [[0, 5]]},
        ["stages.colocate[0]", "must share a device"],
    ),
    ("cluster.devices", [{"name": "a"}, {"name": "a"}], ["cluster.devices", "'a' is given twice"]),
    # In the format, not in this version.
    ("training.recompute", "full", ["training.recompute", "not supported yet: "]),
    ("training.recompute", "auto", ["training.recompute", "not supported yet: "]),
    ("cluster.devices", [{"speed": 1}, {"speed": 2}], ["cluster.devices", "not supported yet: "]),
    ("microbatches", [1, 2], ["microbatches", "not supported yet: "]),
]


@pytest.mark.parametrize("suffix", ["yaml", "json"])
@pytest.mark.parametrize(("path", "value", "words"), FIELDS)
def test_field(tmp_path: Path, path: str, value: Any, words: list[str], suffix: str) -> None:
    data = changed(path, value)
    file = write(tmp_path, data, f"broken.{suffix}")
    line = refused("bound", file)
    assert str(file) in line
    for word in words:
        assert word in line, line


def test_the_good_one_is_good(tmp_path: Path) -> None:
    assert octocp("bound", write(tmp_path, GOOD)).code == 0
    assert octocp("bound", write(tmp_path, GOOD, "good.json")).code == 0


def test_yaml_errors_name_the_line(tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(yaml.safe_dump(GOOD, sort_keys=False) + "stage: {}\n")
    line = refused("bound", file)
    number = len(file.read_text().splitlines())
    assert f"line {number}: stage: unknown key" in line


BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
TEXT = yaml.safe_dump(GOOD, sort_keys=False)
# fmt: off
# ruff: noqa: E501
CONTENTS: dict[str, tuple[str, bytes, list[str]]] = {
    "empty": (".yaml", b"", ["is empty"]),
    "blank": (".yaml", b"  \n\n", ["is empty"]),
    "only comments": (".yaml", b"# nothing\n# here\n", ["is empty"]),
    "empty json": (".json", b"", ["is empty"]),
    "null": (".yaml", b"null\n", ["not a mapping"]),
    "a word": (".yaml", b"hello\n", ["not a mapping"]),
    "a number": (".json", b"5", ["not a mapping"]),
    "a list": (".yaml", b"- a\n- b\n", ["not a mapping"]),
    "binary": (".yaml", bytes(range(256)) * 20, ["not UTF-8 text"]),
    "an image": (".yaml", b"\x89PNG\r\n\x1a\n" + bytes(200), ["not UTF-8 text"]),
    "NUL bytes": (".yaml", b"format: a\0b\n", ["NUL"]),
    "control character": (".yaml", b"format: a\x01b\n", ["not valid YAML"]),
    "latin-1": (".yaml", "name: é\n".encode("latin-1"), ["not UTF-8 text"]),
    "UTF-16": (".yaml", TEXT.encode("utf-16"), ["not UTF-8 text"]),
    "UTF-16 without mark": (".yaml", TEXT.encode("utf-16-le"), ["NUL"]),
    "UTF-32": (".json", json.dumps(GOOD).encode("utf-32"), ["not UTF-8 text"]),
    "billion laughs": (".yaml", BOMB.encode(), ["expands to more than"]),
    "bomb in a value": (".yaml", (BOMB + TEXT + "description: *a11\n").encode(), ["expands to more than"]),
    "bomb of mappings": (
        ".yaml",
        ("a0: &a0 {x: 1, y: 2}\n" + "".join(f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}\n" for n in range(1, 50))).encode(),
        ["expands to more than"],
    ),
    "itself inside itself": (".yaml", b"a: &a [*a]\n", ["nested more than"]),
    "deep list": (".yaml", b"[" * 100_000, ["nested"]),
    "deep closed list": (".yaml", b"[" * 500 + b"]" * 500, ["nested"]),
    "deep mapping": (".yaml", b"{a: " * 5_000, ["nested"]),
    "deep json": (".json", b"[" * 100_000 + b"]" * 100_000, ["nested"]),
    "deep json in a value": (".json", json.dumps(GOOD)[:-1].encode() + b', "description": ' + b"[" * 500 + b"]" * 500 + b"}", ["description"]),
    "several documents": (".yaml", (TEXT + "---\n" + TEXT).encode(), ["single document"]),
    "duplicate key": (".yaml", (TEXT + "name: other\n").encode(), ["'name' is given twice", "line"]),
    "duplicate nested key": (".yaml", b"cluster: {devices: 2, devices: 4}\n", ["'devices' is given twice"]),
    "duplicate key in json": (".json", b'{"format": "octocp.instance/1", "name": "a", "name": "b"}', ["'name' is given twice"]),
    "tabs": (".yaml", b"cluster:\n\tdevices: 2\n", ["not valid YAML", "line 2"]),
    "bad indentation": (".yaml", b"cluster:\n  devices: 2\n memory_gb: 5\n", ["not valid YAML", "line 3"]),
    "unclosed bracket": (".yaml", b"stages: {partition: [1, 2\n", ["not valid YAML", "line"]),
    "unclosed quote": (".yaml", b'name: "abc\n', ["not valid YAML"]),
    "unquoted star": (".yaml", b"model: {kinds: {*: {forward_ms: 1}}}\n", ["not valid YAML"]),
    "unknown alias": (".yaml", b"name: *nobody\n", ["not valid YAML", "nobody"]),
    "python tag": (".yaml", b"name: !!python/object/apply:os.system ['true']\n", ["tag", "not supported"]),
    "local tag": (".yaml", b"name: !secret x\n", ["tag", "not supported"]),
    "set tag": (".yaml", b"name: !!set {a, b}\n", ["tag", "not supported"]),
    "timestamp tag": (".yaml", b"name: !!timestamp x\n", ["tag", "not supported"]),
    "bool tag": (".yaml", b"name: !!bool maybe\n", ["not valid YAML"]),
    "int tag": (".yaml", b"name: !!int many\n", ["not valid YAML"]),
    "a mapping as key": (".yaml", b"? {a: 1}\n: 2\n", ["not a plain word"]),
    "merge key": (".yaml", (TEXT + "<<: {microbatches: 4}\n").encode(), ["unknown key '<<'"]),
    "yaml in json": (".json", TEXT.encode(), ["not valid JSON", "line 1"]),
    "cut json": (".json", json.dumps(GOOD)[:80].encode(), ["not valid JSON"]),
    "comma at the end": (".json", b'{"format": "octocp.instance/1",}', ["not valid JSON"]),
    "NaN in json": (".json", json.dumps(changed("tick_us", math.nan)).encode(), ["tick_us", "finite"]),
    "infinity in json": (".json", json.dumps(changed("tick_us", math.inf)).encode(), ["tick_us", "finite"]),
    "1e999 in json": (".json", json.dumps(changed("tick_us", 12345)).replace("12345", "1e999").encode(), ["tick_us", "finite"]),
    "1e999 in yaml": (".yaml", TEXT.replace("tick_us: 10", "tick_us: 1e999").encode(), ["tick_us", "finite"]),
    "long number in json": (".json", json.dumps(changed("tick_us", 12345)).replace("12345", "9" * 5000).encode(), ["tick_us", "5000 digits"]),
    "a plan": (".json", b'{"format": "octocp.plan/1"}', ["format", "octocp.instance/1"]),
    "a model": (".yaml", b"format: octocp.model/1\nname: x\n", ["format", "octocp.instance/1"]),
    "no format": (".yaml", b"name: x\n", ["format", "missing"]),
}
# fmt: on


@pytest.mark.parametrize("case", CONTENTS)
@pytest.mark.parametrize("command", ["bound", "solve"])
def test_content(tmp_path: Path, case: str, command: str) -> None:
    suffix, content, words = CONTENTS[case]
    file = tmp_path / f"broken{suffix}"
    file.write_bytes(content)
    line = refused(command, file)
    assert str(file) in line
    for word in words:
        assert word in line, line


def test_small_anchors_are_fine(tmp_path: Path) -> None:
    text = TEXT.replace("memory_gb: 40", "memory_gb: &gb 40") + "description: &d text\n"
    file = tmp_path / "anchors.yaml"
    file.write_text(text.replace("tick_us: 10", "tick_us: *gb"))
    assert octocp("bound", file).code == 0


@pytest.mark.parametrize("command", ["solve", "bound", "compare"])
def test_where_there_is_no_file(tmp_path: Path, command: str) -> None:
    assert "is a folder" in refused(command, tmp_path)
    assert "no such file" in refused(command, tmp_path / "missing.yaml")
    assert "no such file" in refused(command, tmp_path / "missing" / "deeper.json")
    assert "did you mean 'tiny-memory'?" in refused(command, "tiny-memry")
    assert "octocp instances" in refused(command, "zzzzzzzz")
    assert "names no instance" in refused(command, "")
    assert "too long" in refused(command, "x" * 300)
    assert "no such file" in refused(command, "~nobody-of-this-name/x.yaml")
    os.mkfifo(tmp_path / "pipe.yaml")
    assert "not a regular file" in refused(command, tmp_path / "pipe.yaml")
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    assert "loop.yaml" in refused(command, tmp_path / "loop.yaml")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_that_may_not_be_read(tmp_path: Path) -> None:
    file = write(tmp_path, GOOD)
    file.chmod(0)
    assert "cannot be read: Permission denied" in refused("bound", file)


def test_too_large(tmp_path: Path) -> None:
    file = tmp_path / "large.yaml"
    with file.open("wb") as out:
        out.truncate(9 * 2**20)
    assert "bytes; at most" in refused("bound", file)


MODEL = {"format": "octocp.model/1", **GOOD["model"]}
MODELS: list[tuple[Any, list[str]]] = [
    (changed("format", "octocp.instance/1", MODEL), ["format", "octocp.model/1"]),
    (changed("format", DELETE, MODEL), ["format", "missing"]),
    (changed("kinds.T.forward_ms", -1, MODEL), ["kinds.T.forward_ms", "greater"]),
    (changed("kinds.T.froward_ms", 1, MODEL), ["kinds.T.froward_ms", "did you mean 'forward_ms'?"]),
    (changed("layers", "EXL", MODEL), ["'X'"]),
    (changed("provenance", {"kind": "guessed"}, MODEL), ["provenance.kind", "'measured'"]),
    ([1], ["not a mapping"]),
]


@pytest.mark.parametrize(("model", "words"), MODELS)
def test_broken_model_file(tmp_path: Path, model: Any, words: list[str]) -> None:
    """The line names the model's file, not that of the instance that uses it."""
    model_file = write(tmp_path, model, "model.yaml")
    line = refused("bound", write(tmp_path, changed("model", "model.yaml")))
    assert str(model_file) in line
    for word in words:
        assert word in line, line


def test_model_file_missing_or_a_folder(tmp_path: Path) -> None:
    file = write(tmp_path, changed("model", "elsewhere.yaml"))
    line = refused("bound", file)
    assert str(file) in line
    assert "model" in line
    assert "no such file" in line
    (tmp_path / "elsewhere.yaml").mkdir()
    assert "is a folder" in refused("bound", file)


def test_too_fine_a_grid(tmp_path: Path) -> None:
    data = changed("model.kinds.T.forward_ms", 3.6e6)
    data["tick_us"] = 0.001
    data["microbatches"] = 16_384
    line = refused("bound", write(tmp_path, data))
    assert "broken.yaml: tick_us" in line
    assert "coarser" in line


# ---------------------------------------------------------------------------------------------
# Plans


@pytest.fixture(scope="module")
def good_plan(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("plan")
    ran = octocp("solve", write(folder, GOOD), "-o", folder / "p.json", "-w", 1, "-t", 20, "-q")
    assert ran.code == 0, ran
    plan: dict[str, Any] = json.loads((folder / "p.json").read_text())
    return plan


PLAN_FIELDS: list[tuple[str, Any, list[str]]] = [
    ("format", "octocp.instance/1", ["format", "octocp.plan/1"]),
    ("format", DELETE, ["format", "missing"]),
    ("instance", DELETE, ["instance", "missing"]),
    ("instance", "nemotron", ["instance", "mapping"]),
    ("instance.model", "nemotron", ["instance.model", "mapping"]),
    ("instance.cluster.devices", 0, ["instance.cluster.devices", "greater"]),
    ("instance.model.layers", "EQL", ["instance.model", "'Q'"]),
    ("instance.stages.partition", [1, 1], ["instance", "stages.partition", "sums to 2"]),
    ("method", 5, ["method", "text is needed"]),
    ("status", "perfect", ["status", "'optimal' or 'feasible'"]),
    ("tick_us", 0, ["tick_us", "greater"]),
    ("tick_us", "10", ["tick_us", "number"]),
    ("partition", [], ["partition", "at least 1"]),
    ("partition", [0, 6], ["partition[0]", "greater"]),
    ("partition", "3,3", ["partition", "list"]),
    ("partition", [10**25, 1], ["partition[0]", "less"]),
    ("placement", [0, -1], ["placement[1]", "greater"]),
    ("placement", [0, 10**6], ["placement[1]", "less"]),
    ("placement", None, ["placement"]),
    ("recompute", [0, 0], ["recompute[0]", "true or false is needed"]),
    ("objective", "both", ["objective", "'makespan' or 'span'"]),
    ("makespan", -1, ["makespan", "greater"]),
    ("makespan", 1.5, ["makespan", "whole number is needed"]),
    ("makespan", 10**25, ["makespan", "less"]),
    ("lower_bound", HUGE, ["lower_bound", "401 digits"]),
    ("span", "12", ["span", "whole number is needed"]),
    ("peak_memory_gb", [-1, 1], ["peak_memory_gb[0]", "greater"]),
    ("peak_memory_gb", 5, ["peak_memory_gb", "list"]),
    ("ops", {}, ["ops", "list"]),
    ("ops", DELETE, ["ops", "missing"]),
    ("ops.0", 5, ["ops[0]", "mapping"]),
    ("ops.0.kind", "X", ["ops[0].kind", "'F', 'B' or 'W'"]),
    ("ops.0.start", -5, ["ops[0].start", "greater"]),
    ("ops.0.start", "0", ["ops[0].start", "whole number is needed"]),
    ("ops.0.end", 10**30 - 1, ["ops[0].end", "less"]),
    ("ops.0.stage", None, ["ops[0].stage"]),
    ("ops.0.device", DELETE, ["ops[0].device", "missing"]),
    ("ops.0.microbatch", 10**9, ["ops[0].microbatch", "less"]),
    ("ops.0.begin", 1, ["ops[0].begin", "unknown key"]),
    ("makespam", 1, ["makespam", "did you mean 'makespan'?"]),
    ("solve", [], ["solve", "mapping"]),
    ("solve.seconds", "1", ["solve.seconds", "number"]),
    ("solve.second", 1, ["solve.second", "did you mean 'seconds'?"]),
]


@pytest.mark.parametrize("command", ["check", "show", "export"])
@pytest.mark.parametrize(("path", "value", "words"), PLAN_FIELDS)
def test_plan_field(
    tmp_path: Path, good_plan: dict[str, Any], path: str, value: Any, words: list[str], command: str
) -> None:
    file = write(tmp_path, changed(path, value, good_plan), "broken.json")
    line = refused(command, file, *(["-o", tmp_path / "out"] if command == "export" else []))
    assert str(file) in line
    for word in words:
        assert word in line, line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("case", [name for name, (suffix, _, _) in CONTENTS.items() if suffix == ".json"])
@pytest.mark.parametrize("command", ["check", "show", "export"])
def test_plan_content(tmp_path: Path, case: str, command: str) -> None:
    file = tmp_path / "broken.json"
    file.write_bytes(CONTENTS[case][1])
    assert str(file) in refused(command, file, *(["-o", tmp_path / "out"] if command == "export" else []))


@pytest.mark.parametrize("command", ["check", "show", "export"])
def test_where_there_is_no_plan(tmp_path: Path, command: str) -> None:
    assert "is a folder" in refused(command, tmp_path)
    assert "no such file" in refused(command, tmp_path / "missing.plan.json")
    line = refused(command, "tiny-memory")
    assert "no such file" in line
    assert "octocp solve tiny-memory" in line
    line = refused(command, write(tmp_path, GOOD))
    assert "octocp.plan/1" in line
    assert "the file is an instance, and a plan is needed here" in line
    assert "octocp solve" in line
    assert "the file is a model" in refused(command, catalog.models()["llama-2-7b"])


def test_plan_as_instance(tmp_path: Path, good_plan: dict[str, Any]) -> None:
    line = refused("solve", write(tmp_path, good_plan, "p.json"))
    assert "'octocp.plan/1': the file is a plan" in line
    assert "octocp.instance/1" in line


@pytest.mark.parametrize("command", ["solve", "bound", "compare"])
def test_model_as_instance(command: str) -> None:
    line = refused(command, "nemotron-nano-v2-9b")
    assert "is a model, not an instance" in line
    assert "instances that use it: nemotron-nano-v2-9b-p4-m16, " in line
    assert "octocp instances nemotron-nano-v2-9b" in line
    assert "octocp new" in refused(command, "llama-2-7b")
    line = refused(command, catalog.models()["llama-2-7b"])
    assert "the file is a model, and an instance is needed here" in line


# Plans that the schema accepts and that are nonsense: shown, or refused with a reason; never a crash.
NONSENSE: list[tuple[str, Any]] = [
    ("ops", []),
    ("partition", [6]),
    ("partition", [1, 1, 1, 1, 1, 1]),
    ("partition", [10_000, 10_000]),
    ("placement", [0, 0]),
    ("placement", [0]),
    ("placement", [0, 1000]),
    ("placement", [0, 1, 0, 1, 0, 1]),
    ("recompute", []),
    ("recompute", [True, True]),
    ("peak_memory_gb", []),
    ("peak_memory_gb", [1e300, 1.0]),
    ("tick_us", 1e300),
    ("tick_us", 5e-324),
    ("makespan", 0),
    ("makespan", 2**62),
    ("span", 2**62),
    ("lower_bound", 2**62),
    ("ops.0.start", 2**62),
    ("ops.0.end", 2**62),
    ("ops.0.device", 1000),
    ("ops.0.stage", 9_999),
    ("ops.0.microbatch", 16_000),
    ("instance.name", "a\nb\x1b[31m\ud800\u202e"),
    ("instance.cluster.devices", 1_024),
    ("instance.microbatches", 1_000),
    ("instance.tick_us", 1e9),
    ("instance.model.layers", "E"),
]


@pytest.mark.parametrize(("path", "value"), NONSENSE)
def test_nonsense_plan(tmp_path: Path, good_plan: dict[str, Any], path: str, value: Any) -> None:
    file = write(tmp_path, changed(path, value, good_plan), "nonsense.json")
    checked = octocp("check", file)
    assert checked.code in {0, 1, 2}, checked
    commands: list[list[object]] = [["show", file], ["show", file, "--json"]]
    commands += [["export", file, "--to", to, "-o", tmp_path / "out"] for to in ("trace", "svg", "csv")]
    for command in commands:
        ran = octocp(*command)
        assert ran.code in {0, 2}, (command, ran)
        assert "bug in OctoCP" not in ran.err, (command, ran)
        if checked.code == 1:
            assert "nonsense.json" in ran.err
            assert len(ran.err.splitlines()) <= 2
