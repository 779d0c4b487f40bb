"""Collects all places in documents that answer a question, without duplicates.

A reader reads all passages of a short text, or the best ones of a longer text. Log-odds, or the
reply of another model, decide whether a passage contains an answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from esa_cli.qa.answering.reply import says_nothing_found
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.finding.passage_finder import Book, PassageSearch
from esa_cli.qa.finding.words import find_overlapping_sentences
from esa_cli.qa.reading.passage_reader import PassageReader, collapse_spaces, normalise_answer
from esa_cli.qa.reading.reader import Reader, SamplingParams
from esa_cli.system.progress import Progress
from esa_cli.system.text import find_content_words

WHOLE = 200
"""The number of windows up to which all windows are read again: half a minute on an idle core."""
SIEVE = 0.00005
"""The minimum probability of a passage that is read again if its document has reduced keys."""
NEAR = 0.8
"""A passage is also read again if its late interaction is at least this share of the best."""
SCORE_WEIGHT = 0.5
"""The weight of a passage's score, the finder's log-odds, beside the reader's log-odds."""
LEAST, LEAST_OF_WHOLE = -6.5, -3.0
"""The minimum of the weighted sum for a passage with an answer; and of the reader's log-odds alone
if all passages are read, as of a list, whose lines hardly differ for a finder. `SIEVE`, `NEAR`,
`SCORE_WEIGHT` and `LEAST` are chosen on the development questions of benchmarks/collect_questions,
`LEAST_OF_WHOLE` on twelve questions about four texts of a page."""
BATCH = 16
"""The number of passages that the preset's reader reads in one call."""
MAX_WORDS = 24
"""The maximum number of words of another model's answer that are searched for in the passage."""


class ChosenPassages(NamedTuple):
    """Passages that were chosen out of `total` passages because they may answer a question."""

    passages: Sequence[Passage]
    documents: Sequence[int]
    total: int


@torch.inference_mode()
def choose_passages_to_read(
    search: PassageSearch, question: str, books: Sequence[Book], minimum: float | None = None,
    all_passages: bool = False,
) -> ChosenPassages:  # fmt: skip
    """Chooses the passages that the reader reads: `all_passages`, or those with a `minimum`
    probability. None means all of at most `WHOLE` passages, else those that reach `SIEVE` or
    `NEAR`, and all of documents without reduced keys, whose score misses other words. Those of
    contents pages and indexes are chosen by `all_passages` alone."""
    finder, reduced = search.get_passage_finder(books), search.encode_question(question, books)
    found, index = finder.score_windows(question, reduced), finder.index
    probabilities = found.total.sigmoid()
    late = torch.full_like(found.total, torch.nan) if found.late is None else found.late[0]
    unread = late.isnan()
    if all_passages or (minimum is None and len(index) <= WHOLE):
        wanted = torch.ones_like(unread)
    elif minimum is not None:
        wanted = probabilities >= minimum
    else:
        wanted = unread | (probabilities >= SIEVE) | (late >= NEAR * late.nan_to_num(-1.0).max())
    if not all_passages:
        wanted[[*finder.in_contents]] = False
    numbers = wanted.nonzero().flatten().tolist()
    passages = [finder.make_window_passage(at, found.total, all_passages) for at in numbers]
    documents = [index.documents[at] for at in numbers]
    return ChosenPassages(passages, documents, len(index))


class AnswerSpan(NamedTuple):
    """Characters [start, end) of a passage that answer a question."""

    start: int
    end: int
    weight: float
    log_odds: float | None = None
    answer: str | None = None


AnswerSpanFinder = Callable[[Sequence[Passage]], list[list[AnswerSpan]]]
"""Type of a function from passages to the answer spans in each passage."""


