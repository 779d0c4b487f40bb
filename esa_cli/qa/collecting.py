"""Collects every place of documents that answers a question, each once.

Of a few pages all passages are read; of more text those with a high score in finding. The preset's
reader decides by the log-odds of an answer which passages tell one, another model by its words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import torch

from esa_cli.qa.answering.reply import Passage, Reply, says_not_told
from esa_cli.qa.books import Book
from esa_cli.qa.finding.passage_finder import PassageSearch, standardised
from esa_cli.qa.finding.windows import FoundPassage, sentence_spans
from esa_cli.qa.reading.span import PassageReader, one_line
from esa_cli.system.content_words import content_words
from esa_cli.system.progress import Progress

WHOLE = 200
"""Windows up to which all are read again: half a minute on an idle core."""
SIEVE = 2.0
"""Least score of a passage that is read again where its document has reduced keys: one window in
twenty-five has it. Of the 71 places of four development questions about books 58 are in one, 64 in
one with 1.5 or more, where twice as many are read and wrong ones are added, so that F1 drops."""
NEAR = 0.8
"""Share of the best window's late interaction from which a passage is read again, too: where a
fifth of a text fits equally well, none of it is two standard deviations above the mean."""
FIT = (6.0, 0.05)
"""How well a passage fits is its late interaction less 0.05, times 6, beside log-odds. Chosen
on the development questions, about whole books and about pieces of them of 130 windows."""


class ChosenPassages(NamedTuple):
    """Passages to read again, in the order of the documents, of `total` in all. They overlap, so
    that what one cuts in two is whole in another. fits: how well each fits the question, in
    log-odds; no other passage has a bearing on it."""

    passages: Sequence[FoundPassage]
    fits: Sequence[float]
    total: int


@torch.inference_mode()
def chosen_passages(
    search: PassageSearch,
    question: str,
    books: Sequence[Book],
    minimum: float | None = None,
    every: bool = False,
) -> ChosenPassages:
    """The passages to read again.

    Args:
        minimum: least score, in standard deviations over all passages; None: all passages where
            there are at most `WHOLE`; of more those with `SIEVE`, those with `NEAR` of the best
            late interaction, and all of documents without reduced keys, as many that fit share no
            word with the question. every: all passages.
    """
    finder, reduced = search.finder(books), search.reduced(question, books)
    found, index = finder.scores(question, reduced=reduced), finder.index
    scores = standardised(found.total)
    late = torch.full_like(scores, torch.nan) if reduced is None else finder.late(reduced)[0]
    unread, (factor, least) = late.isnan(), FIT
    fits = torch.where(unread, found.words.clamp(min=0), factor * (late - least))
    if minimum is not None:
        wanted = scores >= minimum
    else:
        best = late.nan_to_num(-1.0).max() if len(index) else 0.0
        wanted = unread | (scores >= SIEVE) | (late >= NEAR * best)
    if every or (minimum is None and len(index) <= WHOLE):
        wanted = torch.ones_like(unread)
    chosen = [
        FoundPassage(document, window.start, window.end, score)
        for window, document, score, read in zip(
            index.windows, index.documents, scores.tolist(), wanted.tolist(), strict=True
        )
        if read
    ]
    return ChosenPassages(chosen, fits[wanted].tolist(), len(index))


PRIOR = 1.0
"""Weight of how well a passage fits (`FIT`) beside the log-odds that it tells an
answer."""
LEAST = 2.5
"""Their sum from which a passage tells an answer. Both were chosen on the development questions of
benchmarks/collect_questions."""
MOST_WORDS = 24
"""Words of another model's answer that are looked for in the passage."""


class AnswerSpan(NamedTuple):
    """Characters [start, end) of a passage that tell an answer. weight: what ranks spans that mean
    the same place, higher first. log_odds, answer: as those of `CollectedPlace`."""

    start: int
    end: int
    weight: float
    log_odds: float | None = None
    answer: str | None = None


class Decision(Protocol):
    """Tells where passages answer the question; `batch` of them are read in one call."""

    batch: int

    def spans(self, passages: Sequence[Passage], fits: Sequence[float]) -> list[list[AnswerSpan]]:
        """The spans of each passage, none where it tells no answer.

        Args:
            fits: of the passages; see `ChosenPassages`.
        """
        ...


