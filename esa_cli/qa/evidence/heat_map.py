"""Heat maps of an answer: which characters of its documents have weight, in shades."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from esa_cli.qa.answering.reply import HeatMap, ShadedSpan
from esa_cli.qa.evidence.evidence import EvidenceSource

LEVELS = 8
"""Shades; style sheets have a class for each."""
COLD = 1 / 64
"""A token with less than this share of the heaviest token's weight is plain."""


def heat_maps(books: Sequence[EvidenceSource], weights: Tensor) -> list[HeatMap]:
    """One for each book, in shades of the heaviest token of all.

    Args:
        weights: (N,) of all cached tokens, as `AttentionWeights.weights`.
    """
    top = heaviest_token(books, weights)
    return [
        HeatMap(book.document.name, tuple(shaded_spans(book.spans, weights_of(book, weights), top)))
        for book in books
    ]


def weights_of(book: EvidenceSource, weights: Tensor) -> Tensor:
    """(n,) of the book's tokens, out of (N,)."""
    return weights[book.rows.start : book.rows.stop]


def heaviest_token(books: Sequence[EvidenceSource], weights: Tensor) -> float:
    """The highest weight of a token of the books; 0 where they have none."""
    return max(
        (float(weights_of(book, weights).max()) for book in books if len(book.rows)), default=0.0
    )


def shaded_spans(spans: Tensor, weights: Tensor, top: float) -> list[ShadedSpan]:
    """The characters of the tokens that are not cold, ascending and apart.

    Args:
        spans: (n, 2) characters of each token. weights: (n,). top: the weight of the last shade.
    """
    out: list[ShadedSpan] = []
    if top <= 0:
        return out
    for i in (weights >= COLD * top).nonzero()[:, 0].tolist():
        start, end = int(spans[i, 0]), int(spans[i, 1])
        start = max(start, out[-1].end) if out else start
        level = max(1, round(LEVELS * (float(weights[i]) / top) ** 0.5))
        if out and out[-1][1:] == (start, level):
            out[-1] = ShadedSpan(out[-1].start, end, level)
        elif start < end:
            out.append(ShadedSpan(start, end, level))
    return out