def make_log_odds_span_finder(
    reader: PassageReader, question: str, least: float | None = None, whole: bool = False
) -> AnswerSpanFinder:
    """Returns a function that finds the best span of each passage whose log-odds are high enough.

    Args:
        least: the minimum of the weighted sum; None means `LEAST` or `LEAST_OF_WHOLE`.
        whole: all passages of the text are read. The score does not count, and a passage is read
            again without the sentences of that span while it has an answer, which finds each line
            of a list; in novels it adds wrong places."""
    weight = 0.0 if whole else SCORE_WEIGHT
    default = LEAST_OF_WHOLE if whole else LEAST
    minimum = default if least is None else least

    def find_spans(passages: Sequence[Passage]) -> list[list[AnswerSpan]]:
        out: list[list[AnswerSpan]] = [[] for _ in passages]
        texts = {number: passage.text for number, passage in enumerate(passages)}
        while texts:
            readings = reader.read_passages(question, list(texts.values()))
            rest = dict[int, str]()
            for number, (odds, span, _) in zip(texts, readings, strict=True):
                if span is None or odds + weight * passages[number].score < minimum:
                    continue
                span_weight = odds + span.log_probability
                out[number].append(AnswerSpan(span.start, span.end, span_weight, log_odds=odds))
                text, place = texts[number], (span.start, span.end)
                read = find_overlapping_sentences(passages[number].text, *place)
                for start, end in (*read, place):
                    text = text[:start] + " " * (end - start) + text[end:]
                if whole and text.strip():
                    rest[number] = text
            texts = rest
        return out

    return find_spans


def make_reply_span_finder(
    reader: Reader, question: str, sampling: SamplingParams
) -> AnswerSpanFinder:
    """Returns a function that finds the words of another model's answer in its passage."""

    def find_reply_span(passage: Passage) -> list[AnswerSpan]:
        answer = collapse_spaces(reader.answer(question, [passage], (), sampling).text)
        if not answer or says_nothing_found(answer):
            return []
        start, end = find_quoted_words(answer, passage.text)
        return [AnswerSpan(start, end, float(start - end), answer=answer)]

    return lambda passages: [find_reply_span(one) for one in passages]


def find_quoted_words(answer: str, passage_text: str) -> tuple[int, int]:
    """Finds the longest run of an answer's words in a passage; if there is none, the passage."""
    words = re.findall(r"\w+", answer)[:MAX_WORDS]
    for size in range(len(words), 0, -1):
        for first in range(len(words) - size + 1):
            run = words[first : first + size]
            pattern = r"[\W_]+".join(run)
            found = re.search(rf"(?<!\w){pattern}(?!\w)", passage_text, re.IGNORECASE)
            if found and find_content_words(" ".join(run)):
                return found.span()
    return 0, len(passage_text)


