"""Finds the passages with the most words of a query, as a person who looks for words expects it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy

from esa_cli.errors import UsageError
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.finding.passage_finder import Book, PassageFinder, Ranking, divide_by_highest
from esa_cli.qa.finding.words import SentenceWords
from esa_cli.system.text import find_question_words


def find_passages_with_words(query: str, books: Sequence[Book]) -> tuple[list[Passage], int, int]:
    """Returns passages with the most words of a query, each with a matching sentence of its own;
    how many words they have; and how many the query has. The passages have no probabilities, since
    a token index, which is not used, would change these."""
    if not books:
        raise UsageError("there is no document to search", "name a document to search")
    finder = PassageFinder(books)
    index = finder.index
    wanted = list(dict.fromkeys(find_question_words(query, index.languages)))
    having = [_mark_sentences_with_words(wanted, table) for table in index.tables]
    unseen = [sentences.any(1) for sentences in having]
    counts = [
        int(having[document][window.first : window.last].any(0).sum())
        for window, document in zip(index.windows, index.documents, strict=True)
    ]
    most = max(counts, default=0)
    passages = list[Passage]()
    scores = Ranking().compute_bm25_odds(divide_by_highest(index.compute_bm25_scores(query)))
    for at in scores.argsort(descending=True, stable=True).tolist() if most else ():
        window, rest = index.windows[at], unseen[index.documents[at]]
        if counts[at] == most and rest[window.first : window.last].any():
            rest[window.first : window.last] = False
            passages.append(replace(finder.make_window_passage(at, scores, True), probability=None))
    return finder.place_at_words(passages, query), most, len(wanted)


def _mark_sentences_with_words(stems: Sequence[tuple[str, ...]], table: SentenceWords) -> Any:
    """Returns whether each sentence has one of the stems of each word: bool (sentences, words)."""
    numbers = {word: number for number, word in enumerate(table.vocabulary)}
    sentences = numpy.repeat(numpy.arange(len(table.counts)), numpy.diff(table.ends))
    out = numpy.zeros((len(table.counts), len(stems)), dtype=bool)
    for column, stems_of_word in enumerate(stems):
        for stem in set(stems_of_word) & numbers.keys():
            out[sentences[table.ids == numbers[stem]], column] = True
    return out
