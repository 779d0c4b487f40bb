"""BM25 scores of a document's sentence windows, with those of the text around them.

A question names people and places that the answering sentences call "he" and "there"; the words of
the surrounding text then tell one passage from another. So a window's score is BM25 of itself, plus
that of the windows of 200 and of 600 words around it. Measured: docs/results.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from esa_cli.qa.finding.sentence_windows import TextWindow, sentence_windows
from esa_cli.qa.finding.sentence_words import SentenceWords, sentence_words
from esa_cli.system.bm25_scores import Bm25
from esa_cli.system.content_words import question_words

WINDOW_WORDS = 60
AROUND = ((200, 0.6), (600, 0.6))
"""Words of the windows around, and the weight of their score."""


class LexicalIndex:
    """Words of one or several documents, for BM25 scores of their windows.

    Args:
        texts: of the documents; statistics of words are over all of them. words: of each; None
            where they are not known.

    `windows[i]` is in document `documents[i]`. A question's words are stemmed as each document's.
    """

    def __init__(
        self, texts: Sequence[str], words: Sequence[SentenceWords | None] | None = None
    ) -> None:
        self.windows: list[TextWindow] = []
        self.documents: list[int] = []
        self._vocabulary: dict[str, int] = {}
        self._languages: dict[str, None] = {}
        scales = [_Scale(size) for size in (WINDOW_WORDS, *(size for size, _ in AROUND))]
        self._around: list[list[int]] = [[] for _ in AROUND]
        for number, text in enumerate(texts):
            own = None if words is None else words[number]
            self._add(number, own or sentence_words(text), scales)
        self._scales = [scale.bm25(len(self._vocabulary)) for scale in scales]
        self._nearest = [torch.tensor(nearest, dtype=torch.long) for nearest in self._around]

    def _add(self, number: int, words: SentenceWords, scales: Sequence[_Scale]) -> None:
        self._languages[words.language] = None
        known = self._vocabulary
        numbers = [known.setdefault(word, len(known)) for word in words.vocabulary]
        ids = numpy.array(numbers, dtype=numpy.int64)[words.ids]
        spans = list(map(tuple, words.spans.tolist()))
        base = [scale.texts for scale in scales]
        windows, *wide = [
            scale.add(ids, words.ends, sentence_windows(spans, words.counts.tolist(), scale.size))
            for scale in scales
        ]
        self.windows += windows
        self.documents += [number] * len(windows)
        for around, first, others in zip(self._around, base[1:], wide, strict=True):
            around += [first + near for near in _nearest(windows, others)]

    def __len__(self) -> int:
        return len(self.windows)

    def knows(self, word: str) -> bool:
        """Whether a word, as it is written, occurs in the documents in any form. False of words of
        which `question_words` has none."""
        return bool(self._known(word))

    def _known(self, question: str) -> list[int]:
        """Numbers of the question's words that the documents have."""
        words = question_words(question, self._languages)
        return [
            self._vocabulary[stem] for stems in words for stem in stems if stem in self._vocabulary
        ]

    def scores(self, question: str) -> Tensor:
        """BM25 of each window for the question's words, (windows,) float32; 0 without any."""
        ids = self._known(question)
        total = self._scales[0].scores(ids)
        for bm25, nearest, (_, weight) in zip(self._scales[1:], self._nearest, AROUND, strict=True):
            total = total + weight * bm25.scores(ids)[nearest]
        return total


class _Scale:
    """The words of all windows of about `size` words."""

    def __init__(self, size: int) -> None:
        self.size, self.texts = size, 0
        self._ids: list[Any] = [numpy.empty(0, dtype=numpy.int64)]
        self._sizes: list[Any] = [numpy.empty(0, dtype=numpy.int64)]

    def add(self, ids: Any, ends: Any, windows: list[TextWindow]) -> list[TextWindow]:
        """Adds windows of a document, and returns them.

        Args:
            ids: (n,) its words. ends: see `SentenceWords.ends`.
        """
        begin = ends[[one.first for one in windows]]
        sizes = ends[[one.last for one in windows]] - begin
        # The places of all windows' words, counted on from each window's first.
        skipped = numpy.repeat(begin - (sizes.cumsum() - sizes), sizes)
        self._ids.append(ids[numpy.arange(len(skipped)) + skipped])
        self._sizes.append(sizes)
        self.texts += len(windows)
        return windows

    def bm25(self, vocabulary: int) -> Bm25:
        return Bm25(numpy.concatenate(self._ids), numpy.concatenate(self._sizes), vocabulary)


def _nearest(windows: Sequence[TextWindow], wide: Sequence[TextWindow]) -> list[int]:
    """For each window the wide one whose middle is nearest to its own."""
    out, at = [], 0
    for window in windows:
        middle = window.start + window.end
        while at + 1 < len(wide) and abs(wide[at + 1].start + wide[at + 1].end - middle) <= abs(
            wide[at].start + wide[at].end - middle
        ):
            at += 1
        out.append(at)
    return out
