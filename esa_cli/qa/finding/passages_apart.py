"""Passages of which none overlaps an earlier one by half of it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """Characters [start, end) of a passage, and their log-probability as the answer."""

    start: int
    end: int
    log_probability: float


@dataclass(frozen=True)
class FoundPassage:
    """Characters [start, end) of document number `document`.

    Args:
        score: in standard deviations; after reading, these times the prior plus the log-odds.
        log_odds: that it tells the answer, after reading. span: its most probable one, where one
            was looked for and was better than those before.
    """

    document: int
    start: int
    end: int
    score: float
    log_odds: float = 0.0
    span: Span | None = None


class PassagesApart:
    """Passages in the order in which they were added."""

    def __init__(self) -> None:
        self.passages: list[FoundPassage] = []
        self._places = defaultdict[int, list[tuple[int, int]]](list)
        """(start, end) of each document's passages, ascending."""
        self._longest = 0

    def add(self, passage: FoundPassage) -> bool:
        """Adds a passage unless it overlaps one by half; whether it did."""
        places = self._places[passage.document]
        at = bisect_left(places, (passage.start - self._longest, 0))
        while at < len(places) and places[at][0] < passage.end:
            if _half(passage, *places[at]):
                return False
            at += 1
        insort(places, (passage.start, passage.end))
        self._longest = max(self._longest, passage.end - passage.start)
        self.passages.append(passage)
        return True


def _half(one: FoundPassage, start: int, end: int) -> bool:
    shared = min(one.end, end) - max(one.start, start)
    return 2 * shared >= min(one.end - one.start, end - start)
