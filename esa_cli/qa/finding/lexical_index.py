"""BM25 scores of a document's sentence windows, with those of the text around them.

A question names people and places that the answering sentences call "he" and "there"; the words of
the surrounding text then tell one passage from another. So a window's score is BM25 of itself, plus
that of the windows of 200 and of 600 words around it. Measured: docs/results.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from esa_cli.qa.finding.sentence_windows import TextWindow, sentence_spans, sentence_windows
from esa_cli.system.bm25_scores import Bm25
from esa_cli.system.content_words import content_words, word_count

WINDOW_WORDS = 60
AROUND = ((200, 0.6), (600, 0.6))
"""Words of the windows around, and the weight of their score."""


class LexicalIndex:
    """Words of one or several documents, for BM25 scores of their windows.

    Args:
        texts: of the documents; statistics of words are over all of them.

    `windows[i]` is in document `documents[i]`.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.windows: list[TextWindow] = []
        self.documents: list[int] = []
        self._vocabulary: dict[str, int] = {}
        scales: list[list[list[int]]] = [[] for _ in (0, *AROUND)]
        self._around: list[list[int]] = [[] for _ in AROUND]
        for number, text in enumerate(texts):
            self._add(number, text, scales)
        self._scales = [Bm25(scale, self._vocabulary) for scale in scales]
        self._nearest = [torch.tensor(nearest, dtype=torch.long) for nearest in self._around]

    def _add(self, number: int, text: str, scales: list[list[list[int]]]) -> None:
        vocabulary = self._vocabulary
        spans = sentence_spans(text)
        words = [
            [vocabulary.setdefault(word, len(vocabulary)) for word in content_words(text[a:b])]
            for a, b in spans
        ]
        counts = [word_count(text[a:b]) for a, b in spans]
        windows = sentence_windows(spans, counts, WINDOW_WORDS)
        self.windows += windows
        self.documents += [number] * len(windows)
        scales[0] += [list(chain(*words[w.first : w.last])) for w in windows]
        for at, (size, _) in enumerate(AROUND):
            wide = sentence_windows(spans, counts, size)
            base = len(scales[at + 1])
            scales[at + 1] += [list(chain(*words[w.first : w.last])) for w in wide]
            self._around[at] += [base + near for near in _nearest(windows, wide)]

    def __len__(self) -> int:
        return len(self.windows)

    def knows(self, word: str) -> bool:
        """Whether a word, as `content_words` gives it, occurs in the documents."""
        return word in self._vocabulary

    def scores(self, question: str) -> Tensor:
        """BM25 of each window for the question's words, (windows,) float32; 0 without any."""
        words = content_words(question)
        ids = [self._vocabulary[word] for word in words if word in self._vocabulary]
        total = self._scales[0].scores(ids)
        for bm25, nearest, (_, weight) in zip(self._scales[1:], self._nearest, AROUND, strict=True):
            total = total + weight * bm25.scores(ids)[nearest]
        return total


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