@dataclass(frozen=True)
class CollectedPlace(Passage):
    """Words in a document that answer a question, with the passage that contains these words.

    Args:
        sentence: the sentences around the words. passage: characters [start, end) of the passage.
        log_odds: the reader's, that the passage contains an answer.
        answer: the words of the other model that decided; then `log_odds` is None."""

    sentence: str = ""
    passage: tuple[int, int] = (0, 0)
    log_odds: float | None = None
    answer: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON fields of a collected place; a field without a value is null."""
        odds = None if self.log_odds is None else round(self.log_odds, 3)
        own = {"sentence": self.sentence, "passage": list(self.passage), "log_odds": odds}
        return {**self.as_found(), **own, "answer": self.answer}

    @classmethod
    def from_json(cls, json_fields: Mapping[str, Any]) -> CollectedPlace:
        start, end = json_fields["passage"]
        return cls(**{**json_fields, "passage": (start, end)})


def drop_repeated_places(places: Iterable[CollectedPlace]) -> list[CollectedPlace]:
    """Drops collected places whose answers have the same words as the answer of an earlier one."""
    by_wording: dict[str, CollectedPlace] = {}
    for one in places:
        by_wording.setdefault(normalise_answer(one.answer or one.text), one)
    return list(by_wording.values())


class ReadingCoverage(NamedTuple):
    """The numbers of all passages, of chosen passages, and of passages that were read so far."""

    passages: int
    chosen: int
    read: int

    @property
    def read_share(self) -> float:
        return self.read / self.passages if self.passages else 0.0


class EarlierRun(NamedTuple):
    """The number of passages that an interrupted run has read, and the places that it found."""

    read: int
    places: Sequence[CollectedPlace]


class _PlaceCandidate(NamedTuple):
    """A collected place that a better place in the same sentences may still replace."""

    place: CollectedPlace
    document: int
    passage: int
    first: int
    last: int
    weight: float


class Collection(Iterator[CollectedPlace]):
    """An iterator that reads chosen passages and yields the places that answer, in text order.

    Args:
        decide: is called with `batch` passages, in the context that `alone` makes.
        progress: called with (passages read, passages chosen). after: an earlier run."""

    def __init__(
        self, chosen: ChosenPassages, books: Sequence[Book], decide: AnswerSpanFinder, *,
        batch: int = BATCH, alone: Callable[[], AbstractContextManager[None]] = nullcontext,
        progress: Progress | None = None, after: EarlierRun | None = None,
    ) -> None:  # fmt: skip
        after = after or EarlierRun(0, ())
        self._chosen, self._books, self._decide, self._batch = chosen, books, decide, batch
        self._alone, self._progress = alone, progress or (lambda done, total: None)
        self._read = min(after.read, len(chosen.passages))
        self._waiting: list[_PlaceCandidate] = []
        self._ends = {(one.source, one.document): one.end for one in after.places}
        """The end of the last place that was yielded from each document."""
        self._places = self._collect_places()

    def __next__(self) -> CollectedPlace:
        return next(self._places)

    @property
    def coverage(self) -> ReadingCoverage:
        """How many passages there are, how many were chosen, and how many were read so far."""
        return ReadingCoverage(self._chosen.total, len(self._chosen.passages), self._read)

    @property
    def done_passage_count(self) -> int:
        """The number of passages that are finished, so that a later run can continue after them."""
        return min((one.passage for one in self._waiting), default=self._read)

    def _collect_places(self) -> Iterator[CollectedPlace]:
        chosen, total = self._chosen, len(self._chosen.passages)
        self._progress(self._read, total)
        while self._read < total:
            batch = slice(self._read, min(self._read + self._batch, total))
            with torch.inference_mode(), self._alone():
                spans = self._decide(chosen.passages[batch])
            for number, answers in enumerate(spans, self._read):
                for span in answers:
                    self._add_answer_span(number, span)
            self._read = batch.stop
            self._progress(self._read, total)
            if self._read < total:
                next_start = chosen.passages[self._read].start
                yield from self._yield_places_before(chosen.documents[self._read], next_start)
        yield from self._yield_places_before(len(self._books), 0)

    def _add_answer_span(self, passage_index: int, span: AnswerSpan) -> None:
        """Adds an answer span as a candidate, unless a better candidate shares a sentence."""
        chosen = self._chosen
        passage, document = chosen.passages[passage_index], chosen.documents[passage_index]
        known = self._books[document].document
        sentences = find_overlapping_sentences(passage.text, span.start, span.end)
        sentences = sentences or [(span.start, span.end)]
        first, last = passage.start + sentences[0][0], passage.start + sentences[-1][1]
        if first < self._ends.get((known.source, known.name), 0):
            return
        others = [one for one in self._waiting if one.document == document]
        rivals = [one for one in others if one.first < last and first < one.last]
        if any(other.weight >= span.weight for other in rivals):
            return
        place = CollectedPlace.cut_from(
            known, passage.start + span.start, passage.start + span.end, score=passage.score,
            probability=passage.probability, sentence=known.text[first:last],
            passage=(passage.start, passage.end), log_odds=span.log_odds, answer=span.answer,
        )  # fmt: skip
        better = _PlaceCandidate(place, document, passage_index, first, last, span.weight)
        self._waiting = [*(other for other in self._waiting if other not in rivals), better]

    def _yield_places_before(self, document_index: int, offset: int) -> Iterator[CollectedPlace]:
        for one in sorted(self._waiting, key=lambda one: (one.document, one.place.start)):
            if (one.document, one.last) <= (document_index, offset):
                self._ends[one.place.source, one.place.document] = one.last
                yield one.place
                self._waiting.remove(one)
