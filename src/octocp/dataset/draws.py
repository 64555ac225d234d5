"""Random numbers that no library version can change: whole numbers only, every stream named by what it is for.

The generator is splitmix64 (Steele, Lea and Flood, OOPSLA 2014), seeded with the SHA-256 of the stream's name. A change
here changes every data set: it needs a new version of the generator (`octocp.dataset.generate.VERSION`).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import TypeVar

ItemT = TypeVar("ItemT")

_MASK = 2**64 - 1


class Stream:
    """A sequence of random whole numbers.

    Parameters
    ----------
    *name : int or str
        What the numbers are for; equal names give equal numbers, different ones unrelated numbers.
    """

    def __init__(self, *name: int | str) -> None:
        text = "\x1f".join(map(str, name))
        self._state = int.from_bytes(sha256(text.encode()).digest()[:8], "big")

    def word(self) -> int:
        """Return the next 64 bits."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return mixed ^ (mixed >> 31)

    def below(self, limit: int) -> int:
        """Return a number from 0 to below `limit`."""
        return (self.word() * limit) >> 64

    def between(self, least: int, most: int) -> int:
        """Return a number from `least` to `most`, both included."""
        return least + self.below(most - least + 1)

    def chance(self, percent: int) -> bool:
        """Return True in `percent` of 100 cases."""
        return self.below(100) < percent

    def choice(self, items: Sequence[ItemT]) -> ItemT:
        """Return one of the items."""
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[ItemT]) -> list[ItemT]:
        """Return the items in a random order."""
        found = list(items)
        for last in range(len(found) - 1, 0, -1):
            other = self.below(last + 1)
            found[last], found[other] = found[other], found[last]
        return found

    def sample(self, items: Sequence[ItemT], count: int) -> list[ItemT]:
        """Return `count` different items in random order."""
        return self.shuffled(items)[:count]


def dealt(values: Sequence[ItemT], index: int, *name: int | str) -> ItemT:
    """Return the value of the `index`-th instance: dealt from shuffled decks, so that all come equally often.

    A value that is listed twice comes twice as often. What an index gets does not depend on how many there are.
    """
    deck, place = divmod(index, len(values))
    return Stream(*name, deck).shuffled(values)[place]
