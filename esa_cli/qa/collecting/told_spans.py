"""Chooses the passages that are read for a question about the whole, and which tell an answer.

Of a few pages all passages are read; of more text those with a high score in finding. The preset's
reader decides by the log-odds of an answer, another model by its words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from esa_cli.errors import UsageError
from esa_cli.qa.answering.reply import Evidence, says_not_told
from esa_cli.qa.books import Book
from esa_cli.qa.finding.passage_finder import PassageSearch, standardised
from esa_cli.qa.finding.windows import FoundPassage, sentence_spans
from esa_cli.qa.reading.reader import PassageReader, one_line
from esa_cli.qa.second_model.answer_reader import WrittenAnswer
from esa_cli.system.content_words import content_words

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


@dataclass(frozen=True)
class ChosenPassages:
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

    Raises:
        UsageError: there is no book.
    """
    if not books:
        raise UsageError("no document to collect from", "name one")
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


@dataclass(frozen=True)
class ToldSpan:
    """Characters [start, end) of a passage that tell an answer.

    weight: what ranks spans that mean the same place, higher first. log_odds, answer: as
    `CollectedPlace`.
    """

    start: int
    end: int
    weight: float
    log_odds: float | None = None
    answer: str | None = None


class LogOddsDecision:
    """The preset's reader: the most probable span of a passage that seems to tell an answer.

    Args:
        least: log-odds, with how well it fits, from which a passage tells an answer. several: what
            is left of a passage without that span's sentences is read, too, as long as it tells an
            answer. Each line of a list is told so; in novels and chronicles it adds wrong places.
    """

    batch = 16
    """Passages of one call."""

    def __init__(
        self, reader: PassageReader, question: str, least: float, several: bool = False
    ) -> None:
        self._reader, self._question, self._least = reader, question, least
        self._several = several

    def spans(self, passages: Sequence[Evidence], fits: Sequence[float]) -> list[list[ToldSpan]]:
        """The spans of each passage, none where it tells no answer.

        Args:
            fits: of the passages; see `ChosenPassages`.
        """
        out: list[list[ToldSpan]] = [[] for _ in passages]
        left = {number: one.text for number, one in enumerate(passages)}
        with self._reader.reading():
            while left:
                told = self._told(left, fits)
                for number, one in told.items():
                    out[number].append(one)
                rest = {n: _without(left[n], passages[n].text, one) for n, one in told.items()}
                left = {n: text for n, text in rest.items() if self._several and text.strip()}
        return out

    def _told(self, texts: Mapping[int, str], fits: Sequence[float]) -> dict[int, ToldSpan]:
        """The most probable span of each text that tells an answer."""
        reading = self._reader.read(self._question, list(texts.values()))
        out = {}
        for at, (number, odds) in enumerate(zip(texts, reading.log_odds, strict=True)):
            told_at_all = odds + PRIOR * fits[number] >= self._least
            span = reading.span(at) if told_at_all else None
            if span is not None:
                weight = odds + span.log_probability
                out[number] = ToldSpan(span.start, span.end, weight, log_odds=odds)
        return out


def _without(left: str, passage: str, span: ToldSpan) -> str:
    """What is left of a passage, with spaces in place of the sentences of the span."""
    for start, end in sentence_spans(passage):
        if start < span.end and span.start < end:
            left = left[:start] + " " * (end - start) + left[end:]
    return left[: span.start] + " " * (span.end - span.start) + left[span.end :]


class WrittenDecision:
    """Another model that is asked about each passage alone.

    Args:
        write: its answer to the question from one passage.
    """

    batch = 1

    def __init__(self, write: Callable[[Evidence], WrittenAnswer]) -> None:
        self._write = write

    def spans(self, passages: Sequence[Evidence], fits: Sequence[float]) -> list[list[ToldSpan]]:
        """As those of `LogOddsDecision`. Where the model's words are not the passage's, the span is
        all of the passage. Raises ReaderError, LengthError: the model gives no answer."""
        return [[span] if (span := self._span(one)) else [] for one in passages]

    def _span(self, passage: Evidence) -> ToldSpan | None:
        answer = one_line(self._write(passage).text)
        if not answer or says_not_told(answer):
            return None
        start, end = quoted_place(answer, passage.text)
        return ToldSpan(start, end, float(start - end), answer=answer)


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