class LogOddsDecision:
    """The preset's reader: the most probable span of a passage that seems to tell an answer.

    Args:
        least: log-odds, with how well it fits, from which a passage tells an answer; None: `LEAST`.
        several: what is left of a passage without that span's sentences is read, too, as long as it
            tells an answer. Each line of a list is found so; in novels it adds wrong places.
    """

    batch = 16

    def __init__(
        self,
        reader: PassageReader,
        question: str,
        least: float | None = None,
        several: bool = False,
    ) -> None:
        self._reader, self._question, self._several = reader, question, several
        self._least = LEAST if least is None else least

    def spans(self, passages: Sequence[Passage], fits: Sequence[float]) -> list[list[AnswerSpan]]:
        """See `Decision.spans`."""
        out: list[list[AnswerSpan]] = [[] for _ in passages]
        texts = {number: passage.text for number, passage in enumerate(passages)}
        with self._reader.reading():
            while texts:
                spans = self._best_spans(texts, fits)
                for number, span in spans.items():
                    out[number].append(span)
                rest = {n: _without(texts[n], passages[n].text, span) for n, span in spans.items()}
                texts = {n: text for n, text in rest.items() if self._several and text.strip()}
        return out

    def _best_spans(self, texts: Mapping[int, str], fits: Sequence[float]) -> dict[int, AnswerSpan]:
        """The most probable span of each text that tells an answer."""
        reading = self._reader.read(self._question, list(texts.values()))
        out = {}
        for at, (number, odds) in enumerate(zip(texts, reading.log_odds, strict=True)):
            if odds + PRIOR * fits[number] >= self._least and (span := reading.span(at)):
                weight = odds + span.log_probability
                out[number] = AnswerSpan(span.start, span.end, weight, log_odds=odds)
        return out


def _without(text: str, passage: str, span: AnswerSpan) -> str:
    """The text of a passage, with spaces in place of the sentences of the span."""
    places = [at for at in sentence_spans(passage) if at[0] < span.end and span.start < at[1]]
    for start, end in (*places, (span.start, span.end)):
        text = text[:start] + " " * (end - start) + text[end:]
    return text


class WrittenDecision:
    """Another model that is asked about each passage alone.

    Args:
        write: its answer to the question from one passage.
    """

    batch = 1

    def __init__(self, write: Callable[[Passage], Reply]) -> None:
        self._write = write

    def spans(self, passages: Sequence[Passage], fits: Sequence[float]) -> list[list[AnswerSpan]]:
        """See `Decision.spans`. Where the model's words are not the passage's, the span is all of
        the passage. Raises ReaderError, LengthError: the model gives no answer."""
        return [[span] if (span := self._span(one)) else [] for one in passages]

    def _span(self, passage: Passage) -> AnswerSpan | None:
        answer = one_line(self._write(passage).text)
        if not answer or says_not_told(answer):
            return None
        start, end = quoted_place(answer, passage.text)
        return AnswerSpan(start, end, float(start - end), answer=answer)


def quoted_place(answer: str, text: str) -> tuple[int, int]:
    """Characters [start, end) of the longest run of the answer's words in the text that means
    something, whatever punctuation and white space stand between them; of all the text where there
    is none."""
    words = re.findall(r"\w+", answer)[:MOST_WORDS]
    for size in range(len(words), 0, -1):
        for first in range(len(words) - size + 1):
            run = words[first : first + size]
            pattern = r"[\W_]+".join(run)
            found = re.search(rf"(?<!\w){pattern}(?!\w)", text, re.IGNORECASE)
            if found and content_words(" ".join(run)):
                return found.span()
    return 0, len(text)


_WORD = re.compile(r"\w+")
_ARTICLES = frozenset(("a", "an", "the"))


@dataclass(frozen=True)
class CollectedPlace(Passage):
    """The words of a passage that answer a question; place and text are theirs, the score is of
    the passage. `log_odds` is None where another model decided.

    Args:
        sentence: the sentences of the passage that the words are in.
        passage: character offsets of the passage that was read again.
        answer: the other model's words, where there is one.
    """

    sentence: str = ""
    passage: tuple[int, int] = (0, 0)
    answer: str | None = None

    def as_row(self) -> dict[str, Any]:
        """The place as an object: fields that have no value are null."""
        odds = None if self.log_odds is None else round(self.log_odds, 3)
        return {
            **self.as_found(), "sentence": self.sentence, "passage": list(self.passage),
            "log_odds": odds, "answer": self.answer,
        }  # fmt: skip

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> CollectedPlace:
        """The place of `as_row`."""
        start, end = row["passage"]
        return cls(**{**row, "passage": (start, end)})

    @property
    def words(self) -> str:
        """The other model's words, else the quoted ones, in lower case without punctuation and
        articles."""
        found = _WORD.findall((self.answer or self.text).lower())
        return " ".join([word for word in found if word not in _ARTICLES] or found)


