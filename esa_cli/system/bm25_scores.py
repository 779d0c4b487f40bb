"""BM25 of texts given as word ids, every word's scores computed when the texts are indexed.

For a question's words w, each of which counts as often as it is asked:

    score(d) = sum over w of idf(w) * tf(w, d) / (tf(w, d) + k1 * (1 - b + b * |d| / mean |d|))
    idf(w)   = ln(1 + (n - df(w) + 1/2) / (df(w) + 1/2))     n texts, df(w) of them with the word

The scores are those of the library bm25s bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy
import torch
from torch import Tensor

K1, B = 1.5, 0.75
"""Saturation of a word's count and normalisation by length, the usual values."""


class Bm25:
    """The words of some texts: `ids` (n,) of all texts one after the other, below `vocabulary`, and
    `sizes` (texts,), the number of each text's words."""

    def __init__(self, ids: Any, sizes: Any, vocabulary: int) -> None:
        self._count = texts = len(sizes)
        # One number for each word of each text; sorted, it is by words and then by texts.
        pairs = ids.astype(numpy.int64) * texts + numpy.repeat(numpy.arange(texts), sizes)
        pairs.sort()
        first = numpy.flatnonzero(numpy.diff(pairs, prepend=-1))
        times = numpy.diff(first, append=len(pairs))
        words, own = numpy.divmod(pairs[first], max(1, texts))
        self._texts = own.astype(numpy.int32)
        having = numpy.bincount(words, minlength=vocabulary)
        self._ends = numpy.append(0, having.cumsum())
        # In float64 and then rounded, as bm25s does.
        length = K1 * ((1 - B) + B * sizes / sizes.mean()) if len(pairs) else sizes
        scores = _idf(having, texts)[words] * (times / (length[self._texts] + times))
        self._scores = scores.astype(numpy.float32)

    @classmethod
    def of(cls, texts: Sequence[Sequence[int]], vocabulary: int) -> Bm25:
        """Makes the scores from the ids of each text's words."""
        ids = numpy.array([*chain(*texts)], dtype=numpy.int64)
        return cls(ids, numpy.array([len(text) for text in texts], dtype=numpy.int64), vocabulary)

    def scores(self, ids: Sequence[int]) -> Tensor:
        """Returns BM25 of each text for the words `ids`, (texts,) float32; 0 without any."""
        out = numpy.zeros(self._count, dtype=numpy.float32)
        for word in ids:
            own = slice(self._ends[word], self._ends[word + 1])
            out[self._texts[own]] += self._scores[own]
        return torch.from_numpy(out)


def _idf(having: Any, texts: int) -> Any:
    """Returns the inverse document frequency of each word, (vocabulary,) float32."""
    counts, at = numpy.unique(having, return_inverse=True)
    values = [math.log(1 + (texts - df + 0.5) / (df + 0.5)) for df in counts.tolist()]
    return numpy.array(values, dtype=numpy.float32)[at]
