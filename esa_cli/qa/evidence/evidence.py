"""Evidence of an answer: the sentences with the highest attention weights, quoted exactly.

A passage is one sentence or line, or a few adjacent ones of similar weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from esa_cli.documents.document import Document
from esa_cli.documents.sentences import LONGEST, Sentences
from esa_cli.qa.answering.reply import Evidence
from esa_cli.qa.evidence.attention_weights import AttentionWeights

FOUND = 1.3
"""Documents whose best sentence has less `strength` than this may not contain the answer. Chosen so
that hardly any answer that is there is doubted: benchmarks/NOTES.md."""
JOIN = 0.5
"""An adjacent sentence joins a passage with at least this share of its heaviest one's weight."""


class EvidenceSource(Protocol):
    """A document with its tokens' characters and rows.

    `spans`: (n, 2) characters [first, end) of each token. `rows`: the n cached
    tokens that are the document's.
    """

    @property
    def document(self) -> Document: ...
    @property
    def spans(self) -> Tensor: ...
    @property
    def rows(self) -> range: ...


@dataclass
class _Passage:
    """Characters [start, end) of a book, their weight, and that of the heaviest sentence."""

    book: int
    start: int
    end: int
    weight: float
    top: float

    def beside(self, book: int, start: int, end: int, text: str) -> bool:
        """True if [start, end) follows or precedes it in the same paragraph."""
        if book != self.book or max(end, self.end) - min(start, self.start) > LONGEST:
            return False
        low, high = (self.end, start) if start >= self.end else (end, self.start)
        return not text[low:high].strip() and "\n\n" not in text[low:high]


def rests_on(
    weighed: AttentionWeights, books: Sequence[EvidenceSource], count: int
) -> tuple[tuple[Evidence, ...], bool]:
    """At most `count` passages, heaviest first, and whether the documents seem to have the answer.

    Args:
        weighed: the `trace` of the question.
    """
    weights = weighed.weights
    passages = heaviest(weights, books, count)
    total = sum(float(weights[_rows(book)].sum()) for book in books)
    quoted = (
        Evidence.of(books[one.book].document, one.start, one.end, one.weight / total)
        for one in passages
    )
    return tuple(quoted), strength(weighed.question_weights, books) >= FOUND


def strength(asked: Tensor, books: Sequence[EvidenceSource]) -> float:
    """Attention of the question's tokens to the best single sentence, averaged over layers.

    1.0 is one token of the sentence with the full attention of some head in every layer. It does
    not grow with the documents.

    Args:
        asked: (N,), as `AttentionWeights.question_weights`.
    """
    each = [w for book in books for w in _by_sentence(book, asked[_rows(book)]).values()]
    return max(each, default=0.0)


def heaviest(weights: Tensor, books: Sequence[EvidenceSource], count: int) -> list[_Passage]:
    """The passages with the most weight, none overlapping.

    Args:
        weights: (N,) of the cached tokens.
    """
    sentences = sorted(
        (
            (weight, -book, -start, end)
            for book, one in enumerate(books)
            for (start, end), weight in _by_sentence(one, weights[_rows(one)]).items()
        ),
        reverse=True,
    )
    out: list[_Passage] = []
    if count < 1:
        return out
    for weight, minus_book, minus_start, end in sentences:
        book, start = -minus_book, -minus_start
        text = books[book].document.text
        for passage in out:
            if weight >= JOIN * passage.top and passage.beside(book, start, end, text):
                passage.start, passage.end = min(start, passage.start), max(end, passage.end)
                passage.weight += weight
                break
        else:
            if len(out) < count:
                out.append(_Passage(book, start, end, weight, weight))
            elif weight < JOIN * out[-1].top:
                break
    return sorted(out, key=lambda passage: -passage.weight)


def _rows(book: EvidenceSource) -> slice:
    return slice(book.rows.start, book.rows.stop)


def _by_sentence(book: EvidenceSource, weights: Tensor) -> dict[tuple[int, int], float]:
    """The weight of each sentence that has any; weights (n,) of the book's tokens."""
    text = book.document.text
    sentences, out = Sentences(text), dict[tuple[int, int], float]()
    at = torch.nonzero(weights > 0)[:, 0]
    for (start, end), weight in zip(book.spans[at].tolist(), weights[at].tolist(), strict=True):
        # A token may begin with the space before its word, which belongs to the sentence before.
        while start < end - 1 and text[start].isspace():
            start += 1
        span = sentences.around(start)
        if span[0] < span[1]:
            out[span] = out.get(span, 0.0) + weight
    return out