class Coverage(NamedTuple):
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


class WeighedPlace(NamedTuple):
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
        self.waiting: list[WeighedPlace] = []
        self._given = {(one.source, one.document): one.end for one in given}
        """End of the last place of each document."""

    def add(self, one: WeighedPlace) -> None:
        """Takes a place, unless a better one shares a sentence with it."""
        if one.first < self._given.get((one.place.source, one.place.document), 0):
            return
        same = [
            other
            for other in self.waiting
            if other.document == one.document and other.first < one.last and one.first < other.last
        ]
        if all(one.weight > other.weight for other in same):
            self.waiting = [other for other in self.waiting if other not in same] + [one]

    def settled(self, document: int, start: int) -> Iterator[CollectedPlace]:
        """Gives the places back that no passage from character `start` of a document on can share.
        One that is being looked at is still among `waiting`."""
        end = document, start
        for one in sorted(self.waiting, key=lambda one: (one.document, one.place.start)):
            if (one.document, one.last) <= end:
                self._given[one.place.source, one.place.document] = one.last
                yield one.place
                self.waiting.remove(one)


class EarlierRun(NamedTuple):
    """How far an earlier run over the same passages came: chosen passages that were read, and the
    places that were found in them."""

    read: int
    places: Sequence[CollectedPlace]


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
        decision: Decision,
        *,
        alone: Callable[[], AbstractContextManager[None]] = nullcontext,
        progress: Progress | None = None,
        after: EarlierRun | None = None,
    ) -> None:
        self._chosen, self._books, self._decision = chosen, books, decision
        self._alone, self._progress = alone, progress
        self._read = min(after.read, len(chosen.passages)) if after else 0
        self._merged = MergedPlaces(after.places if after else ())
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
        return min((one.passage for one in self._merged.waiting), default=self._read)

    def _run(self) -> Iterator[CollectedPlace]:
        passages, size = self._chosen.passages, self._decision.batch
        if self._progress is not None:
            self._progress(self._read, len(passages))
        while self._read < len(passages):
            batch = slice(self._read, self._read + size)
            for number, spans in enumerate(self._spans(batch), self._read):
                for span in spans:
                    self._merged.add(self._placed(passages[number], span, number))
            self._read = min(batch.stop, len(passages))
            if self._progress is not None:
                self._progress(self._read, len(passages))
            if self._read < len(passages):
                following = passages[self._read]
                yield from self._merged.settled(following.document, following.start)
        yield from self._merged.settled(len(self._books), 0)

    @torch.inference_mode()
    def _spans(self, batch: slice) -> list[list[AnswerSpan]]:
        books = self._books
        shown = [
            Passage.of(books[one.document].document, one.start, one.end)
            for one in self._chosen.passages[batch]
        ]
        with self._alone():
            return self._decision.spans(shown, self._chosen.fits[batch])

    def _placed(self, found: FoundPassage, span: AnswerSpan, number: int) -> WeighedPlace:
        known = self._books[found.document].document
        start, end = found.start + span.start, found.start + span.end
        first, last = _sentences(known.text, found, start, end)
        place = CollectedPlace.of(
            known, start, end, score=found.score, sentence=known.text[first:last],
            passage=(found.start, found.end), log_odds=span.log_odds, answer=span.answer,
        )  # fmt: skip
        return WeighedPlace(place, found.document, number, first, last, span.weight)


def _sentences(text: str, found: FoundPassage, start: int, end: int) -> tuple[int, int]:
    """Characters of the passage's sentences that have a character of [start, end)."""
    shared = [
        (found.start + first, found.start + last)
        for first, last in sentence_spans(text[found.start : found.end])
        if found.start + first < end and start < found.start + last
    ]
    return (shared[0][0], shared[-1][1]) if shared else (start, end)
