"""How violations are collected and worded: one line each, the worst first, long families cut short."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from octocp.schema import Plan, PlanOp

# Per family. A shifted op easily breaks thousands of edges; the worst few tell what happened.
MAX_LINES = 10

Amount = int | Fraction


class Violations:
    """Violations by family, in the order in which the families were first named."""

    def __init__(self) -> None:
        self._families: dict[str, list[tuple[Amount, Callable[[], str]]]] = {}
        self._uncounted: dict[str, int] = {}

    def add(self, family: str, text: str | Callable[[], str], amount: Amount = 0) -> None:
        """Note a violation; `amount` ranks it in its family, a callable `text` is worded only if shown."""
        self._families.setdefault(family, []).append((amount, (lambda: text) if isinstance(text, str) else text))

    def add_uncounted(self, family: str, count: int) -> None:
        """Note `count` further violations of a family that are not worded at all."""
        self._families.setdefault(family, [])
        self._uncounted[family] = self._uncounted.get(family, 0) + count

    def lines(self) -> list[str]:
        """Return one line per violation, at most `MAX_LINES` per family and one that counts the rest."""
        lines: list[str] = []
        for family, found in self._families.items():
            # The sort is stable: violations of equal amount stay in the order of the plan.
            ranked = sorted(found, key=lambda item: -item[0])
            lines += [f"{family}: {word()}" for _, word in ranked[:MAX_LINES]]
            rest = max(len(ranked) - MAX_LINES, 0) + self._uncounted.get(family, 0)
            if rest:
                lines.append(f"{family}: and {rest} more")
        return lines


def number(value: int) -> str:
    """Word a whole number of any size; Python refuses to print those of thousands of digits."""
    if abs(value) < 10**40:
        return str(value)
    return f"{'-' if value < 0 else ''}(a number of about {int(value.bit_length() * 0.30103) + 1} digits)"


def ticks(value: int) -> str:
    """Word a count of ticks."""
    return f"{number(value)} tick{'' if value == 1 else 's'}"


def gigabytes(value: Fraction) -> str:
    """Word a size in GB."""
    return f"{float(value):.9g} GB"


def some(items: list[str], limit: int = 8) -> str:
    """Join a list, cut short."""
    shown = items if len(items) <= limit else [*items[:limit], f"... ({len(items)} in all)"]
    return ", ".join(shown)


def numbers(values: list[int], limit: int = 8) -> str:
    """Word a list of whole numbers, cut short."""
    return f"[{some([number(value) for value in values], limit)}]"


def name_op(op: PlanOp) -> str:
    """Name an op the way all messages do."""
    return name_of(op.kind, op.stage, op.microbatch)


def name_of(kind: str, stage: int, microbatch: int) -> str:
    """Name an op by kind, stage and microbatch."""
    return f"{kind} of stage {number(stage)}, microbatch {number(microbatch)}"


def name_device(plan: Plan, device: int) -> str:
    """Name a device by index and, where it has one of its own, by name."""
    given = plan.instance.cluster.devices
    own = given[device].name if isinstance(given, list) and 0 <= device < len(given) else None
    if not own or own == f"device {device}":
        return f"device {number(device)}"
    # Violations are one line each, whatever the file calls its devices.
    return f"device {device} ({''.join(c if c.isprintable() else '?' for c in own)})"
