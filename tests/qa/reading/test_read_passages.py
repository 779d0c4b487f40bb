"""The order of passages that have been read, and the sentences of their spans."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

from esa_cli.qa.finding.passages_apart import FoundPassage
from esa_cli.qa.reading.passage_reader import QuotedSpan
from esa_cli.qa.reading.read_passages import ReadPassage, ordered, read_passages

TEXT = "He came.\nMr. Pip  slept. It rained."


def read(score: float, span: float | None = None, start: int = 0, end: int = 0) -> ReadPassage:
    quoted = None if span is None else QuotedSpan(0, start, end, span)
    return ReadPassage(FoundPassage(0, 0, len(TEXT), 0.0), TEXT, score, score, quoted)


def test_the_best_span_comes_first_then_scores() -> None:
    low, high, middle, best = read(1), read(4), read(2, -5), read(3, -1)
    assert ordered([low, high, middle, best]) == [best, high, middle, low]
    assert ordered([low, high]) == [high, low]
    assert ordered([]) == []


def test_the_sentences_of_a_span() -> None:
    assert read(0).quoted_sentences == "He came. Mr. Pip slept. It rained."
    at = TEXT.index("Pip")
    assert read(0, 0.0, at, at + 3).quoted_sentences == "Mr. Pip slept."
    assert read(0, 0.0, 3, at).quoted_sentences == "He came. Mr. Pip slept."


class FixedReader:
    """Gives passages these log-odds, and their spans these log-probabilities."""

    def __init__(self, odds: list[float], spans: list[float | None]) -> None:
        self.log_odds, self._spans = odds, spans
        self.bounds: list[float] = []

    def reading(self) -> Any:
        return nullcontext()

    def read(self, question: str, passages: Any) -> FixedReader:
        return self

    def span(self, number: int, above: float) -> QuotedSpan | None:
        self.bounds.append(above)
        found = self._spans[number]
        return None if found is None or found <= above else QuotedSpan(number, 0, 2, found)


def test_a_span_is_looked_for_where_it_could_be_the_best() -> None:
    found = [FoundPassage(0, at, at + 5, 1.0) for at in range(4)]

    def first(odds: list[float], spans: list[float | None]) -> tuple[Any, list[float]]:
        reader: Any = FixedReader(odds, spans)
        read = read_passages(reader, "", found, [TEXT] * 4, prior=2.0, spans=3)
        return read[0], reader.bounds

    best, bounds = first([1.0, 4.0, 3.0, 2.0], [None, -0.5, -0.25, -0.1])
    assert (best.found.start, best.span_score) == (1, 5.5)
    assert bounds == [-math.inf, 0.5, 1.5]
    best, bounds = first([1.0, 4.0, 3.0, 2.0], [0.0, -3.0, None, -0.5])
    assert (best.found.start, best.span_score) == (3, 3.5)
    assert bounds == [-math.inf, -2.0, -1.0]
    best, bounds = first([1.0, 4.0, 3.0, 2.0], [0.0, None, None, None])
    assert (best.found.start, best.span) == (1, None)
    assert bounds == [-math.inf] * 3
