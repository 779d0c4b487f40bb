"""Ranks the sentence windows of documents by how likely they answer a question.

Two scores are added, each in standard deviations over all windows: BM25 of the question's words
(`LexicalIndex`), and the votes of the model's retrieval heads, summed over a window's tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esa_cli.qa.finding.lexical_index import LexicalIndex


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
        self._bounds = [
            _token_bounds(spans[document], window.start, window.end)
            for document, window in zip(self.index.documents, self.index.windows, strict=True)
        ] if spans else []  # fmt: skip

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
        sums = [torch.cat((torch.zeros(1), one.float().cumsum(0))) for one in votes]
        return torch.stack([
            sums[document][last] - sums[document][first]
            for document, (first, last) in zip(self.index.documents, self._bounds, strict=True)
        ])  # fmt: skip

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
    if scores.numel() < 2:
        return torch.zeros_like(scores)
    spread = scores.std()
    return (scores - scores.mean()) / spread if spread > 0 else torch.zeros_like(scores)


def _half(one: FoundPassage, start: int, end: int) -> bool:
    shared = min(one.end, end) - max(one.start, start)
    return 2 * shared >= min(one.end - one.start, end - start)


def _token_bounds(spans: Tensor, start: int, end: int) -> tuple[int, int]:
    """Tokens [first, last) that begin within characters [start, end)."""
    first, last = torch.searchsorted(
        spans[:, 1].contiguous(), torch.tensor([start, end - 1]), right=True
    ).tolist()
    return first, max(first, min(last + 1, len(spans)))
