"""Ranks the sentence windows of documents by how likely they answer a question.

Scores are added, each in standard deviations over the windows: BM25 of the question's words
(`LexicalIndex`); where the document has been read for the finder, late interaction of reduced
queries and keys, which then counts most. With late interaction one in eight passages is of those
that the words alone rank first: an unusual name or number is found by them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

from esa_cli.errors import UsageError
from esa_cli.qa.finding.books import Book
from esa_cli.qa.finding.finder import Finder
from esa_cli.qa.finding.late_interaction import ReducedKeys, products_around, window_products
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.finding.windows import FoundPassage, shared_characters
from esa_cli.qa.finding.words import (
    LexicalIndex,
    SentenceWords,
    capitals_mean_names,
    sentence_words,
    unmentioned_share,
)
from esa_cli.system.content_words import question_words

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


class ReducedQueries(NamedTuple):
    """A question's reduced queries (M, R), the weight of each (M,), and the weight of the words'
    score (BM25) beside theirs where the words single out a passage; `VAGUE` of it elsewhere."""

    queries: Tensor
    weights: Tensor
    words: float = 0.0


class WindowScores(NamedTuple):
    """Scores of all windows for one question, (windows,) each.

    Args:
        total: what ranks them. words: of the question's words alone, in standard deviations.
        fitting: bool, whether a word of the question is in or around the window; or its document
            has been read for finding, and a document has a word of the question or the window's
            late interaction is at least `FITS`. read: whether a document has been read for finding.
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
        documents = torch.tensor(self.index.documents, dtype=torch.long)
        windows = torch.tensor([(one.start, one.end) for one in self.index.windows])
        self._read: list[tuple[Tensor, tuple[Tensor, Tensor], Tensor | ReducedKeys]] = []
        """Of each document with reduced keys: its windows, their tokens [first, last), and keys."""
        for number, (token_spans, token_keys) in enumerate(zip(spans, keys, strict=False)):
            own = (documents == number).nonzero()[:, 0]
            if token_keys is not None and own.numel():
                self._read.append((own, token_bounds(token_spans, windows[own]), token_keys))

    def unmentioned(self, question: str, small: Callable[[str], bool]) -> float:
        """Share of the words of a name in the question that no document mentions; see
        `unmentioned_share`."""
        return unmentioned_share(question, self.index.knows, small) if self._names else 0.0

    def find(
        self, question: str, count: int, *, earlier: str = "", reduced: ReducedQueries | None = None
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
        bm25 = self.index.scores(question)
        if earlier:
            bm25 = bm25 + 0.5 * self.index.scores(earlier)
        words, fitting = standardised(bm25), bm25 > 0
        if reduced is None or not self._read:
            return WindowScores(words, words, fitting, read=False)
        late, total = self.late(reduced), words.clone()
        fitting |= late[0] >= (-1.0 if fitting.any() else FITS)
        read = ~late[0].isnan()
        own, *around = (standardised(scores[read]) for scores in late)
        wide = torch.stack(around).clamp(min=FAR).sum(0)
        beside = reduced.words * self.singled_out(bm25) * words
        total[read] = LATE * (own + AROUND_WEIGHT * wide + beside[read])
        return WindowScores(total, words, fitting, read=True)

    def late(self, reduced: ReducedQueries) -> Tensor:
        """Late interaction of each window, and of the windows around it by `AROUND`,
        (1 + len(AROUND), windows); nan where a document has no reduced keys."""
        out = torch.full((1 + len(AROUND), len(self.index)), torch.nan)
        for own, bounds, keys in self._read:
            products = window_products(reduced.queries, keys, *bounds)
            wide = [products_around(products, windows) for windows in AROUND]
            out[:, own] = torch.stack([products, *wide]) @ reduced.weights
        return out

    def singled_out(self, scores: Tensor) -> float:
        """Share of the words' weight that counts, `VAGUE` to 1, from their scores (windows,)."""
        if not scores.numel() or scores.max() == scores.min():
            return VAGUE
        best, *others = scores.argsort(descending=True, stable=True).tolist()
        beside = dict(self._overlapping(best))
        next_best = next((at for at in others if at not in beside), best)
        low, high = SINGLED_OUT
        ratio = float(scores[best]) / max(float(scores[next_best]), 1e-9)
        return VAGUE + (1 - VAGUE) * min(1.0, max(0.0, (ratio - low) / (high - low)))

    def pick(self, scores: WindowScores, count: int) -> list[FoundPassage]:
        """The best `count` windows by their scores, none overlapping a better one by half; the last
        ones by their words alone, see `BY_WORDS`."""
        picked, overlapping = list[int](), set[int]()
        by_words = count // BY_WORDS if scores.read else 0
        for ranking, most in ((scores.total, count - by_words), (scores.words, count)):
            for at in ranking.argsort(descending=True, stable=True).tolist():
                if len(picked) >= most:
                    break
                if at not in overlapping:
                    picked.append(at)
                    overlapping.update(n for n, share in self._overlapping(at) if share >= 0.5)
        return [self.passage(at, scores.total) for at in picked]

    def _overlapping(self, at: int) -> Iterator[tuple[int, float]]:
        """The windows that overlap a window, itself too, with the share of the shorter one."""
        windows, documents = self.index.windows, self.index.documents
        for others in (range(at, -1, -1), range(at + 1, len(windows))):
            for n in others:
                shared = shared_characters(windows[at], windows[n])
                if documents[n] != documents[at] or shared <= 0:
                    break  # windows are in the order of their beginnings and of their ends
                sizes = (one.end - one.start for one in (windows[at], windows[n]))
                yield n, shared / min(sizes)

    def passage(self, at: int, scores: Tensor) -> FoundPassage:
        """A window, with its score of (windows,)."""
        window = self.index.windows[at]
        return FoundPassage(self.index.documents[at], window.start, window.end, float(scores[at]))


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


COUNT = 8
ABOVE = 2.0
"""The least score where all passages are asked for: about one window in thirty has it."""


class PassageSearch:
    """Finds passages in books; the index of the last books' words is kept.

    Args:
        encoder: of the preset's finder; None: there is none. words: see `ReducedQueries`.
    """

    def __init__(self, encoder: Finder | None = None, words: float = 0.0) -> None:
        self._encoder, self._words = encoder, words
        self._last: tuple[list[str], list[ReducedKeys | None], PassageFinder] | None = None

    def finder(self, books: Sequence[Book]) -> PassageFinder:
        """The finder of these books; that of the last ones is kept."""
        texts, keys = [book.document.text for book in books], [book.index for book in books]
        last = self._last
        if last is None or texts != last[0] or list(map(id, keys)) != list(map(id, last[1])):
            spans, words = [book.spans for book in books], [book.words for book in books]
            last = self._last = texts, keys, PassageFinder(texts, spans, keys, words)
        return last[2]

    def reduced(self, question: str, books: Sequence[Book]) -> ReducedQueries | None:
        """The reduced queries of a question, where a document has reduced keys."""
        if self._encoder is None or all(book.index is None for book in books):
            return None
        queries, weights = self._encoder.questions([question])
        return ReducedQueries(queries[0].cpu(), weights[0].cpu(), self._words)

    @torch.inference_mode()
    def find(
        self, question: str, books: Sequence[Book], count: int, earlier: str = ""
    ) -> list[Passage]:
        """The best `count` passages for an answer, best first; see `PassageFinder.find`."""
        reduced = self.reduced(f"{earlier} {question}".strip(), books)
        found = self.finder(books).find(question, count, earlier=earlier, reduced=reduced)
        return placed(books, found)

    @torch.inference_mode()
    def passages(
        self,
        question: str,
        books: Sequence[Book],
        count: int | None = COUNT,
        minimum: float | None = None,
    ) -> list[Passage]:
        """The best passages, best first, none overlapping a better one by half of it. Those that
        fit the question, see `WindowScores.fitting`.

        Args:
            count: at most; None: all. minimum: least score; None: 0, and where `count` is None 2,
                or the best passage's score if that is lower.

        Raises:
            UsageError: there is no book, or `count` is below 1.
        """
        if not books:
            raise UsageError("no document to search", "name one")
        if count is not None and count < 1:
            raise UsageError(f"count must be at least 1, got {count}", "None gives all passages")
        finder = self.finder(books)
        scores = finder.scores(question, reduced=self.reduced(question, books))
        total = standardised(scores.total).masked_fill(~scores.fitting, -torch.inf)
        most = len(finder.index) if count is None else count
        found = finder.pick(scores._replace(total=total), most)
        if minimum is None:
            best = max((one.score for one in found), default=0.0)
            minimum = min(ABOVE, best) if count is None else 0.0
        fitting = [one for one in found if one.score >= minimum and one.score > -torch.inf]
        return placed(books, sorted(fitting, key=lambda one: -one.score))


def placed(books: Sequence[Book], found: Sequence[FoundPassage]) -> list[Passage]:
    """Passages with their places in the documents."""
    return [
        Passage.of(books[one.document].document, one.start, one.end, score=one.score)
        for one in found
    ]


@dataclass(frozen=True)
class WordPassages:
    """Passages with the words of a query: each has `most` of its `words` different content words,
    and no passage of the documents has more."""

    passages: list[Passage]
    most: int
    words: int


def passages_with_words(query: str, books: Sequence[Book]) -> WordPassages:
    """Every place with the content words of a query: all of them, or where no passage has all, as
    many as any passage has. The passages, best first by BM25, have every such sentence; a passage
    whose sentences better ones have is left out. Raises UsageError: there is no book."""
    if not books:
        raise UsageError("no document to search", "name one")
    texts = [book.document.text for book in books]
    words = [book.words or sentence_words(text) for book, text in zip(books, texts, strict=True)]
    finder = PassageFinder(texts, [], words=words)
    index = finder.index
    wanted = list(dict.fromkeys(question_words(query, {one.language for one in words})))
    having = [_sentences_with(wanted, one) for one in words]
    left = [sentences.any(1) for sentences in having]
    counts = [
        int(having[document][window.first : window.last].any(0).sum())
        for window, document in zip(index.windows, index.documents, strict=True)
    ]
    most = max(counts, default=0)
    scores, found = standardised(index.scores(query)), list[FoundPassage]()
    for at in scores.argsort(descending=True, stable=True).tolist() if most else ():
        window, unseen = index.windows[at], left[index.documents[at]]
        if counts[at] == most and unseen[window.first : window.last].any():
            unseen[window.first : window.last] = False
            found.append(finder.passage(at, scores))
    return WordPassages(placed(books, found), most, len(wanted))


def _sentences_with(wanted: Sequence[tuple[str, ...]], words: SentenceWords) -> Any:
    """(sentences, words) bool, which sentence of a document has which word, given as its stems."""
    numbers = {word: number for number, word in enumerate(words.vocabulary)}
    sentences = numpy.repeat(numpy.arange(len(words.counts)), numpy.diff(words.ends))
    out = numpy.zeros((len(words.counts), len(wanted)), dtype=bool)
    for column, stems in enumerate(wanted):
        for stem in set(stems) & numbers.keys():
            out[sentences[words.ids == numbers[stem]], column] = True
    return out
