"""Collects every place of documents that answers a question, each once.

The reader reads all passages of a short text, and those of a longer one that the finder ranks high.
Log-odds of an answer decide which passages contain one, or the words of another model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch

from esa_cli.qa.answering.reply import Reply, says_not_told
from esa_cli.qa.finding.books import Book
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.finding.passage_finder import PassageSearch, standardised
from esa_cli.qa.finding.words import sentence_spans
from esa_cli.qa.reading.span import PassageReader, one_line
from esa_cli.system.content_words import content_words
from esa_cli.system.progress import Progress

WHOLE = 200
"""Windows up to which all are read again: half a minute on an idle core."""
SIEVE = 2.0
"""Least score of a passage that is read again where its document has reduced keys."""
NEAR = 0.8
"""Share of the best late interaction from which a passage is read again, too: where a fifth of a
text fits equally well, no window is two standard deviations above the mean."""
FIT = (6.0, 0.05)
"""How well a passage fits: its late interaction less 0.05, times 6, beside log-odds."""
LEAST = 2.5
"""Log-odds plus fit from which a passage contains an answer. `SIEVE`, `NEAR`, `FIT` and `LEAST` are
chosen on the development questions of benchmarks/collect_questions."""
BATCH = 16
"""Passages that the preset's reader reads in one call."""
MAX_WORDS = 24
"""Words of another model's answer that are looked for in the passage."""
_WORD = re.compile(r"\w+")
_ARTICLES = frozenset(("a", "an", "the"))


class ChosenPassages(NamedTuple):
    """Some of `total` passages, each one's document, and how well each fits in log-odds."""

    passages: Sequence[Passage]
    documents: Sequence[int]
    fits: Sequence[float]
    total: int


@torch.inference_mode()
def chosen_passages(
    search: PassageSearch, question: str, books: Sequence[Book], minimum: float | None = None,
    all_passages: bool = False,
) -> ChosenPassages:  # fmt: skip
    """Chooses the passages to read again.

    Args:
        minimum: least score, in standard deviations over all passages; None: all passages if there
            are at most `WHOLE`; else those with `SIEVE` or `NEAR`, and all of documents without
            reduced keys, whose score misses passages that share no word with the question.
        all_passages: whatever their scores are.
    """
    finder, reduced = search.finder(books), search.reduced(question, books)
    found, index = finder.scores(question, reduced=reduced), finder.index
    scores = standardised(found.total)
    late = torch.full_like(scores, torch.nan)
    if reduced is not None:
        late = finder.late_scores(reduced)[0]
    unread, (factor, least) = late.isnan(), FIT
    fits = torch.where(unread, found.words.clamp(min=0), factor * (late - least))
    if all_passages or (minimum is None and len(index) <= WHOLE):
        wanted = torch.ones_like(unread)
    elif minimum is not None:
        wanted = scores >= minimum
    else:
        wanted = unread | (scores >= SIEVE) | (late >= NEAR * late.nan_to_num(-1.0).max())
    numbers = wanted.nonzero().flatten().tolist()
    return ChosenPassages(
        [finder.passage_at(at, scores) for at in numbers],
        [index.documents[at] for at in numbers],
        fits[wanted].tolist(),
        len(index),
    )


class AnswerSpan(NamedTuple):
    """Characters of a passage that answer; of those in one sentence the highest weight counts."""

    start: int
    end: int
    weight: float
    log_odds: float | None = None
    answer: str | None = None


Decision = Callable[[Sequence[Passage], Sequence[float]], list[list[AnswerSpan]]]
"""Returns the spans of each passage that answer, from the passages and their `fits`."""


