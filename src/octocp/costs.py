"""The cost model: profiled milliseconds, gigabytes and links to the integers of `Problem`.

Rounding follows the semantics: each layer's cost is rounded to ticks on its own (halves up, in decimal
arithmetic; a fused B is rounded B plus rounded W), then summed over the stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from math import ceil, gcd, lcm

from octocp.errors import InfeasibleError, InputError, UnsupportedError
from octocp.problem import Family, Problem
from octocp.schema import Device, Instance, Link, LinkByNode

MAX_HORIZON = 2**53
MAX_OPS = 2_000_000
# CP-SAT wants the sum of all domains in 64 bits; these leave room for every variable that has one of either.
MAX_TICKS_TIMES_OPS = 2**59
MAX_UNITS_TIMES_PLACES = 2**58
# Where sizes are rounded to a coarse unit: peaks stay true to the checker's 10^-6.
LEAST_UNITS = 2_000_000
# Rounding to a thousandth of a byte needs no excuse.
FINE_UNIT_GB = Fraction(1, 10**12)


def build_problem(instance: Instance) -> Problem:
    """Turn a validated instance into integers.

    Raises
    ------
    UnsupportedError
        Unequal devices or microbatches, or recomputation: in the format, not in this version.
    InputError
        Numbers too large for the time grid, or too far apart.
    InfeasibleError
        Fewer indivisible runs of layers than devices or stages.
    """
    _refuse_unsupported(instance)
    model = instance.model.flattened(instance.profile)
    kinds = [model.kinds[kind] for kind in model.layer_kinds()]
    tick = Fraction(_decimal(instance.tick_us))
    forward = tuple(_ticks(kind.forward_ms or 0.0, instance.tick_us) for kind in kinds)
    backward = tuple(_ticks(kind.backward_input_ms, instance.tick_us) for kind in kinds)
    weight = tuple(_ticks(kind.backward_weight_ms, instance.tick_us) for kind in kinds)
    split = instance.training.split_backward
    if not split:
        backward = tuple(b + w for b, w in zip(backward, weight, strict=True))
        weight = (0,) * len(kinds)
    devices = instance.cluster.device_list()
    lengths = [Fraction(_decimal(length)) for length in instance.lengths()]
    speeds = {device.speed for device in devices}
    scale_rows = {speed: tuple(length / Fraction(_decimal(speed)) for length in lengths) for speed in speeds}
    link_class, delay_ticks = _links(instance, devices, [kind.output_mb for kind in kinds], lengths, tick)
    cuttable = _cuttable(len(kinds), instance.stages.keep_together)
    min_stages, max_stages, max_per_device = _stage_limits(instance, sum(cuttable[:-1]), len(devices))
    most_units = MAX_UNITS_TIMES_PLACES // (max_stages * len(devices))
    unit = _memory_unit(instance, most_units)
    static = tuple(_memory(kind.static_gb, unit) for kind in kinds)
    activation = _by_length([kind.activation_gb for kind in kinds], lengths, unit)
    weight_activation = _by_length([kind.weight_activation_gb for kind in kinds], lengths, unit)
    # All sizes together are at most `most_units`: a limit above that limits nothing.
    capacity = tuple(
        None if device.memory_gb is None else min(most_units, int(Fraction(_decimal(device.memory_gb)) / unit))
        for device in devices
    )
    placement = instance.stages.placement
    family: Family = "fixed" if isinstance(placement, list) else placement
    problem = Problem(
        name=instance.name,
        objective=instance.objective,
        split=split,
        layer_ticks=(forward, backward, weight),
        scale=tuple(scale_rows[device.speed] for device in devices),
        overhead=Fraction(_decimal(instance.training.op_overhead_us)) / tick,
        delay_ticks=delay_ticks,
        link_class=link_class,
        static=static,
        activation=activation,
        weight_activation=weight_activation if split else tuple((0,) * len(kinds) for _ in lengths),
        capacity=capacity,
        memory_unit_gb=unit,
        limit_gb=tuple(device.memory_gb for device in devices),
        min_stages=min_stages,
        max_stages=max_stages,
        max_per_device=max_per_device,
        partition=None if instance.stages.partition is None else tuple(instance.stages.partition),
        family=family,
        placement=tuple(placement) if isinstance(placement, list) else None,
        cuttable=cuttable,
        colocate=tuple(tuple(sorted(set(group))) for group in instance.stages.colocate if len(set(group)) > 1),
        device_class=_device_classes(devices, capacity, link_class),
        device_names=tuple(str(device.name) for device in devices),
    )
    problem = _with_few_digits(problem)
    _refuse_oversize(problem, instance)
    return problem


def _decimal(value: float) -> Decimal:
    """Return the decimal that was written in the file (the shortest one that reads back as this float)."""
    return Decimal(repr(value))


def _ticks(milliseconds: float, tick_us: float) -> int:
    return int((_decimal(milliseconds) * 1000 / _decimal(tick_us)).quantize(Decimal(1), rounding=ROUND_HALF_UP))


def _refuse_unsupported(instance: Instance) -> None:
    if instance.training.recompute != "none":
        raise UnsupportedError(
            f"recompute {instance.training.recompute!r}", place="training.recompute", right="recompute: none"
        )
    if len(set(instance.lengths())) > 1:
        raise UnsupportedError(
            "microbatches of unequal length", place="microbatches", right="a number, or equal lengths"
        )
    if len({device.speed for device in instance.cluster.device_list()}) > 1:
        raise UnsupportedError("devices of unequal speed", place="cluster.devices", right="equal speeds")


def _with_few_digits(problem: Problem) -> Problem:
    """Return the problem with a scale and an overhead of fewer digits, where those it has would leave 64 bits.

    Every op takes the same ticks as before, whatever the cuts: a third written as 0.3333333333333333 loses nothing.
    """
    scale, overhead = problem.scale[0][0], problem.overhead
    if _fits_64_bits(problem):
        return problem
    most = max(1, *map(sum, problem.layer_ticks))
    slopes = {scale, _least_from(scale * overhead.denominator, most) / overhead.denominator}
    # A sum of layers, scaled by n/d, is a multiple of 1/d, so rounding the overhead up to one changes no op.
    pairs = [
        (slope, rest)
        for slope in slopes
        for rest in (overhead, Fraction(ceil(overhead * slope.denominator), slope.denominator))
    ]
    slope, rest = min(pairs, key=lambda pair: pair[0].denominator * pair[1].denominator)
    rows = ((slope,) * problem.n_microbatches,) * problem.n_devices
    changed = replace(problem, scale=rows, overhead=rest)
    return changed if _fits_64_bits(changed) else problem


def _least_from(value: Fraction, most: int) -> Fraction:
    """Return the least fraction from `value` up with a denominator of at most `most`.

    Whole multiples of it, up to `most` times, round up to the same numbers as those of `value`. For that fraction is
    at most ceil(x value) / x for each such x, so x times it is from x value to ceil(x value).
    """
    if value.denominator <= most:
        return value
    # The convergents of the continued fraction, then the last step towards the next one that is small enough:
    # neighbours among the fractions with such denominators, one on each side.
    before, last = (0, 1), (1, 0)
    rest = value
    while True:
        whole = rest.numerator // rest.denominator
        if before[1] + whole * last[1] > most:
            break
        before, last = last, (before[0] + whole * last[0], before[1] + whole * last[1])
        rest = 1 / (rest - whole)
    steps = (most - before[1]) // last[1]
    return max(Fraction(*last), Fraction(before[0] + steps * last[0], before[1] + steps * last[1]))


def _fits_64_bits(problem: Problem) -> bool:
    """Tell whether rounding up after scaling can be done in whole numbers: ticks x the denominators."""
    common = problem.scale[0][0].denominator * problem.overhead.denominator
    return problem.serial_ticks * common <= MAX_TICKS_TIMES_OPS


def _refuse_oversize(problem: Problem, instance: Instance) -> None:
    ops = problem.min_stages * problem.n_microbatches * len(problem.kinds)
    if ops > MAX_OPS:
        raise InputError(
            f"at least {ops} ops to schedule; at most {MAX_OPS}",
            place="microbatches",
            right="fewer microbatches or stages",
        )
    ops = problem.max_stages * problem.n_microbatches * len(problem.kinds)
    horizon = min(MAX_HORIZON, MAX_TICKS_TIMES_OPS // min(ops, MAX_OPS))
    if problem.serial_ticks > horizon:
        raise InputError(
            f"the step takes up to {problem.serial_ticks:.3g} ticks; at most {horizon:.3g}",
            place="tick_us",
            right=f"a coarser grid than {instance.tick_us:g} us",
        )
    if not _fits_64_bits(problem):
        raise InputError(
            f"relative length over speed is {problem.scale[0][0]} and the overhead {problem.overhead} ticks: "
            "too many digits",
            place="training.op_overhead_us" if problem.scale[0][0].denominator == 1 else "microbatches",
            right="fewer digits, or a coarser grid",
        )


def _links(
    instance: Instance,
    devices: Sequence[Device],
    output_mb: Sequence[float],
    lengths: Sequence[Fraction],
    tick: Fraction,
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[tuple[int, ...], ...], ...]]:
    """Return the link class of each device pair and the delay by class, microbatch and boundary.

    Both directions of a boundary cost the same: the gradient that comes back has the size of the
    activation that went out.
    """
    link = instance.cluster.link
    links = [link.intra_node, link.inter_node] if isinstance(link, LinkByNode) else [link]
    by_node = len(links) > 1

    def class_of(one: int, other: int) -> int:
        if one == other:
            return 0
        return 2 if by_node and devices[one].node != devices[other].node else 1

    link_class = tuple(tuple(class_of(one, other) for other in range(len(devices))) for one in range(len(devices)))
    still = (0,) * (len(output_mb) + 1)
    delays = [tuple(still for _ in lengths)]
    for one in links:
        made = {length: _delays(one, output_mb, length, tick) for length in set(lengths)}
        delays.append(tuple(made[length] for length in lengths))
    return link_class, tuple(delays)


def _delays(link: Link, output_mb: Sequence[float], length: Fraction, tick: Fraction) -> tuple[int, ...]:
    """Ticks over each boundary: latency plus bytes over bandwidth (MB over GB/s is ms), rounded up."""
    made = [0]
    for megabytes in output_mb[:-1]:
        microseconds = Fraction(_decimal(link.latency_us))
        if link.bandwidth_gb_s is not None:
            microseconds += Fraction(_decimal(megabytes)) * length * 1000 / Fraction(_decimal(link.bandwidth_gb_s))
        made.append(int(-(-(microseconds / tick) // 1)))
    return (*made, 0)


def _memory_unit(instance: Instance, most_units: int) -> Fraction:
    """Return the largest unit in which all sizes are whole numbers, exactly as they are written.

    Small numbers keep the cumulative constraints small. Limits round down to the unit, which costs nothing: what is
    held is a whole number of units. Only where the sum of everything that could ever be held would
    pass `most_units` is the unit as coarse as that asks, sizes rounding up and limits down, by less than
    one part in `LEAST_UNITS` or 10^-12 GB: a plan that fits in units still fits in gigabytes.
    """
    model = instance.model.flattened(instance.profile)
    layers = model.layer_kinds()
    counts = Counter(layers)
    lengths = Counter(instance.lengths())
    held: Counter[Fraction] = Counter()  # size: how often it could be held at once
    for name, times in counts.items():
        kind = model.kinds[name]
        held[Fraction(_decimal(kind.static_gb))] += times
        for gigabytes in (kind.activation_gb, kind.weight_activation_gb):
            for length, microbatches in lengths.items():
                held[Fraction(_decimal(gigabytes)) * Fraction(_decimal(length))] += times * microbatches
    del held[Fraction(0)]
    if not held:
        return Fraction(1)
    common = lcm(*(size.denominator for size in held))
    unit = Fraction(gcd(*(int(size * common) for size in held)), common)
    total = sum((size * times for size, times in held.items()), Fraction(0))
    if total <= most_units * unit:
        return unit
    # Rounding up adds less than one unit a number.
    room = most_units - held.total()
    unit = total / room if room > 0 else total
    if unit > FINE_UNIT_GB and min(held) < LEAST_UNITS * unit:
        raise InputError(
            f"sizes too far apart: from {float(min(held)):.6g} GB to {float(total):.6g} GB in all, to the last digit",
            place="model.kinds",
            right="sizes rounded to a few digits",
        )
    return unit


def _memory(gigabytes: float, unit: Fraction) -> int:
    return -int(-(Fraction(_decimal(gigabytes)) / unit) // 1)


def _by_length(sizes: Sequence[float], lengths: Sequence[Fraction], unit: Fraction) -> tuple[tuple[int, ...], ...]:
    made = {
        length: tuple(-int(-(Fraction(_decimal(size)) * length / unit) // 1) for size in sizes)
        for length in set(lengths)
    }
    return tuple(made[length] for length in lengths)


def _cuttable(layers: int, keep_together: Sequence[Sequence[int]]) -> tuple[bool, ...]:
    cuttable = [True] * (layers + 1)
    for first, last in keep_together:
        cuttable[first + 1 : last + 1] = [False] * (last - first)
    return tuple(cuttable)


def _stage_limits(instance: Instance, units: int, devices: int) -> tuple[int, int, int]:
    """Return the least and the largest number of stages, and how many a device may hold."""
    rules = instance.stages
    held = " (layers kept together count as one)" if rules.keep_together else ""
    if units < devices:
        raise InfeasibleError(
            f"fewer layers than devices: {units} layers{held} cannot give each of {devices} devices a stage; "
            f"{devices - units} too few"
        )
    count = rules.count
    if rules.partition is not None:
        count = len(rules.partition)
    elif isinstance(rules.placement, list):
        count = len(rules.placement)
    elif rules.placement == "linear":
        count = devices
    if count is not None and count > units:
        raise InfeasibleError(f"fewer layers than stages: {units} layers{held} cannot fill {count} stages")
    per_device = min(rules.max_per_device or units, units - devices + 1)
    if count is not None:
        return count, count, min(rules.max_per_device or units, count - devices + 1)
    largest = min(units, devices * (rules.max_per_device or units))
    return devices, largest, per_device


def _device_classes(
    devices: Sequence[Device], capacity: Sequence[int | None], link_class: Sequence[Sequence[int]]
) -> tuple[int, ...]:
    """Number the classes of interchangeable devices.

    Two devices are interchangeable when swapping them changes nothing: equal speed and capacity,
    and the same link class to every third device.
    """
    classes: list[int] = []
    leaders: list[int] = []
    for index, device in enumerate(devices):
        for number, leader in enumerate(leaders):
            others = [other for other in range(len(devices)) if other not in (index, leader)]
            if (
                devices[leader].speed == device.speed
                and capacity[leader] == capacity[index]
                and all(link_class[leader][other] == link_class[index][other] for other in others)
            ):
                classes.append(number)
                break
        else:
            classes.append(len(leaders))
            leaders.append(index)
    return tuple(classes)
