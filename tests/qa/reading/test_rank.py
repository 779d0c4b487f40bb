"""The order of passages that have been read."""

from __future__ import annotations

import math
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from esa_cli.qa.answering.reply import Passage
from esa_cli.qa.reading.span import SpanReader
from esa_cli.qa.reading.spans import Span

TEXT = "He came.\nMr. Pip  slept. It rained."


class FixedReader:
    """Gives passages these log-odds, and their spans these log-probabilities."""

    def __init__(self, odds: list[float], spans: list[float | None]) -> None:
        self.log_odds, self._spans = odds, spans
        self.bounds: list[float] = []

    def reading(self) -> Any:
        return nullcontext()

    def read(self, question: str, passages: Any) -> FixedReader:
        return self

    def span(self, number: int, above: float) -> Span | None:
        self.bounds.append(above)
        found = self._spans[number]
        return None if found is None or found <= above else Span(0, 2, found)


def test_a_span_is_looked_for_where_it_could_be_the_best() -> None:
    found = [
        Passage("a", "a", None, 1, None, at, at + 5, TEXT[at : at + 5], 1.0) for at in range(4)
    ]

    def first(odds: list[float], spans: list[float | None]) -> tuple[Any, list[float]]:
        reader: Any = FixedReader(odds, spans)
        ranked: Any = SpanReader.__new__(SpanReader)
        ranked.passages, ranked._settings = reader, SimpleNamespace(prior=2.0)
        read = ranked.rank("", found, unmentioned=0.5)
        by_place = {one.start: one for one in read}
        assert [by_place[at].log_odds for at in range(4)] == [one - 2.25 for one in odds]
        assert [by_place[at].score for at in range(4)] == [one + 2.0 for one in odds]
        assert [one.score for one in read[1:]] == sorted([one.score for one in read[1:]])[::-1]
        return read[0], reader.bounds

    best, bounds = first([1.0, 4.0, 3.0, 2.0], [None, -0.5, -0.25, -0.1])
    assert (best.start, best.quote) == (1, (1, 3))
    assert bounds == [-math.inf, 0.5, 1.5]
    best, bounds = first([1.0, 4.0, 3.0, 2.0], [0.0, -3.0, None, -0.5])
    assert (best.start, best.quote) == (3, (3, 5))
    assert bounds == [-math.inf, -2.0, -1.0]
    best, bounds = first([1.0, 4.0, 3.0, 2.0], [0.0, None, None, None])
    assert (best.start, best.quote) == (1, None)
    assert bounds == [-math.inf] * 3