def by_log_odds(
    reader: PassageReader, question: str, min_log_odds: float | None = None, several: bool = False
) -> Decision:
    """Lets the preset's reader decide: the most probable span of each passage with an answer.

    Args:
        min_log_odds: log-odds plus fit of a passage with an answer; None: `LEAST`.
        several: a passage is read again without the sentences of that span, as long as it contains
            an answer. This finds each line of a list; in novels it adds wrong places.
    """
    threshold = LEAST if min_log_odds is None else min_log_odds

    def decide(passages: Sequence[Passage], fits: Sequence[float]) -> list[list[AnswerSpan]]:
        out: list[list[AnswerSpan]] = [[] for _ in passages]
        texts = {number: passage.text for number, passage in enumerate(passages)}
        with reader.reading():
            while texts:
                reading, rest = reader.read(question, list(texts.values())), dict[int, str]()
                for at, (number, odds) in enumerate(zip(texts, reading.log_odds, strict=True)):
                    if odds + fits[number] < threshold or (span := reading.span(at)) is None:
                        continue
                    weight = odds + span.log_probability
                    out[number].append(AnswerSpan(span.start, span.end, weight, log_odds=odds))
                    text, place = texts[number], (span.start, span.end)
                    for start, end in (*_sentences_at(passages[number].text, *place), place):
                        text = text[:start] + " " * (end - start) + text[end:]
                    if several and text.strip():
                        rest[number] = text
                texts = rest
        return out

    return decide


def _sentences_at(passage: str, start: int, end: int) -> list[tuple[int, int]]:
    """Returns the sentences of a passage that have a character of [start, end)."""
    return [at for at in sentence_spans(passage) if at[0] < end and start < at[1]]


def by_words(write: Callable[[Passage], Reply]) -> Decision:
    """Lets another model decide, by the answer that it writes from each passage alone."""

    def find_span(passage: Passage) -> list[AnswerSpan]:
        answer = one_line(write(passage).text)
        if not answer or says_not_told(answer):
            return []
        start, end = quoted_place(answer, passage.text)
        return [AnswerSpan(start, end, float(start - end), answer=answer)]

    return lambda passages, fits: [find_span(one) for one in passages]


def quoted_place(answer: str, text: str) -> tuple[int, int]:
    """Returns the characters of the longest run of the answer's words, or of all the text."""
    words = _WORD.findall(answer)[:MAX_WORDS]
    for size in range(len(words), 0, -1):
        for first in range(len(words) - size + 1):
            run = words[first : first + size]
            pattern = r"[\W_]+".join(run)
            found = re.search(rf"(?<!\w){pattern}(?!\w)", text, re.IGNORECASE)
            if found and content_words(" ".join(run)):
                return found.span()
    return 0, len(text)


@dataclass(frozen=True)
class CollectedPlace(Passage):
    """The words of a passage that answer a question, with the score of the passage.

    Args:
        sentence: the sentences of the passage that the words are in.
        passage: character offsets of the passage that was read again.
        answer: the words of the other model that decided; then `log_odds` is None.
    """

    sentence: str = ""
    passage: tuple[int, int] = (0, 0)
    answer: str | None = None

    def as_row(self) -> dict[str, Any]:
        """Returns the place as an object; fields that have no value are null."""
        odds = None if self.log_odds is None else round(self.log_odds, 3)
        return {
            **self.as_found(), "sentence": self.sentence, "passage": list(self.passage),
            "log_odds": odds, "answer": self.answer,
        }  # fmt: skip

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> CollectedPlace:
        """Returns the place of a row of `as_row`."""
        start, end = row["passage"]
        return cls(**{**row, "passage": (start, end)})

    @property
    def words(self) -> str:
        """The other model's words, else the quoted ones, without capitals and articles."""
        found = _WORD.findall((self.answer or self.text).lower())
        return " ".join([word for word in found if word not in _ARTICLES] or found)


def distinct_places(places: Iterable[CollectedPlace]) -> list[CollectedPlace]:
    """Returns the first place of each wording; see `CollectedPlace.words`."""
    by_words: dict[str, CollectedPlace] = {}
    for one in places:
        by_words.setdefault(one.words, one)
    return list(by_words.values())


class Coverage(NamedTuple):
    """Numbers of passages: of all, of those chosen to be read again, of those read so far."""

    passages: int
    chosen: int
    read: int

    @property
    def share(self) -> float:
        """The share of all passages that has been read again."""
        return self.read / self.passages if self.passages else 0.0


