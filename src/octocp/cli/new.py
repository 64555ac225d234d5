"""`octocp new`: a commented starter instance."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from octocp.cli.output import ensure_writable, note, write
from octocp.errors import InputError

STARTER = """\
# An OctoCP instance: what to schedule. Solve it with
#
#   octocp solve {file}
#
# Lines that start with "# " after a key's place show the defaults; remove the "# " to change one.
format: octocp.instance/1
name: {name}

# The model: a name that `octocp models` lists, the path of a model file, or written inline as here.
model:
  name: my-model
  layers: "E TTTTTTTT L"         # one symbol per layer, first to last; or a list of kinds: [E, T, T, L]
  kinds:                         # costs of one layer of each kind, per microbatch; what is left out is 0
    E: {{name: embedding, forward_ms: 0.6, backward_input_ms: 0.2, backward_weight_ms: 0.4}}
    T:
      name: transformer
      forward_ms: 2.0
      backward_input_ms: 2.4     # B: the gradient with respect to the input
      backward_weight_ms: 1.6    # W: the gradient with respect to the weights
      static_gb: 1.5             # weights, gradients and optimizer state, there all the time
      activation_gb: 0.5         # held from the start of F until the end of B
      weight_activation_gb: 0.2  # held from the end of B until the end of W
      output_mb: 32              # what crosses to the next layer when it is on another device
    L: {{name: head, forward_ms: 3.5, backward_input_ms: 3.5, backward_weight_ms: 1.5}}
# profile: NAME                  # which of the model's profiles supplies the costs; the first by default

cluster:
  devices: 2                     # pipeline ranks: a number, or a list like [{{name: a, memory_gb: 80, node: 0}}, ...]
  memory_gb: 16                  # per device, and used to the last byte: leave headroom; no key: no limit
  link: {{latency_us: 5, bandwidth_gb_s: 100}}   # or {{intra_node: {{...}}, inter_node: {{...}}}}

microbatches: 4

training:
  split_backward: true           # false: B does the work of W too
  op_overhead_us: 0              # added to every op

stages:
  max_per_device: 2              # how many stages a device may hold; null: no limit
  # count: null                  # how many stages in all; null: the solver decides
  # partition: null              # layers per stage, e.g. [5, 5]; null: the solver decides
  # placement: free              # free, linear, interleaved, wave, or the device of each stage: [0, 1]
  keep_together: [[0, 1], [8, 9]]   # layers that may not be cut apart, first and last; layers count from 0
  # colocate: []                 # layers that must share a device, e.g. [[0, 9]] for tied embeddings

objective: makespan              # or span: the longest use of one device
tick_us: 10                      # the time grid: durations are rounded to whole ticks
"""


def new(
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="Where to write it; - is stdout.")] = Path(
        "instance.yaml"
    ),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
) -> None:
    """Write a commented instance to start from."""
    from octocp.cli.output import program, safe_stem

    text = STARTER.format(file=file if str(file) != "-" else "FILE", name=safe_stem(file.stem))
    if str(file) == "-":
        write(text)
        return
    if file.suffix.lower() == ".json":
        raise InputError("a starter instance is YAML", file=str(file), right=f"{file.stem}.yaml")
    ensure_writable(file)
    if file.exists() and not force:
        raise InputError("exists already", file=str(file), right="--force overwrites it")

    from octocp.schema.files import write_whole

    write_whole(text.encode(), file)
    note(f"Written to {file}. Next: {program()} solve {shlex.quote(str(file))}")
