"""Megatron's layout string, its list form and the hybrid pattern; the order is Megatron's own."""

from __future__ import annotations

from octocp.errors import InputError
from octocp.importers.parsed import Parsed, bounds_of, check_layout, layers_for, op_of
from octocp.problem import Problem
from octocp.runtimes import megatron, megatron_order
from octocp.runtimes.layers import Layers, layers_by_count
from octocp.runtimes.megatron import HYBRID, Arguments, parse_arguments
from octocp.schedule import Layout, Op
from octocp.schema import Instance


def read_megatron(problem: Problem, text: str, instance: Instance | None = None) -> Parsed:
    """Read a layout, or command line arguments with one; pipeline rank r is device r.

    A stage without layers is dropped: in Megatron, what passes through it takes one transfer more.

    Raises
    ------
    InputError
        The layout is wrong, with the character, or does not fit the instance.
    """
    arguments = parse_arguments(text)
    ranks = problem.n_devices
    megatron.check_layout(arguments, ranks)
    counts = _counts(problem, arguments, layers_for(instance))
    kept = [number for number, count in enumerate(counts) if count]
    notes = []
    dropped = [number for number, count in enumerate(counts) if not count]
    if dropped:
        those = f"stages {', '.join(map(str, dropped))}" if len(dropped) > 1 else f"stage {dropped[0]}"
        notes.append(f"{those} without layers dropped: in Megatron, what passes through takes one transfer more")
    layout = Layout(bounds_of(counts[number] for number in kept), tuple(number % ranks for number in kept))
    check_layout(problem, layout, "layout")
    return Parsed(layout, _orders(problem, arguments, kept), problem.split, tuple(notes))


def _orders(problem: Problem, arguments: Arguments, kept: list[int]) -> list[list[Op]]:
    ranks, microbatches = problem.n_devices, problem.n_microbatches
    chunks = len(arguments.stages) // ranks
    megatron_order.check_group(ranks, chunks, microbatches, arguments.group)
    group = arguments.group or ranks
    here = {number: stage for stage, number in enumerate(kept)}
    return [
        [op for kind, number, m in steps if number in here for op in op_of(problem, kind, here[number], m)]
        for steps in megatron_order.orders(ranks, chunks, microbatches, group)
    ]


def _counts(problem: Problem, arguments: Arguments, layers: Layers | None) -> list[int]:
    """Return how many of the instance's layers each stage holds."""
    if arguments.hybrid:
        return _hybrid_counts(problem, arguments, layers)
    letters = "".join(arguments.stages)
    if layers is None:
        layers = layers_by_count(letters, problem.n_layers)
        if layers is None:
            raise InputError(f"has {len(letters)} layers; the instance has {problem.n_layers}")
    for letter, word, own in (("t", "decoder layers", layers.blocks), ("m", "layers for prediction", layers.mtp)):
        given = letters.count(letter)
        if given != own:
            place = _place_of_last(arguments, letter) if given > own else ""
            raise InputError(f"has {given} {word} ({letter}); the instance has {own}", place=place)
    # Embedding and loss that the model leaves out cost nothing and are no layers of it.
    weight = {"E": int(layers.embedding), "L": int(layers.head), "t": 1, "m": 1}
    return [sum(weight[letter] for letter in stage) for stage in arguments.stages]


def _place_of_last(arguments: Arguments, letter: str) -> str:
    for stage, places in zip(reversed(arguments.stages), reversed(arguments.places), strict=True):
        if letter in stage:
            return places[stage.rindex(letter)]
    return ""


def _hybrid_counts(problem: Problem, arguments: Arguments, layers: Layers | None) -> list[int]:
    letters = "".join(arguments.stages)
    if layers is None:
        spare = problem.n_layers - len(letters) - arguments.mtp_depths
        if spare not in (0, 2):
            raise InputError(f"has {len(letters)} layers; the instance has {problem.n_layers}")
        layers = Layers(("",) * problem.n_layers, spare == 2, spare == 2, arguments.mtp_depths)
    elif layers.blocks != len(letters) or layers.mtp != arguments.mtp_depths:
        raise InputError(
            f"has {len(letters)} layers and {arguments.mtp_depths} depths of prediction; the instance has "
            f"{layers.blocks} between embedding and head, and {layers.mtp}"
        )
    else:
        _check_kinds(arguments, layers)
    counts = [len(stage) for stage in arguments.stages]
    counts[0] += layers.embedding
    counts[-1] += layers.head + layers.mtp
    return counts


def _check_kinds(arguments: Arguments, layers: Layers) -> None:
    places = [place for row in arguments.places for place in row]
    for position, letter in enumerate("".join(arguments.stages)):
        own = layers.names[position + layers.embedding]
        if own in HYBRID.values() and HYBRID.get(letter) != own:
            raise InputError(
                f"{letter!r} is {HYBRID.get(letter, 'another kind of layer')}; layer "
                f"{position + layers.embedding} of the instance is {own}",
                place=places[position],
            )
