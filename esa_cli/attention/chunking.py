"""A forward call cut into chunks of current tokens, C, and which of them select.

Knows nothing about tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Chunk:
    """One chunk [start, stop) of a forward call, and whether it selects.

    `decoding`: it is a token of the answer, given alone.
    """

    start: int
    stop: int
    select: bool
    decoding: bool = False

    @property
    def size(self) -> int:
        return self.stop - self.start


def chunks(
    start: int, stop: int, size: int, last: bool, every: bool, answering: bool = True
) -> Iterator[Chunk]:
    """Cuts [start, stop) into chunks of at most `size`, the short one first.

    Args:
        last: the last chunk selects (it holds the question). every: all chunks select.
        answering: an only token is one of the answer.
    """
    low = start
    high = start + ((stop - start - 1) % size) + 1
    while low < stop:
        select = every or (last and high == stop)
        yield Chunk(low, high, select, decoding=answering and stop - start == 1)
        low, high = high, high + size
