"""Found passages of which none overlaps an earlier one by half of it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class FoundPassage:
    """Characters [start, end) of document number `document`; score: in standard deviations."""

    document: int
    start: int
    end: int
    score: float


class PassagesApart:
    """Passages in the order in which they were added.

    Args:
        passages: the first ones, whether they overlap or not.
    """

    def __init__(self, passages: Sequence[FoundPassage] = ()) -> None:
        self.passages: list[FoundPassage] = []
        self._places = defaultdict[int, list[tuple[int, int]]](list)
        """(start, end) of each document's passages, ascending."""
        self._longest = 0
        for one in passages:
            self._put(one)

    def add(self, passage: FoundPassage) -> bool:
        """Adds a passage unless it overlaps one by half; whether it did."""
        places = self._places[passage.document]
        at = bisect_left(places, (passage.start - self._longest, 0))
        while at < len(places) and places[at][0] < passage.end:
            if _half(passage, *places[at]):
                return False
            at += 1
        self._put(passage)
        return True

    def _put(self, passage: FoundPassage) -> None:
        insort(self._places[passage.document], (passage.start, passage.end))
        self._longest = max(self._longest, passage.end - passage.start)
        self.passages.append(passage)


def _half(one: FoundPassage, start: int, end: int) -> bool:
    shared = min(one.end, end) - max(one.start, start)
    return 2 * shared >= min(one.end - one.start, end - start)
