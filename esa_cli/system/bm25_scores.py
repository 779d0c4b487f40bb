"""BM25 scores of texts whose words are numbers, computed for every word when the texts are indexed.

The score of a text d for a question with the words w, where a repeated word counts repeatedly:

    score(d) = sum over w of idf(w) * tf(w, d) / (tf(w, d) + k1 * (1 - b + b * |d| / mean |d|))
    idf(w)   = ln(1 + (n - df(w) + 1/2) / (df(w) + 1/2))     n texts, df(w) of them with the word

The scores equal those of the library bm25s bit for bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy
import torch
from torch import Tensor

K1, B = 1.5, 0.75
"""The usual values of k1, the saturation of a word's count, and b, the length normalisation."""


class Bm25Index:
    """An index that computes BM25 scores of texts: `ids` (n,) are the word numbers of all texts,
    one text after the other, below `vocabulary`; `sizes` (texts,) are the numbers of words of the
    texts."""

    def __init__(self, ids: Any, sizes: Any, vocabulary: int) -> None:
        self._count = texts = len(sizes)
        # One number for each word of each text; sorted, it is by words and then by texts.
        pairs = ids.astype(numpy.int64) * texts + numpy.repeat(numpy.arange(texts), sizes)
        pairs.sort()
        first = numpy.flatnonzero(numpy.diff(pairs, prepend=-1))
        word_counts = numpy.diff(first, append=len(pairs))
        words, own = numpy.divmod(pairs[first], max(1, texts))
        self._texts = own.astype(numpy.int32)
        text_counts = numpy.bincount(words, minlength=vocabulary)
        self._ends = numpy.append(0, text_counts.cumsum())
        # In float64 and then rounded, as bm25s does.
        length = K1 * ((1 - B) + B * sizes / sizes.mean()) if len(pairs) else sizes
        frequencies = _inverse_document_frequency(text_counts, texts)[words]
        scores = frequencies * (word_counts / (length[self._texts] + word_counts))
        self._scores = scores.astype(numpy.float32)

    @classmethod
    def of(cls, texts: Sequence[Sequence[int]], vocabulary: int) -> Bm25Index:
        """Builds the index from each text's word numbers."""
        ids = numpy.array([*chain(*texts)], dtype=numpy.int64)
        return cls(ids, numpy.array([len(text) for text in texts], dtype=numpy.int64), vocabulary)

    def scores(self, ids: Sequence[int]) -> Tensor:
        """Returns the BM25 score of each text for the word numbers `ids`, (texts,) float32; 0 for
        texts without any of these words."""
        out = numpy.zeros(self._count, dtype=numpy.float32)
        for word in ids:
            own = slice(self._ends[word], self._ends[word + 1])
            out[self._texts[own]] += self._scores[own]
        return torch.from_numpy(out)


def _inverse_document_frequency(text_counts: Any, total_texts: int) -> Any:
    """Returns the inverse document frequency of each word, (vocabulary,) float32, from the number
    of texts that contain each word."""
    counts, at = numpy.unique(text_counts, return_inverse=True)
    values = [math.log(1 + (total_texts - df + 0.5) / (df + 0.5)) for df in counts.tolist()]
    return numpy.array(values, dtype=numpy.float32)[at]
