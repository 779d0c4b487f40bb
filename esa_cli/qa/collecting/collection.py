"""Collects every place of documents that fits a question, each once, over the chosen passages."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Self, TypedDict

import torch

from esa_cli.qa.answering.reply import Evidence
from esa_cli.qa.books import Book
from esa_cli.qa.collecting.told_spans import (
    ChosenPassages,
    LogOddsDecision,
    ToldSpan,
    WrittenDecision,
)
from esa_cli.qa.finding.passage_finder import Passage
from esa_cli.qa.finding.windows import FoundPassage, sentence_spans
from esa_cli.system.progress import Progress

_WORD = re.compile(r"\w+")
_ARTICLES = frozenset(("a", "an", "the"))


@dataclass(frozen=True)
class CollectedPlace(Passage):
    """The words of a passage that answer a question; place and text are theirs, the score is of
    the passage.

    Args:
        sentence: the sentences of the passage that the words are in.
        passage: character offsets of the passage that was read again.
        log_odds: that it tells an answer; None where another model decided. answer: that model's
            words, where there is one.
    """

    sentence: str
    passage: tuple[int, int]
    log_odds: float | None = None
    answer: str | None = None

    @property
    def words(self) -> str:
        """The other model's words, else the quoted ones, in lower case without punctuation and
        articles."""
        found = _WORD.findall((self.answer or self.text).lower())
        return " ".join([word for word in found if word not in _ARTICLES] or found)


@dataclass(frozen=True)
class Coverage:
    """Passages of the documents: all of them, those chosen to be read again, those read so far."""

    passages: int
    chosen: int
    read: int

    @property
    def share(self) -> float:
        """The share of all passages that has been read again."""
        return self.read / self.passages if self.passages else 0.0


def distinct_places(places: Iterable[CollectedPlace]) -> list[CollectedPlace]:
    """The first place of each wording; see `CollectedPlace.words`."""
    found: dict[str, CollectedPlace] = {}
    for one in places:
        found.setdefault(one.words, one)
    return list(found.values())


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


@dataclass(frozen=True)
class EarlierRun:
    """How far an earlier run over the same passages came: chosen passages that were read, and the
    places that were found in them."""

    read: int
    places: Sequence[CollectedPlace]


class HowToCollect(TypedDict, total=False):
    """Keyword arguments of `api.Esa.collect`.

    minimum: least score in finding of a passage that is read again; see `chosen_passages`. every:
    all passages are. least: log-odds, with how well it fits, from which a passage tells a place;
    it does not count where another model decides. progress: called with (passages read,
    passages chosen); what it raises passes through. after: an earlier run, which this continues.
    """

    minimum: float | None
    every: bool
    least: float
    progress: Progress | None
    after: EarlierRun | None


class Collection:
    """An iterator of places in the order of the documents, each once. Passages are read as it goes;
    whatever ends it, what it gave before stays true.

    Args:
        chosen: the passages. decision: whether and where each tells an answer.
        alone: makes the context in which a decision is made. progress: called with (passages read,
            passages chosen). after: an earlier run, which this one continues.
    """

    def __init__(
        self,
        chosen: ChosenPassages,
        books: Sequence[Book],
        decision: LogOddsDecision | WrittenDecision,
        *,
        alone: Callable[[], AbstractContextManager[None]] = nullcontext,
        progress: Progress | None = None,
        after: EarlierRun | None = None,
    ) -> None:
        self._chosen, self._books, self._decision = chosen, books, decision
        self._alone, self._progress = alone, progress
        self._read = min(after.read, len(chosen.passages)) if after else 0
        self._merged = MergedPlaces(after.places if after else ())
        self._due = deque[WeighedPlace]()
        """Places without doubles that have not been given, or are being looked at."""
        self._places = self._run()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> CollectedPlace:
        return next(self._places)

    @property
    def coverage(self) -> Coverage:
        """How many passages there are, are to be read, and have been read so far."""
        return Coverage(self._chosen.total, len(self._chosen.passages), self._read)

    @property
    def settled(self) -> int:
        """Chosen passages whose places have all been given: where a later run continues."""
        waiting = [one.passage for one in self._due]
        if (first := self._merged.first_waiting) is not None:
            waiting.append(first)
        return min(waiting, default=self._read)

    def _run(self) -> Iterator[CollectedPlace]:
        passages, size = self._chosen.passages, self._decision.batch
        if self._progress is not None:
            self._progress(self._read, len(passages))
        while self._read < len(passages):
            batch = slice(self._read, self._read + size)
            for number, spans in enumerate(self._told(batch), self._read):
                for told in spans:
                    self._merged.add(self._placed(passages[number], told, number))
            self._read = min(batch.stop, len(passages))
            if self._progress is not None:
                self._progress(self._read, len(passages))
            self._due.extend(self._merged.settled(*self._next_start()))
            while self._due:
                yield self._due[0].place
                self._due.popleft()

    def _next_start(self) -> tuple[int, int]:
        """Document and first character of the next passage."""
        passages = self._chosen.passages
        if self._read == len(passages):
            return len(self._books), 0
        return passages[self._read].document, passages[self._read].start

    @torch.inference_mode()
    def _told(self, batch: slice) -> list[list[ToldSpan]]:
        books = self._books
        shown = [
            Evidence.of(books[one.document].document, one.start, one.end, 0.0)
            for one in self._chosen.passages[batch]
        ]
        with self._alone():
            return self._decision.spans(shown, self._chosen.fits[batch])

    def _placed(self, found: FoundPassage, told: ToldSpan, number: int) -> WeighedPlace:
        known = self._books[found.document].document
        start, end = found.start + told.start, found.start + told.end
        first, last = _sentences(known.text, found, start, end)
        at = known.place(start)
        place = CollectedPlace(
            known.name, known.source, at.page, at.line, at.chapter, start, end,
            known.text[start:end], found.score, known.text[first:last], (found.start, found.end),
            told.log_odds, told.answer,
        )  # fmt: skip
        return WeighedPlace(place, found.document, number, first, last, told.weight)


def _sentences(text: str, found: FoundPassage, start: int, end: int) -> tuple[int, int]:
    """Characters of the passage's sentences that have a character of [start, end)."""
    shared = [
        (found.start + first, found.start + last)
        for first, last in sentence_spans(text[found.start : found.end])
        if found.start + first < end and start < found.start + last
    ]
    return (shared[0][0], shared[-1][1]) if shared else (start, end)
