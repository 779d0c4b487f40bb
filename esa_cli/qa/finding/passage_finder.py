"""Ranks the sentence windows of documents by how likely they answer a question.

Scores are added, each in standard deviations over the windows: BM25 of the question's words
(`LexicalIndex`); where the document has been read for the finder, late interaction of reduced
queries and keys, which then counts most. With late interaction one in eight passages is of those
that the words alone rank first: an unusual name or number is found by them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esa_cli.qa.finding.late_interaction import products_around, window_products
from esa_cli.qa.finding.lexical_index import LexicalIndex
from esa_cli.qa.finding.passages_apart import FoundPassage, PassagesApart
from esa_cli.qa.finding.reduced_keys import ReducedKeys
from esa_cli.qa.finding.sentence_words import SentenceWords
from esa_cli.qa.finding.unmentioned_names import capitals_mean_names, unmentioned_share

AROUND = (4, 32, 128)
"""Windows before and after each one that late interaction looks at as well: about a page, some
pages and a chapter. A sentence that answers seldom names all that the question does."""
AROUND_WEIGHT = 0.3
"""Of each of these scores beside the window's own. Of 160 development questions 124, 136 and 144
have their passage among 3, 8 and 16 without, 130, 143 and 148 with them; 0.2 and 0.4, and half or
twice as many windows, are within two."""
FAR = -1.0
"""Least of these scores: where nearly all windows of a text see the same largest products, the few
at its ends that do not would be many standard deviations below."""
LATE = 3.3
"""Weight of late interaction where the words' score has weight 1: the best windows by words are
more standard deviations above the mean, and are right less often. Chosen together with an
`answer.prior` of 0.6, before the scores around a window were added; the prior was chosen again."""
BY_WORDS = 8
"""One in so many passages is found by its words alone where reduced keys rank the others: one in
four lost 3 of 144 found passages of the development books, and gained none."""


SINGLED_OUT = (1.2, 1.4)
"""The best window's BM25 score over the best that does not overlap it, from where the words of the
question begin to single out a passage to where they do: there BM25's first passage was the right
one of 42 of 54 questions about the development books, below of 31 of 106."""
VAGUE = 0.15
"""Share of the words' weight for a question whose words single out no passage."""


FITS = 0.6
"""Late interaction (a weighted mean of cosines, 1 at most) from which a window fits a question of
which the documents have no word: the best window of three development texts for 20 made-up words
each has 0.34 to 0.59, for `canine`, `feline` and `automobile` 0.64 to 0.77. Each of their 120
answerable questions has a word in its text, so none is refused."""


@dataclass(frozen=True)
class ReducedQueries:
    """A question's reduced queries (M, R) with the weight of each (M,).

    Args:
        words: weight of the words' score (BM25) beside theirs where the words single out a passage;
            `VAGUE` of it elsewhere. around: weight of each score of the windows around.
    """

    queries: Tensor
    weights: Tensor
    words: float = 0.0
    around: float = AROUND_WEIGHT


@dataclass(frozen=True)
class WindowScores:
    """Scores of all windows for one question, (windows,) each.

    Args:
        total: what ranks them. words: of the question's words alone, in standard deviations.
        fitting: bool, whether a word of the question is in or around the window; or its document
            has been read for finding, and a document has a word of the question or the window's
            late interaction is at least `FITS`. read: whether one has been for the finder.
    """

    total: Tensor
    words: Tensor
    fitting: Tensor
    read: bool


