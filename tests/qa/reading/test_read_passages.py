"""The order of passages that have been read, and the sentences of their spans."""

from __future__ import annotations

from esa_cli.qa.finding.passage_finder import FoundPassage
from esa_cli.qa.reading.passage_reader import QuotedSpan
from esa_cli.qa.reading.read_passages import ReadPassage, ordered

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
