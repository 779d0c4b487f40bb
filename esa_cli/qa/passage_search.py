"""Passages of books that fit a question, ranked, each with its place; no answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy
import torch

from esa_cli.errors import UsageError
from esa_cli.qa.answering.passage import Passage
from esa_cli.qa.books import Book
from esa_cli.qa.finding.passage_finder import PassageFinder, ReducedQueries, standardised
from esa_cli.qa.finding.passages_apart import FoundPassage
from esa_cli.qa.finding.reduced_keys import ReducedKeys
from esa_cli.qa.finding.sentence_words import sentence_words
from esa_cli.system.content_words import question_words

if TYPE_CHECKING:  # they import the model's library, which words alone do not need
    from esa_cli.qa.finding.token_encoder import TokenEncoder

COUNT = 8
ABOVE = 2.0
"""The least score where all passages are asked for: about one window in thirty has it."""


class PassageSearch:
    """Finds passages in books; the index of the last books' words is kept.

    Args:
        encoder: of the preset's finder; None: there is none. words: see `ReducedQueries`.
    """

    def __init__(self, encoder: TokenEncoder | None = None, words: float = 0.0) -> None:
        self._encoder, self._words = encoder, words
        self._kept: tuple[list[str], list[ReducedKeys | None], PassageFinder] | None = None

    def finder(self, books: Sequence[Book]) -> PassageFinder:
        """The finder of these books; that of the last ones is kept."""
        texts = [book.document.text for book in books]
        keys = [book.index for book in books]
        if (
            self._kept is None
            or texts != self._kept[0]
            or any(one is not other for one, other in zip(keys, self._kept[1], strict=True))
        ):
            spans, words = [book.spans for book in books], [book.words for book in books]
            finder = PassageFinder(texts, spans, keys, words)
            self._kept = texts, keys, finder
        return self._kept[2]

    def reduced(self, asked: str, books: Sequence[Book]) -> ReducedQueries | None:
        """The reduced queries of a question, where a document has reduced keys."""
        if self._encoder is None or all(book.index is None for book in books):
            return None
        queries, shares = self._encoder.questions([asked])
        return ReducedQueries(queries[0].cpu(), shares[0].cpu(), self._words)

    @torch.inference_mode()
    def passages(
        self,
        question: str,
        books: Sequence[Book],
        count: int | None = COUNT,
        minimum: float | None = None,
    ) -> list[Passage]:
        """The best passages, best first, none overlapping a better one by half of it.

        A document that has not been read for finding has those with a word of the question in
        them or around them. Where no document has any of its words, those of a document that has
        been read fit from a score of the finder that nonsense does not reach (`FITS`).

        Args:
            count: at most; None: all. minimum: least score; None: 0, and where `count` is None 2,
                or the best passage's score if that is lower.

        Raises:
            UsageError: there is no book, or `count` is below 1.
        """
        if not books:
            raise UsageError("no document to search", "name one")
        if count is not None and count < 1:
            raise UsageError(f"count must be at least 1, got {count}", "None gives all passages")
        finder = self.finder(books)
        scores = finder.scores(question, reduced=self.reduced(question, books))
        total = standardised(scores.total).masked_fill(~scores.fitting, -torch.inf)
        most = len(finder.index) if count is None else count
        found = finder.pick(replace(scores, total=total), most)
        best = max((one.score for one in found), default=0.0)
        if minimum is None:
            minimum = min(ABOVE, best) if count is None else 0.0
        kept = [one for one in found if one.score >= minimum and one.score > -torch.inf]
        kept.sort(key=lambda one: -one.score)
        return [_placed(books[one.document], one) for one in kept]


@dataclass(frozen=True)
class WordPassages:
    """Passages with the words of a query: each has `most` of its `words` different content words,
    and no passage of the documents has more."""

    passages: list[Passage]
    most: int
    words: int


def passages_with_words(query: str, books: Sequence[Book]) -> WordPassages:
    """Every place with the content words of a query: all of them, or where no passage has all, as
    many as any passage has. The passages, best first by BM25, have every such sentence; a passage
    whose sentences better ones have is left out.

    Raises:
        UsageError: there is no book.
    """
    if not books:
        raise UsageError("no document to search", "name one")
    books = [
        replace(book, words=book.words or sentence_words(book.document.text)) for book in books
    ]
    finder = PassageSearch().finder(books)
    languages = {book.words.language for book in books if book.words}
    wanted, index = list(dict.fromkeys(question_words(query, languages))), finder.index
    having = [_sentences_with(wanted, book) for book in books]
    left = [sentences.any(1) for sentences in having]
    counts = [
        int(having[document][window.first : window.last].any(0).sum())
        for window, document in zip(index.windows, index.documents, strict=True)
    ]
    most = max(counts, default=0)
    scores = standardised(finder.scores(query).words)
    passages: list[Passage] = []
    for at in scores.argsort(descending=True, stable=True).tolist() if most else ():
        window, document = index.windows[at], index.documents[at]
        sentences = slice(window.first, window.last)
        if counts[at] == most and left[document][sentences].any():
            left[document][sentences] = False
            one = FoundPassage(document, window.start, window.end, float(scores[at]))
            passages.append(_placed(books[document], one))
    return WordPassages(passages, most, len(wanted))


def _sentences_with(words: Sequence[tuple[str, ...]], book: Book) -> Any:
    """(sentences, words) bool, which sentence of a book has which word, given as its stems."""
    known = book.words
    assert known is not None
    numbers = {word: number for number, word in enumerate(known.vocabulary)}
    sentences = numpy.repeat(numpy.arange(len(known.counts)), numpy.diff(known.ends))
    out = numpy.zeros((len(known.counts), len(words)), dtype=bool)
    for column, stems in enumerate(words):
        for stem in set(stems) & numbers.keys():
            out[sentences[known.ids == numbers[stem]], column] = True
    return out


def _placed(book: Book, one: FoundPassage) -> Passage:
    document, place = book.document, book.document.place(one.start)
    return Passage(
        document.name, document.source, place.page, place.line, place.chapter,
        one.start, one.end, document.text[one.start : one.end], one.score,
    )  # fmt: skip
