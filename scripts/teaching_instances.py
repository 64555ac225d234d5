"""The three teaching instances: complete files whose comments teach the format."""

from __future__ import annotations

TWO_DEVICES = """\
# The smallest useful instance: seven layers, two devices, three microbatches.
#
#   octocp solve tiny-two-devices
#
# One training step runs every microbatch forward through all layers and backward again. OctoCP
# decides three things at once: where to cut the layers into stages (partition), which device holds
# each stage (placement), and in which order each device runs its ops (order).
format: octocp.instance/1
name: tiny-two-devices
description: "Seven layers on two devices, a first instance. Optimum 2750 ticks (proven)."

# A model can be a name from the catalogue, the path of a model file, or, as here, written inline.
model:
  name: tiny-hybrid
  layers: "E MM*M* L"            # one symbol per layer, first to last; blanks do not count
  kinds:                         # what one layer of each kind costs per microbatch, in milliseconds
    E: {name: embedding, forward_ms: 0.4, backward_input_ms: 0.1}    # what is left out is 0
    M: {name: mamba, forward_ms: 1.0, backward_input_ms: 1.5, backward_weight_ms: 0.6}
    "*": {name: attention, forward_ms: 0.7, backward_input_ms: 0.9, backward_weight_ms: 0.4}  # quoted in YAML
    L: {name: head, forward_ms: 1.8, backward_input_ms: 1.6, backward_weight_ms: 0.3}

cluster:
  devices: 2                     # no memory_gb: no limit; no link: transfers take no time

microbatches: 3

training:
  split_backward: true           # B (gradient of the input) and W (of the weights) are two ops

stages:
  max_per_device: 2              # a device may hold up to two stages

objective: makespan              # the end of the last op
tick_us: 10                      # the time grid: results are whole numbers of 0.01 ms
"""

MEMORY = """\
# A memory limit that bites: the same step is faster with more memory.
#
#   octocp solve tiny-memory                   # 39 ticks; without memory_gb it is 36
#
# A device holds the weights of its stages all the time (static_gb) and, for every microbatch in
# flight, what the backward pass will need: activation_gb from the start of F until the end of B,
# then weight_activation_gb until the end of W. Running forward far ahead fills the pipeline early
# and costs memory; putting W off fills gaps and costs memory too.
#
# Device 0 needs two microbatches in flight to keep both devices busy. Without the limit the larger
# stage comes first, [3, 2]; three layers with two microbatches in flight are 3 + 2 x 3 = 9 GB, so
# under the limit it must come last, [2, 3], which costs three ticks.
format: octocp.instance/1
name: tiny-memory
description: "Five equal layers on two devices of 6 GB. Optimum 39 ticks (proven), 36 without the limit."

model:
  name: tiny-equal
  layers: TTTTT
  kinds:
    T:
      name: transformer
      forward_ms: 1
      backward_input_ms: 1
      backward_weight_ms: 1
      static_gb: 1               # weights, gradients and optimizer state of one layer
      activation_gb: 1           # held from the start of F until the end of B
      weight_activation_gb: 0.5  # held from the end of B until the end of W
      output_mb: 32              # what crosses to the next layer; unused here, since the link is instant

cluster:
  devices: 2
  memory_gb: 6                   # per device

microbatches: 4

stages:
  max_per_device: 1              # one stage per device
  placement: linear              # stage 0 on device 0, stage 1 on device 1; the partition is still free

tick_us: 1000                    # one tick is 1 ms
"""

UNEVEN_HEAD = """\
# Why equal numbers of layers are not equal work: a language-model head that weighs as much as
# several blocks.
#
#   octocp solve tiny-uneven-head
#   octocp compare tiny-uneven-head            # 1F1B and others on the uniform split
#
# The uniform split [4, 3, 3] (E with 3 blocks, 3 blocks, 2 blocks with L) gives the devices 80, 72 and
# 120 ticks of work: no order of it ends before 133. The split [4, 4, 2] (80, 96 and 96 ticks) ends at
# 116, which no plan beats.
format: octocp.instance/1
name: tiny-uneven-head
description: "A heavy head on three devices. Optimum 116 ticks (proven), 133 with the uniform split."

model:
  name: tiny-big-head
  layers: "E TTTTTTTT L"
  kinds:
    E: {name: embedding, forward_ms: 0.5, backward_input_ms: 0.5}
    T: {name: transformer, forward_ms: 1, backward_input_ms: 1, backward_weight_ms: 1}
    L: {name: head, forward_ms: 4, backward_input_ms: 4, backward_weight_ms: 1}

cluster:
  devices: 3

microbatches: 4

stages:
  max_per_device: 1
  keep_together: [[0, 1], [8, 9]]   # E stays with the first block, L with the last one; layers count from 0

tick_us: 500                     # one tick is 0.5 ms
"""

# Name, text and optimal makespan. The optima come from enumerating every partition and placement and
# solving the order of each with CP-SAT.
TEACHING = (
    ("tiny-two-devices", TWO_DEVICES, 2750),
    ("tiny-memory", MEMORY, 39),
    ("tiny-uneven-head", UNEVEN_HEAD, 116),
)
