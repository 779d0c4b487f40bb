"""Random draws that are the same on every machine and version of Python.

Only `random.Random.random` is guaranteed to be stable, so everything is drawn from it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class StableRandom:
    """Draws that are determined by the seeds, such as a test's name and an index."""

    def __init__(self, *seeds: str | int) -> None:
        self._random = random.Random(" ".join(str(part) for part in seeds))

    def unit(self) -> float:
        """A number from 0 to below 1."""
        return self._random.random()

    def below(self, n: int) -> int:
        """A whole number from 0 to n - 1."""
        return int(self._random.random() * n)

    def some(self, items: Sequence[T], n: int) -> list[T]:
        """n different items in random order."""
        pool = list(items)
        for at in range(n):
            other = at + self.below(len(pool) - at)
            pool[at], pool[other] = pool[other], pool[at]
        return pool[:n]

    def digits(self, n: int, first: str = "0123456789") -> str:
        """A string of n digits; the first is one of `first`."""
        return first[self.below(len(first))] + "".join(str(self.below(10)) for _ in range(n - 1))

    def uuid(self) -> str:
        """A random UUID, of version 4."""
        one, two, three = (f"{self.below(1 << 48):012x}" for _ in range(3))
        variant = "89ab"[self.below(4)]
        return f"{one[:8]}-{one[8:]}-4{two[:3]}-{variant}{two[3:6]}-{three}"
