"""Places without doubles: passages overlap, and two of them quote the same words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from esa_cli.qa.collecting.collected_place import CollectedPlace


@dataclass(frozen=True)
class WeighedPlace:
    """A place of passage number `passage`, its document's number, the characters [first, last) of
    its sentences, and the weight that chooses between places of one sentence."""

    place: CollectedPlace
    document: int
    passage: int
    first: int
    last: int
    weight: float


class MergedPlaces:
    """Takes places in the order of their passages, and gives them back in order, those that share a
    sentence once: the one with the highest weight.

    Args:
        given: places that were given back before, of an earlier run.
    """

    def __init__(self, given: Iterable[CollectedPlace] = ()) -> None:
        self._given = {(one.source, one.document): one.end for one in given}
        """End of the last place of each document."""
        self._waiting: list[WeighedPlace] = []

    def add(self, one: WeighedPlace) -> None:
        """Takes a place, unless a better one shares a sentence with it."""
        place = one.place
        if one.first < self._given.get((place.source, place.document), 0):
            return
        same = [
            other
            for other in self._waiting
            if other.document == one.document and other.first < one.last and one.first < other.last
        ]
        if all(one.weight > other.weight for other in same):
            self._waiting = [other for other in self._waiting if other not in same] + [one]

    def settled(self, document: int, start: int) -> list[WeighedPlace]:
        """The places that no passage from character `start` of a document on can share."""
        ready = [
            one
            for one in self._waiting
            if one.document < document or (one.document == document and one.last <= start)
        ]
        self._waiting = [one for one in self._waiting if one not in ready]
        ready.sort(key=lambda one: (one.document, one.place.start))
        for one in ready:
            self._given[one.place.source, one.place.document] = one.last
        return ready

    @property
    def first_waiting(self) -> int | None:
        """The first passage whose place has not been given back; None: there is none."""
        return min((one.passage for one in self._waiting), default=None)
