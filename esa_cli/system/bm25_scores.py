"""BM25 of texts given as lists of word ids, by the bm25s library.

For a question's words w, each of which counts as often as it is asked:

    score(d) = sum over w of idf(w) * tf(w, d) / (tf(w, d) + k1 * (1 - b + b * |d| / mean |d|))
    idf(w)   = ln(1 + (n - df(w) + 1/2) / (df(w) + 1/2))     n texts, df(w) of them with the word
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

K1, B = 1.5, 0.75
"""Saturation of a word's count and normalisation by length, the usual values."""


class Bm25:
    """The words of some texts.

    Args:
        texts: the ids of each text's words, below `len(vocabulary)`. vocabulary: word -> id.
    """

    def __init__(self, texts: list[list[int]], vocabulary: dict[str, int]) -> None:
        import bm25s

        self._count = len(texts)
        self._index: Any = None
        if any(texts):
            self._index = bm25s.BM25(k1=K1, b=B)
            tokens = bm25s.tokenization.Tokenized(ids=texts, vocab=vocabulary)
            self._index.index(tokens, show_progress=False)

    def scores(self, ids: list[int]) -> Tensor:
        """BM25 of each text for the words `ids`, (texts,) float32; 0 without any."""
        if self._index is None or not ids:
            return torch.zeros(self._count)
        return torch.from_numpy(self._index.get_scores_from_ids(ids)).float()
