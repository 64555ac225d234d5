"""`octocp profile`: measure the layers of a model, and write them as a model file."""

from __future__ import annotations

import contextlib
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octocp.cli.interrupts import ends_at_once
from octocp.cli.options import Json
from octocp.cli.output import ensure_writable, note, write_json, write_table
from octocp.cli.torch_options import Where, finite
from octocp.errors import InputError

if TYPE_CHECKING:
    from octocp.torch.profiler import LayerProfile


class Optimizer(StrEnum):
    """What is kept for each weight beside its gradient."""

    adam = "adam"
    sgd = "sgd"


def profile(
    module: Annotated[
        str,
        typer.Option(
            "--module",
            metavar="MODULE:FUNCTION",
            help="A function that returns (layers, sample) or (layers, sample, target, loss): a list of modules or an "
            "nn.Sequential, the input of one microbatch, and what the loss compares the output with.",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="[default: the function's name.yaml here]")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="The model's name. [default: the function's]")] = None,
    device: Annotated[Where, typer.Option("--device", help="Where to measure.")] = Where.cpu,
    repeats: Annotated[int, typer.Option("--repeats", metavar="N", min=3, max=100_000, help="Rounds to measure.")] = 60,
    warm_up: Annotated[int, typer.Option("--warm-up", metavar="N", min=0, max=100_000, help="Rounds before them.")] = 5,
    max_spread: Annotated[
        float,
        typer.Option(
            "--max-spread",
            metavar="SHARE",
            min=0.001,
            max=100,
            callback=finite,
            help="Refuse when the middle half of a layer's times is wider than this share of their median; "
            "0.3 will do on a busy machine.",
        ),
    ] = 0.15,
    threads: Annotated[int, typer.Option("--threads", metavar="N", min=1, max=1024, help="CPU threads.")] = 1,
    optimizer: Annotated[Optimizer, typer.Option("--optimizer", help="Counts in static_gb.")] = Optimizer.adam,
    as_json: Json = False,
) -> None:
    """Measure what each layer of a model takes.

    For one microbatch, on this machine: forward, gradient of the input, gradient of the weights, both gradients at
    once, the bytes kept for backward and the bytes handed on. Writes a model file for octocp solve. Needs
    pip install 'octocp[torch]'.
    """
    from octocp.torch.available import require_torch

    require_torch()
    function = module.rpartition(":")[2]
    path = output or Path(f"{function or 'model'}.yaml")
    ensure_writable(path)

    # What the user's code prints must not get into the report, which may be JSON.
    with ends_at_once(), contextlib.redirect_stdout(sys.stderr):
        import torch

        from octocp.torch.profile_model import hardware, model_of, write_model
        from octocp.torch.profiler import measure, refuse_noise
        from octocp.torch.signals import held_back
        from octocp.torch.sources import load
        from octocp.torch.user_code import built

        if device is Where.cuda and not torch.cuda.is_available():
            raise InputError("no GPU here", place="--device", right="cpu")
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        where = torch.device(device.value)
        work = built(module, lambda: load(module))
        profiles = measure(work, where, repeats=repeats, warm_up=warm_up)
        spread = refuse_noise(profiles, max_spread)
        text = f"torch {torch.__version__}, {repeats} rounds, largest spread {100 * spread:.1f} %"
        model = model_of(
            profiles,
            name=name or function,
            source=f"octocp profile --module {module}",
            hardware=hardware(where),
            note=text,
            optimizer=optimizer.value,
        )
    with held_back(signal.SIGINT, signal.SIGTERM):
        write_model(model, path)
    if as_json:
        kinds = model.layer_kinds()
        write_json([_data(index, kinds[index], each) for index, each in enumerate(profiles)])
    else:
        _show(profiles, model.layer_kinds())
    note(f"{text}. Written to {path}.")


def _data(index: int, kind: str, profile: LayerProfile) -> dict[str, Any]:
    times = {f"{op}_ms": timing.median for op, timing in profile.times.items()}
    return {
        "layer": index,
        "kind": kind,
        **times,
        "spread": {op: timing.spread for op, timing in profile.times.items()},
        "saved_bytes": profile.saved_bytes,
        "late_bytes": profile.late_bytes,
        "output_bytes": profile.output_bytes,
        "parameters": profile.parameters,
    }


def _show(profiles: list[LayerProfile], kinds: list[str]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="")
    headings = ("layer", "kind", "F ms", "B ms", "W ms", "B+W fused ms", "kept MB", "after B MB", "out MB")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "kind" else "right", no_wrap=True)
    for index, (profile, kind) in enumerate(zip(profiles, kinds, strict=True)):
        times = [f"{timing.median:.4g}" for timing in profile.times.values()]
        sizes = [f"{size / 1e6:.3g}" for size in (profile.saved_bytes, profile.late_bytes, profile.output_bytes)]
        table.add_row(str(index), kind, *times, *sizes)
    write_table(table)