class PassageFinder:
    """Finds passages of some documents.

    Args:
        texts: of the documents. spans: for each, (n, 2) characters of its tokens. keys: for each,
            the reduced keys (n, R) of its tokens; None where it has not been read. words: as
            `LexicalIndex`.
    """

    def __init__(
        self,
        texts: Sequence[str],
        spans: Sequence[Tensor],
        keys: Sequence[Tensor | ReducedKeys | None] = (),
        words: Sequence[SentenceWords | None] | None = None,
    ) -> None:
        self.index = LexicalIndex(texts, words)
        self._names = capitals_mean_names(texts)
        self._spans, self._keys = list(spans), list(keys)
        documents = torch.tensor(self.index.documents, dtype=torch.long)
        windows = torch.tensor([(one.start, one.end) for one in self.index.windows])
        self._own = [(documents == n).nonzero()[:, 0] for n in range(len(texts))]
        self._bounds = [
            token_bounds(one, windows[own]) if own.numel() else None
            for one, own in zip(self._spans, self._own, strict=False)
        ]

    def unmentioned(self, question: str, small: Callable[[str], bool]) -> float:
        """Share of the words of a name in the question that no document mentions; see
        `unmentioned_share`."""
        return unmentioned_share(question, self.index.knows, small) if self._names else 0.0

    def find(
        self,
        question: str,
        count: int,
        *,
        earlier: str = "",
        reduced: ReducedQueries | None = None,
    ) -> list[FoundPassage]:
        """The best `count` windows, best first, none overlapping a better one by half of it.

        Args:
            earlier: text of earlier turns that the question refers to; counts half. reduced: the
                question's reduced queries, for documents with reduced keys.
        """
        return self.pick(self.scores(question, earlier=earlier, reduced=reduced), count)

    def scores(
        self, question: str, *, earlier: str = "", reduced: ReducedQueries | None = None
    ) -> WindowScores:
        """The scores of all windows; the arguments are those of `find`."""
        words = self.index.scores(question)
        if earlier:
            words = words + 0.5 * self.index.scores(earlier)
        share, fitting = self.singled_out(words), words > 0
        known = bool(fitting.any())
        total = words = standardised(words)
        read = reduced is not None and any(one is not None for one in self._keys)
        if reduced is not None and read:
            late = self.late(reduced)
            total = self._late(late, reduced, reduced.words * share * words, words)
            fitting |= late[0] >= (-1.0 if known else FITS)
        return WindowScores(total, words, fitting, read)

    def pick(self, scores: WindowScores, count: int) -> list[FoundPassage]:
        """The best `count` windows by their scores; see `find`."""
        out = PassagesApart()
        by_words = count // BY_WORDS if scores.read else 0
        self._fill(out, scores.total, scores.total, count - by_words)
        self._fill(out, scores.words, scores.total, count)
        return out.passages

    def late(self, reduced: ReducedQueries) -> Tensor:
        """Late interaction of each window, and of the windows around it by `AROUND`,
        (1 + len(AROUND), windows); nan where a document has no reduced keys."""
        out = torch.full((1 + len(AROUND), len(self.index)), torch.nan)
        for own, bounds, keys in zip(self._own, self._bounds, self._keys, strict=True):
            if bounds is not None and keys is not None:
                products = window_products(reduced.queries, keys, *bounds)
                wide = [products_around(products, windows) for windows in AROUND]
                out[:, own] = torch.stack([products, *wide]) @ reduced.weights
        return out

    def _late(self, late: Tensor, reduced: ReducedQueries, beside: Tensor, words: Tensor) -> Tensor:
        """Scores of windows (windows,) by late interaction, see `late`, with `beside` (windows,)
        added; `words` (windows,) where a document has no reduced keys."""
        read, out = ~late[0].isnan(), words.clone()
        own, *around = (standardised(one[read]) for one in late)
        wide = torch.stack(around).clamp(min=FAR).sum(0)
        out[read] = LATE * (own + reduced.around * wide + beside[read])
        return out

    def singled_out(self, scores: Tensor) -> float:
        """Share of the words' weight that counts, `VAGUE` to 1, from their scores (windows,)."""
        if not scores.numel() or scores.max() == scores.min():
            return VAGUE
        best, *others = scores.argsort(descending=True, stable=True).tolist()
        next_best = next((at for at in others if not self._overlap(best, at)), best)
        low, high = SINGLED_OUT
        ratio = float(scores[best]) / max(float(scores[next_best]), 1e-9)
        return VAGUE + (1 - VAGUE) * min(1.0, max(0.0, (ratio - low) / (high - low)))

    def _overlap(self, one: int, other: int) -> bool:
        a, b = self.index.windows[one], self.index.windows[other]
        same = self.index.documents[one] == self.index.documents[other]
        return same and a.start < b.end and b.start < a.end

    def _fill(self, out: PassagesApart, by: Tensor, scores: Tensor, count: int) -> None:
        """Adds the best windows by `by` that overlap none before, until there are `count`."""
        if len(out.passages) == count:
            return
        for at in by.argsort(descending=True, stable=True).tolist():
            window = self.index.windows[at]
            score, document = float(scores[at]), self.index.documents[at]
            if (
                out.add(FoundPassage(document, window.start, window.end, score))
                and len(out.passages) == count
            ):
                break


def standardised(scores: Tensor) -> Tensor:
    """Scores less their mean, in standard deviations; zeros where all are the same."""
    if scores.numel() < 2 or scores.min() == scores.max():
        return torch.zeros_like(scores)
    return (scores - scores.mean()) / scores.std()


def token_bounds(spans: Tensor, characters: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens [first, last) that have one of the characters [start, end), for each row (start, end);
    `spans` (n, 2) are the characters of each token."""
    spans, characters = spans.long(), characters.long()
    first = torch.searchsorted(spans[:, 1].contiguous(), characters[:, 0].contiguous(), right=True)
    last = torch.searchsorted(spans[:, 0].contiguous(), characters[:, 1].contiguous())
    return first, last.maximum(first)
