"""Passages that have been read with a question, in the order in which they seem to answer it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from esa_cli.qa.finding.passages_apart import FoundPassage
from esa_cli.qa.finding.sentence_windows import sentence_spans
from esa_cli.qa.reading.passage_prompt import one_line
from esa_cli.qa.reading.passage_reader import PassageReader, PassageReading, QuotedSpan


@dataclass(frozen=True)
class ReadPassage:
    """A found passage that has been read.

    log_odds: that it tells the answer. score: these plus its weighted score in finding.
    span: its most probable span, where one was looked for and was better than those before.
    """

    found: FoundPassage
    text: str
    log_odds: float
    score: float
    span: QuotedSpan | None = None

    @property
    def span_score(self) -> float:
        """The span's log-probability plus the passage's score; least without a span."""
        return -float("inf") if self.span is None else self.span.log_probability + self.score

    @property
    def quoted_sentences(self) -> str:
        """The sentences of its span in one line; all of it without a span."""
        if self.span is None:
            return one_line(self.text)
        sentences = [
            self.text[start:end]
            for start, end in sentence_spans(self.text)
            if start < self.span.end and end > self.span.start
        ]
        return one_line(" ".join(sentences))


def read_passages(
    reader: PassageReader,
    question: str,
    found: Sequence[FoundPassage],
    texts: Sequence[str],
    *,
    prior: float,
    spans: int,
) -> list[ReadPassage]:
    """The passages as read, ordered.

    Args:
        texts: of the passages. prior: weight of their scores in finding. spans: passages with the
            highest scores whose most probable span is looked for.
    """
    with reader.reading():
        reading = reader.read(question, texts)
        scores = [
            odds + prior * one.score for odds, one in zip(reading.log_odds, found, strict=True)
        ]
        order = sorted(range(len(found)), key=lambda n: -scores[n])
        best = _spans(reading, order[:spans], scores)
    return ordered(
        [
            ReadPassage(found[n], texts[n], reading.log_odds[n], scores[n], best.get(n))
            for n in order
        ]
    )


def _spans(
    reading: PassageReading, order: Sequence[int], scores: Sequence[float]
) -> dict[int, QuotedSpan]:
    """Spans of some passages, each with a higher sum of its log-probability and its passage's score
    than those before: only the best one counts, and the search for a worse one ends early."""
    found, most = dict[int, QuotedSpan](), -math.inf
    for n in order:
        span = reading.span(n, most - scores[n])
        if span is not None:
            found[n], most = span, span.log_probability + scores[n]
    return found


def ordered(passages: Sequence[ReadPassage]) -> list[ReadPassage]:
    """The passage of the best span first, then by score."""
    out = sorted(passages, key=lambda one: -one.score)
    best = max(out, key=lambda one: one.span_score, default=None)
    if best is not None and best.span is not None:
        out.remove(best)
        out.insert(0, best)
    return out
