"""Ranks the sentence windows of documents by how likely they answer a question.

Two scores are added, each in standard deviations over all windows: BM25 of the question's words
(`LexicalIndex`), and the votes of the model's retrieval heads, summed over a window's tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esa_cli.attention.precision import to_float64
from esa_cli.qa.finding.lexical_index import LexicalIndex
from esa_cli.qa.finding.unmentioned_names import capitals_mean_names, unmentioned_names


@dataclass(frozen=True)
class FoundPassage:
    """Characters [start, end) of document number `document`; score: in standard deviations."""

    document: int
    start: int
    end: int
    score: float


class PassageFinder:
    """Finds passages of some documents.

    Args:
        texts: of the documents. spans: for each, (n, 2) characters of its tokens, for votes.
    """

    def __init__(self, texts: Sequence[str], spans: Sequence[Tensor]) -> None:
        self.index = LexicalIndex(texts)
        self._names = capitals_mean_names(texts)
        self._spans = list(spans)

    def unmentioned(self, question: str) -> list[str]:
        """Names in the question that no document mentions."""
        return unmentioned_names(question, self.index.knows) if self._names else []

    def find(
        self,
        question: str,
        count: int,
        *,
        earlier: str = "",
        votes: Sequence[Tensor] = (),
        weight: float = 0.0,
    ) -> list[FoundPassage]:
        """The best `count` windows, best first, none overlapping a better one by half of it.

        Args:
            earlier: text of earlier turns that the question refers to; counts half.
            votes: for each document, (n,) of its tokens. weight: of the votes.
        """
        scores = self.index.scores(question)
        if earlier:
            scores = scores + 0.5 * self.index.scores(earlier)
        scores = standardised(scores)
        if weight and votes:
            scores = scores + weight * standardised(self._summed(votes))
        return self._best(scores, count)

    def _summed(self, votes: Sequence[Tensor]) -> Tensor:
        """Votes of each window's tokens, (windows,)."""
        out = torch.zeros(len(self.index))
        documents = torch.tensor(self.index.documents)
        windows = torch.tensor([(one.start, one.end) for one in self.index.windows])
        for number, (spans, one) in enumerate(zip(self._spans, votes, strict=True)):
            if (own := documents == number).any():
                first, last = token_bounds(spans, windows[own])
                # float64: differences of sums over a whole book
                summed = to_float64(one).cumsum(0)
                sums = torch.cat((summed.new_zeros(1), summed))
                out[own] = (sums[last] - sums[first]).float()
        return out

    def _best(self, scores: Tensor, count: int) -> list[FoundPassage]:
        out: list[FoundPassage] = []
        for at in scores.argsort(descending=True, stable=True).tolist():
            window, document = self.index.windows[at], self.index.documents[at]
            if not any(
                one.document == document and _half(one, window.start, window.end) for one in out
            ):
                out.append(FoundPassage(document, window.start, window.end, float(scores[at])))
                if len(out) == count:
                    break
        return out


def standardised(scores: Tensor) -> Tensor:
    """Scores less their mean, in standard deviations; zeros where all are the same."""
    if scores.numel() < 2 or scores.min() == scores.max():
        return torch.zeros_like(scores)
    return (scores - scores.mean()) / scores.std()


def _half(one: FoundPassage, start: int, end: int) -> bool:
    shared = min(one.end, end) - max(one.start, start)
    return 2 * shared >= min(one.end - one.start, end - start)


def token_bounds(spans: Tensor, characters: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens [first, last) that have one of the characters [start, end), for each row (start, end);
    `spans` (n, 2) are the characters of each token."""
    spans, characters = spans.long(), characters.long()
    first = torch.searchsorted(spans[:, 1].contiguous(), characters[:, 0].contiguous(), right=True)
    last = torch.searchsorted(spans[:, 0].contiguous(), characters[:, 1].contiguous())
    return first, last.maximum(first)
