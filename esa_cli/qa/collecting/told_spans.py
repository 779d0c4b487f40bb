"""Decides for each passage whether it tells an answer, and where: the preset's own reader by the
log-odds of an answer, or another model by its words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from esa_cli.qa.answering.reply import Evidence, says_not_told
from esa_cli.qa.reading.passage_prompt import one_line
from esa_cli.qa.reading.passage_reader import PassageReader
from esa_cli.qa.second_model.answer_reader import WrittenAnswer
from esa_cli.system.content_words import content_words

PRIOR = 1.0
"""Weight of a passage's score in finding beside the log-odds that it tells an answer."""
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


class PassageDecision(Protocol):
    """Decides for passages whether they tell an answer."""

    batch: int
    """Passages of one call."""

    def spans(self, passages: Sequence[Evidence], scores: Sequence[float]) -> list[ToldSpan | None]:
        """The span of each passage; None: it does not tell an answer.

        Args:
            scores: of the passages in finding.

        Raises:
            ReaderError, LengthError: another model gives no answer.
        """
        ...


class LogOddsDecision:
    """The preset's reader: the most probable span of a passage that seems to tell an answer.

    Args:
        least: log-odds, with the weighted score in finding, from which a passage tells an answer.
    """

    batch = 16

    def __init__(self, reader: PassageReader, question: str, least: float) -> None:
        self._reader, self._question, self._least = reader, question, least

    def spans(self, passages: Sequence[Evidence], scores: Sequence[float]) -> list[ToldSpan | None]:
        """See `PassageDecision.spans`."""
        with self._reader.reading():
            reading = self._reader.read(self._question, [one.text for one in passages])
            out: list[ToldSpan | None] = []
            for number, (odds, score) in enumerate(zip(reading.log_odds, scores, strict=True)):
                told_at_all = odds + PRIOR * score >= self._least
                span = reading.span(number) if told_at_all else None
                told = None
                if span is not None:
                    weight = odds + span.log_probability
                    told = ToldSpan(span.start, span.end, weight, log_odds=odds)
                out.append(told)
        return out


class WrittenDecision:
    """Another model that is asked about each passage alone.

    Args:
        write: its answer to the question from one passage.
    """

    batch = 1

    def __init__(self, write: Callable[[Evidence], WrittenAnswer]) -> None:
        self._write = write

    def spans(self, passages: Sequence[Evidence], scores: Sequence[float]) -> list[ToldSpan | None]:
        """See `PassageDecision.spans`. Where its words are not the passage's, the span is all of
        the passage."""
        return [self._span(one) for one in passages]

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