class EarlierRun(NamedTuple):
    """An earlier run over the same passages: how many it read, and the places it found."""

    read: int
    places: Sequence[CollectedPlace]


class _Candidate(NamedTuple):
    """A place of passage number `passage`; its sentences are the characters [first, last)."""

    place: CollectedPlace
    document: int
    passage: int
    first: int
    last: int
    weight: float


class Collection:
    """An iterator of places in the order of the documents; passages are read on the way.

    Args:
        decide: is called with `batch` passages, in the context that `alone` makes.
        progress: called with (passages read, passages chosen).
        after: an earlier run, which this one continues.
    """

    def __init__(
        self, chosen: ChosenPassages, books: Sequence[Book], decide: Decision, *,
        batch: int = BATCH, alone: Callable[[], AbstractContextManager[None]] = nullcontext,
        progress: Progress | None = None, after: EarlierRun | None = None,
    ) -> None:  # fmt: skip
        after = after or EarlierRun(0, ())
        self._chosen, self._books, self._decide, self._batch = chosen, books, decide, batch
        self._alone, self._progress = alone, progress or (lambda done, total: None)
        self._read = min(after.read, len(chosen.passages))
        self._waiting: list[_Candidate] = []
        self._ends = {(one.source, one.document): one.end for one in after.places}
        """End of the last place of each document that was given."""
        self._places = self._run()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> CollectedPlace:
        return next(self._places)

    @property
    def coverage(self) -> Coverage:
        """How many passages there are, are chosen, and have been read so far."""
        return Coverage(self._chosen.total, len(self._chosen.passages), self._read)

    @property
    def settled(self) -> int:
        """Chosen passages whose places have all been given: where a later run continues."""
        return min((one.passage for one in self._waiting), default=self._read)

    def _run(self) -> Iterator[CollectedPlace]:
        chosen, total = self._chosen, len(self._chosen.passages)
        self._progress(self._read, total)
        while self._read < total:
            batch = slice(self._read, min(self._read + self._batch, total))
            with torch.inference_mode(), self._alone():
                spans = self._decide(chosen.passages[batch], chosen.fits[batch])
            for number, answers in enumerate(spans, self._read):
                for span in answers:
                    self._add_span(number, span)
            self._read = batch.stop
            self._progress(self._read, total)
            if self._read < total:
                next_start = chosen.passages[self._read].start
                yield from self._give_before(chosen.documents[self._read], next_start)
        yield from self._give_before(len(self._books), 0)

    def _add_span(self, number: int, span: AnswerSpan) -> None:
        """Adds a place of a passage, unless a better one shares a sentence with it."""
        passage, document = self._chosen.passages[number], self._chosen.documents[number]
        known = self._books[document].document
        sentences = _sentences_at(passage.text, span.start, span.end) or [(span.start, span.end)]
        first, last = passage.start + sentences[0][0], passage.start + sentences[-1][1]
        if first < self._ends.get((known.source, known.name), 0):
            return
        rivals = [
            other
            for other in self._waiting
            if other.document == document and other.first < last and first < other.last
        ]
        if any(other.weight >= span.weight for other in rivals):
            return
        place = CollectedPlace.of(
            known, passage.start + span.start, passage.start + span.end, score=passage.score,
            sentence=known.text[first:last], passage=(passage.start, passage.end),
            log_odds=span.log_odds, answer=span.answer,
        )  # fmt: skip
        better = _Candidate(place, document, number, first, last, span.weight)
        self._waiting = [*(other for other in self._waiting if other not in rivals), better]

    def _give_before(self, document: int, start: int) -> Iterator[CollectedPlace]:
        """Yields the places that no passage from character `start` of a document on can share."""
        for one in sorted(self._waiting, key=lambda one: (one.document, one.place.start)):
            if (one.document, one.last) <= (document, start):
                self._ends[one.place.source, one.place.document] = one.last
                yield one.place
                self._waiting.remove(one)
