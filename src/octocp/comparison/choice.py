"""Which rows a comparison has: names of methods, with and without a partition rule."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from octocp.comparison.methods import KNOWN
from octocp.errors import InputError
from octocp.heuristics import OCTOPIPE
from octocp.heuristics.partition import ALL_PARTITION_RULES

SOLVER = "cp-sat"
BEST = "best"
"""What the best partition for a method's orders is called, after the method."""
UNIFORM = "uniform"


def row_name(method: str, rule: str) -> str:
    """Return the name of a method's row; the uniform partition goes without saying."""
    return method if rule in ("", UNIFORM) else f"{method}-{rule}"


def row_names() -> dict[str, str]:
    """Map every name that a method or a row can be asked for by to its method."""
    owner = {OCTOPIPE.name: OCTOPIPE.name, SOLVER: SOLVER}
    for heuristic in KNOWN:
        owner |= {f"{heuristic.name}-{rule}": heuristic.name for rule in (*ALL_PARTITION_RULES, BEST)}
    # Last: a method's own name may read like another one's with a rule.
    return owner | {heuristic.name: heuristic.name for heuristic in KNOWN}


class Choice:
    """The methods that are asked for.

    Parameters
    ----------
    names : collection of str
        A known schedule stands for all its rows, with a partition rule (``1f1b-balanced``, ``1f1b-uniform``) for that
        one. Empty: everything. The solver may be named; it has an option of its own.

    Raises
    ------
    InputError
        There is no method of that name; says which one is close.
    """

    def __init__(self, names: Collection[str] = ()) -> None:
        self.names = list(dict.fromkeys(names))
        owner = row_names()
        for name in self.names:
            if name not in owner:
                close = difflib.get_close_matches(name, owner, n=1)
                right = f"did you mean {close[0]!r}?" if close else f"one of {', '.join(h.name for h in KNOWN)}"
                raise InputError(f"no method is called {name!r}", place="methods", right=right)
        self._methods = {owner[name] for name in self.names}
        self._whole = {name for name in self.names if owner[name] == name}
        self._rows = {row_name(owner[name], name.removeprefix(f"{owner[name]}-")) for name in self.names}

    def method(self, name: str) -> bool:
        """Whether a method is to be run at all."""
        return not self.names or name in self._methods

    def row(self, method: str, name: str) -> bool:
        """Whether a row of a method is to be shown."""
        return not self.names or method in self._whole or name in self._rows

    def insists(self, name: str) -> bool:
        """Whether a row is asked for by its own name, and so shown even where it is no better than others."""
        return name in self._rows and name not in self._whole
