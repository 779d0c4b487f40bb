"""Documents that can be asked about (books), and the search for passages that answer questions.

A passage is a window of sentences, whose score is the log-odds that it answers the question."""

from __future__ import annotations

import calendar
import json
import math
import re
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path, PurePath
from typing import NamedTuple

import torch
from torch import Tensor

from esa_cli.documents.document import Document
from esa_cli.documents.outline import find_contents, find_place
from esa_cli.errors import UsageError
from esa_cli.models.files.checkpoint_files import convert_read_errors
from esa_cli.qa.finding.finder import (
    Finder,
    ReducedKeys,
    compute_window_products,
    pool_window_products,
)
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.finding.words import (
    CAPITALISED,
    EDGES,
    NAME,
    LexicalIndex,
    SentenceWords,
    cannot_be_name,
    capitals_indicate_names,
    list_sentence_words,
    locate_question_words,
)
from esa_cli.storage.library import LibraryEntry
from esa_cli.storage.memory_store import PrefilledDocument, locate_document_texts
from esa_cli.system.text import (
    ENGLISH,
    SPACELESS_CHARACTER,
    find_content_words,
    find_question_words,
    locate_content_words,
)

AROUND = (4, 32, 128)
"""Numbers of neighbours whose late interaction counts, too: a page, some pages, a chapter."""
BY_WORDS = 8
"""One passage in eight is ranked by BM25 alone, which finds unusual names and numbers."""
FITS = 0.6
"""The minimum late interaction of a window that fits without a word; nonsense reaches 0.59."""
_LONG_NUMBER = re.compile(r"\d{4,}")
_YEARS = re.compile(r"(\d{2,}?)(\d\d)(?:[-–/](\d\d))?(?!\d)")
_DATES = frozenset((*calendar.month_name, *calendar.day_name))
OTHER = 4.0
"""Subtracted from log-odds in other documents than those that a question names: a question about
`the supply agreement` is rarely answered elsewhere."""
_SPACELESS = re.compile(SPACELESS_CHARACTER)
SAMPLE = 5000
"""The number of characters of a document in which a script without spaces is looked for."""
RANKING = "ranking.json"
"""The name of the file of a finder's folder with the weights of a `Ranking`."""
ABOVE = 0.02
"""The minimum probability if all passages are requested; some eight windows of a book reach it."""
WORDLESS = 0.005
"""The minimum probability of a passage without a word of the question. Of 220 development questions
3 have their passage below it, with 18 others or more ranked higher."""


@dataclass(frozen=True)
class Book:
    """A document that questions can be asked about.

    Args:
        prefilled: the KV cache, for answers. index: the tokens' reduced keys (n, R), for a search.
        spans: (n, 2) characters [start, end) of each token of the text.
        entry: the document's library entry, if stored. words: the stored table of words, if any.
        read_s: seconds that the model took to read the document; 0 if it was stored before.
        rows: the positions of the document's tokens among those of all documents of a question."""

    document: Document
    prefilled: PrefilledDocument | None
    spans: Tensor
    entry: LibraryEntry | None = None
    read_s: float = 0.0
    index: ReducedKeys | None = None
    words: SentenceWords | None = None
    rows: range = range(0)

    def __repr__(self) -> str:  # without the tensors and the text
        return f"Book({self.document.source!r}, tokens={self.tokens}, read={self.read})"

    @property
    def read(self) -> bool:
        """Whether a model has read the document, so that there is a KV cache or a token index."""
        return self.prefilled is not None or self.index is not None

    @property
    def tokens(self) -> int:
        """The number of the document's tokens, with a KV cache also of the prompt before them."""
        return len(self.prefilled.ids) if self.prefilled else len(self.spans)


def drop_duplicate_books(books: Sequence[Book]) -> list[Book]:
    """Returns the documents without those whose text is the text of an earlier document."""
    by_text: dict[str, Book] = {}
    for book in books:
        by_text.setdefault(book.document.text, book)
    return list(by_text.values())


def _list_years(text: str) -> set[str]:
    """Returns the years and longer numbers in a text, both years of "2022-23"."""
    years = set[str]()
    for century, year, following in _YEARS.findall(text):
        years.add(century + year)
        if following and int(following) == int(year) + 1:  # else a month
            years.add(century + following)
    return years


def add_token_ranges(books: Sequence[Book]) -> list[Book]:
    """Gives each document of a question a unique name, and its range of tokens among all tokens."""
    prefilled = [book.prefilled for book in books if book.prefilled]
    if len(prefilled) == len(books):
        rows = locate_document_texts(prefilled)
    else:  # their texts, one after the other
        sizes = (len(book.spans) for book in books)
        rows = [range(*ends) for ends in pairwise(accumulate(sizes, initial=0))]
    documents = [book.document for book in books]
    names = [one.name for one in documents]
    sources = [one.source if names.count(one.name) > 1 else one.name for one in documents]
    placed = []
    for number, (book, name, at) in enumerate(zip(books, sources, rows, strict=True), 1):
        if sources.count(name) > 1:
            name = f"{name} ({book.entry.id if book.entry else number})"
        document = book.document  # it knows the places of its lines, so it is kept if it can be
        if document.name != name:
            document = replace(document, name=name)
        placed.append(replace(book, document=document, rows=at))
    return placed


class Ranking(NamedTuple):
    """The logistic regressions that give the log-odds that a window answers a question, fit by
    `benchmarks/ranking.py` to the development questions; no term counts the other windows.

    Args:
        late: weights of a window's late interaction, alone and with each of `AROUND`, in a sum.
        words: the weight in this sum of BM25, as a share of the highest, in other languages than
            English, for which the finder was not trained.
        late_odds: an intercept, and the weights of this sum and of the sum less the highest sum.
        bm25_odds: an intercept, and the weight of this BM25 where there is no token index."""

    late: Sequence[float] = (30.0, 9.0, 9.0, 9.0)
    words: float = 4.0
    late_odds: Sequence[float] = (-4.0, 0.0, 1.0)
    bm25_odds: Sequence[float] = (-10.0, 8.6)

    @classmethod
    def load(cls, folder: Path) -> Ranking:
        """Loads the ranking of a finder's folder, or the default. Raises ModelError."""
        path = folder / RANKING
        if not path.exists():
            return cls()
        with convert_read_errors(str(path), "use --finder words"):
            facts = json.loads(path.read_text("utf-8"))
            sizes = {"late": 1 + len(AROUND), "late_odds": 3, "bm25_odds": 2}
            weights = {name: tuple(map(float, facts[name])) for name in sizes}
            if sizes != {name: len(one) for name, one in weights.items()}:
                raise ValueError(f"the numbers of weights must be {sizes}")
            return cls(**weights, words=float(facts["words"]))

    def compute_bm25_odds(self, words: Tensor) -> Tensor:
        """Returns the log-odds of windows by BM25 as a share of the highest."""
        intercept, weight = self.bm25_odds
        return intercept + weight * words


def divide_by_highest(scores: Tensor) -> Tensor:
    """Returns scores of at least 0 as shares of the highest score, or 0 if all are 0."""
    return scores / scores.max() if scores.any() else scores


class ReducedQueries(NamedTuple):
    """A question's reduced queries (M, R) and their weights (M,)."""

    queries: Tensor
    weights: Tensor

    def score_ranges(self, book: Book, character_ranges: Tensor) -> Tensor:
        """Returns the late interaction (W,) with character ranges (W, 2) of an indexed document."""
        assert book.index is not None
        bounds = find_token_bounds(book.spans, character_ranges)
        return compute_window_products(self.queries, book.index, *bounds) @ self.weights


class WindowScores(NamedTuple):
    """Scores of all sentence windows for a question: tensors with one number for each window, or
    late interaction (1 + len(AROUND), windows), which is NaN without a token index."""

    total: Tensor  # the log-odds that a window answers, which rank the windows
    words: Tensor  # BM25 alone, as a share of the highest
    fitting: Tensor  # bool, whether the window may answer; see `PassageFinder.score_windows`
    late: Tensor | None = None  # None: no document has a token index


PassageScorer = Callable[[str, Sequence[str]], Tensor]
"""Type of a function from a question and the texts of passages to their scores (passages,)."""


class PassageFinder:
    """Finds passages of documents by BM25, and by late interaction where there is a token index."""

    def __init__(self, books: Sequence[Book], ranking: Ranking | None = None) -> None:
        self.ranking = ranking or Ranking()
        self.documents = [book.document for book in books]
        self.keys = [book.index for book in books]
        texts = [document.text for document in self.documents]
        pairs = zip(books, texts, strict=True)
        self.index = LexicalIndex([book.words or list_sentence_words(text) for book, text in pairs])
        self._has_names = capitals_indicate_names(texts)
        self._contents = [find_contents(document) for document in self.documents]
        # The windows in contents pages and indexes, which answer nothing.
        self.in_contents = {
            number
            for number, window in enumerate(self.index.windows)
            for start, end in self._contents[self.index.documents[number]]
            if start <= (window.start + window.end) // 2 < end
        }
        documents = torch.tensor(self.index.documents, dtype=torch.long)
        windows = torch.tensor([(one.start, one.end) for one in self.index.windows])
        languages = zip(self.index.document_languages, texts, strict=True)
        foreign = [name != ENGLISH or _is_spaceless(text) for name, text in languages]
        self._is_foreign = torch.tensor(foreign, dtype=torch.bool)[documents]
        # Of each book with a token index: its windows, their tokens [first, last), and its keys.
        self._indexed: list[tuple[Tensor, tuple[Tensor, Tensor], ReducedKeys]] = []
        for number, book in enumerate(books):
            own = (documents == number).nonzero()[:, 0]
            if book.index is not None and own.numel():
                bounds = find_token_bounds(book.spans, windows[own])
                if torch.equal(book.spans.long(), windows[own]):  # one key a window; they overlap
                    bounds = torch.arange(len(own)), torch.arange(1, len(own) + 1)
                self._indexed.append((own, bounds, book.index))

    def list_foreign_languages(self, names: Container[str]) -> list[str]:
        """Lists the languages of the named documents for which the finder was not trained."""
        every = zip(self.documents, self.index.document_languages, strict=True)
        named = [one for one in every if one[0].name in names]
        languages = dict.fromkeys(name for _, name in named)
        found = [name.capitalize() for name in languages if name != ENGLISH]
        if any(_is_spaceless(document.text) for document, _ in named):
            found.append("a script without spaces")
        return found

    def _find_names(
        self, question: str, is_usually_lowercase: Callable[[str], bool]
    ) -> Iterator[tuple[str, list[str]]]:
        """Yields the names after a question's first word, each with its words that can be names, if
        capitals indicate names in the documents."""
        if self._has_names and not question.isupper():
            for name in NAME.findall(question):
                words = CAPITALISED.findall(name)
                yield name, [one for one in words if not cannot_be_name(one, is_usually_lowercase)]

    def rate_unmentioned_names(
        self, question: str, is_usually_lowercase: Callable[[str], bool]
    ) -> float:
        """Returns the largest share of a name in the question that occurs in no document."""
        shares = [0.0]
        for _, words in self._find_names(question, is_usually_lowercase):
            parts = [{one[a:b] for a, b, _ in locate_content_words(one)} for one in words]
            known = [any(map(self.index.has_word, one)) for one in parts if one]
            shares.append(known.count(False) / max(1, len(known)))
        return max(shares)

    def list_names(self, question: str, is_usually_lowercase: Callable[[str], bool]) -> list[str]:
        """Lists names after a question's first word; names of English months and days, which other
        languages write small, are none."""
        return [
            EDGES.sub("", name)
            for name, words in self._find_names(question, is_usually_lowercase)
            if any(
                find_content_words(word, ENGLISH)
                for word in words
                if re.sub(r"['’]s$", "", word) not in _DATES
            )
        ]

    def find_named_documents(self, question: str) -> set[str]:
        """Returns the names of the documents that a question names: of the only one whose file name
        has two adjacent content words of the question, not both numbers, and of those that have a
        year or a longer number of the question. If that is all, none is named."""
        asked, *named = (
            {(a, b) for a, b in pairwise(words) if not (a[0] + b[0]).isdecimal()}
            for text in (question, *(PurePath(one.name).stem for one in self.documents))
            for words in (find_question_words(text, self.index.languages),)
        )
        names = [one.name for one, own in zip(self.documents, named, strict=True) if own & asked]
        years = set(_LONG_NUMBER.findall(question))  # of "in 2022/23" the first alone
        named_by_year = {one.name for one in self.documents if years & _list_years(one.name)}
        found = named_by_year.union(names if len(names) == 1 else ())
        return found if len(found) < len(self.documents) else set()

    def find_passages(
        self, question: str, count: int, reduced: ReducedQueries | None = None,
        rerank: PassageScorer | None = None,
    ) -> list[Passage]:  # fmt: skip
        """Returns the best `count` windows, as `pick_best_passages` does; `rerank` scores all
        windows for the question, in place of the finder."""
        windows = zip(self.index.documents, self.index.windows, strict=True)
        texts = (self.documents[number].text[one.start : one.end] for number, one in windows)
        order = None if rerank is None else rerank(question, list(texts))
        return self.pick_best_passages(self.score_windows(question, reduced), count, order)

    def score_windows(self, question: str, reduced: ReducedQueries | None = None) -> WindowScores:
        """Scores all windows for a question, and judges which windows may answer because they have,
        or are near, a word of the question or, with `reduced`, a similar meaning."""
        bm25 = self.index.compute_bm25_scores(question)
        words, fitting, ranking = divide_by_highest(bm25), bm25 > 0, self.ranking
        named = self.find_named_documents(question)
        others = torch.tensor([bool(named) and one.name not in named for one in self.documents])
        less = OTHER * others[self.index.documents]
        total = ranking.compute_bm25_odds(words) - less
        if reduced is None or not self._indexed:
            return WindowScores(total, words, fitting)
        late = self.score_by_late_interaction(reduced)
        # With a token index all windows may answer, unless no word occurs and none is similar.
        fitting |= late[0] >= (-1.0 if fitting.any() else FITS)
        read = ~late[0].isnan()
        foreign_words = ranking.words * words * self._is_foreign
        sums = (torch.tensor(ranking.late) @ late + foreign_words)[read]
        intercept, own, gap = ranking.late_odds
        total[read] = intercept + own * sums + gap * (sums - sums.max()) - less[read]
        return WindowScores(total, words, fitting, late)

    def score_by_late_interaction(self, reduced: ReducedQueries) -> Tensor:
        """Returns the late interaction of all windows, alone and with each number of neighbours in
        `AROUND`: (1 + len(AROUND), windows), NaN for documents without a token index."""
        out = torch.full((1 + len(AROUND), len(self.index)), torch.nan)
        for own, bounds, keys in self._indexed:
            products = compute_window_products(reduced.queries, keys, *bounds)
            wide = [pool_window_products(products, windows) for windows in AROUND]
            out[:, own] = torch.stack([products, *wide]) @ reduced.weights
        return out

    def pick_best_passages(
        self, scores: WindowScores, count: int, order: Tensor | None = None
    ) -> list[Passage]:
        """Returns the best `count` windows, but none that overlaps a better one by half or more.
        `order` are scores (windows,) of a reranker, by which windows are better."""
        picked, overlapping = list[int](), set(self.in_contents)
        order = scores.total if order is None else order
        bm25_count = 0 if scores.late is None else count // BY_WORDS
        for ranking, limit in ((order, count - bm25_count), (scores.words, count)):
            for at in ranking.argsort(descending=True, stable=True).tolist():
                if len(picked) >= limit:
                    break
                if at not in overlapping:
                    picked.append(at)
                    shares = self._find_overlapping_windows(at)
                    overlapping.update(n for n, share in shares if share >= 0.5)
        passages = [self.make_window_passage(at, scores.total) for at in picked]
        if scores.late is None:
            return passages
        highest = scores.late.nan_to_num(-1.0).amax(1)
        columns = (scores.late - highest[:, None])[:, picked].T.tolist()
        return [
            passage if math.isnan(own) else replace(passage, late=(own, *around, float(highest[0])))
            for passage, (own, *around) in zip(passages, columns, strict=True)
        ]

    def _find_overlapping_windows(self, window_number: int) -> Iterator[tuple[int, float]]:
        """Yields the windows that overlap a window, and what share of the shorter one overlaps."""
        windows, documents = self.index.windows, self.index.documents
        window = windows[window_number]
        for others in (range(window_number, -1, -1), range(window_number + 1, len(windows))):
            for n in others:
                other = windows[n]
                shared = min(window.end, other.end) - max(window.start, other.start)
                if documents[n] != documents[window_number] or shared <= 0:
                    break  # windows are in the order of their beginnings and of their ends
                yield n, shared / min(window.end - window.start, other.end - other.start)

    def make_window_passage(
        self, window_number: int, scores: Tensor, is_whole: bool = False
    ) -> Passage:
        """Returns a window as a passage, unless `is_whole` without what it has of a contents page
        that its middle is not in."""
        number, window = self.index.documents[window_number], self.index.windows[window_number]
        document, start, end = self.documents[number], window.start, window.end
        is_whole = is_whole or window_number in self.in_contents
        for first, last in () if is_whole else self._contents[number]:
            if first <= start < last:
                start = end - len(document.text[last:end].lstrip())
            elif start < first < end <= last:
                end = first
        score = float(scores[window_number])
        fields = {"score": score, "probability": 1 / (1 + math.exp(min(-score, 700.0)))}
        return Passage.cut_from(document, start, end, **fields)

    def place_at_words(self, passages: Sequence[Passage], question: str) -> list[Passage]:
        """Places passages at the question's words, as they may begin at the end of a page."""
        documents = {one.name: one for one in self.documents}
        out = list[Passage]()
        for one in passages:
            at = one.start + locate_question_words(one.text, question)
            out.append(replace(one, **find_place(documents[one.document], at)._asdict()))
        return out


def _is_spaceless(text: str) -> bool:
    """Whether a text's script has no spaces between words."""
    sample = text[:SAMPLE]
    return len(_SPACELESS.findall(sample)) > len(sample) / 4


def find_token_bounds(token_spans: Tensor, character_ranges: Tensor) -> tuple[Tensor, Tensor]:
    """Returns bounds [first, last), each (W,), of tokens that overlap character ranges (W, 2)."""
    spans, characters = token_spans.long(), character_ranges.long()
    first = torch.searchsorted(spans[:, 1].contiguous(), characters[:, 0].contiguous(), right=True)
    last = torch.searchsorted(spans[:, 0].contiguous(), characters[:, 1].contiguous())
    return first, last.maximum(first)


class PassageSearch:
    """Searches documents for passages, and caches the word index of the last documents."""

    def __init__(self, encoder: Finder | None = None, ranking: Ranking | None = None) -> None:
        self._encoder, self._ranking = encoder, ranking
        self._last: PassageFinder | None = None

    def get_passage_finder(self, books: Sequence[Book]) -> PassageFinder:
        """Returns the passage finder of the documents, which is cached for the next question."""
        last, documents = self._last, [book.document for book in books]
        keys = [book.index for book in books]
        if last is None or last.documents != documents or last.keys != keys:
            last = self._last = PassageFinder(books, self._ranking)
        return last

    def encode_question(self, question: str, books: Sequence[Book]) -> ReducedQueries | None:
        """Encodes a question for late interaction; None if no document has a token index."""
        if self._encoder is None or all(book.index is None for book in books):
            return None
        queries, weights = self._encoder.encode_questions([question])
        return ReducedQueries(queries[0].cpu(), weights[0].cpu())

    @torch.inference_mode()
    def score_passages(
        self, text: str, passages: Sequence[Passage], books: Sequence[Book]
    ) -> list[float] | None:
        """Returns the late interaction of a text with each passage; None if a passage has no token
        index of the preset's model, whose scores alone are known."""
        by_name = {book.document.name: book for book in books}
        places = [(by_name[one.document], torch.tensor([(one.start, one.end)])) for one in passages]
        unknown = self._encoder is None or not self._encoder.uses_preset_model
        if unknown or any(book.index is None for book, _ in places):
            return None
        reduced = self.encode_question(text, books)
        return None if reduced is None else [float(reduced.score_ranges(*at)) for at in places]

    @torch.inference_mode()
    def find_passages_to_read(
        self, question: str, books: Sequence[Book], count: int,
        rerank: PassageScorer | None = None,
    ) -> list[Passage]:  # fmt: skip
        """Returns the best `count` passages, to be read; see `PassageFinder.find_passages`."""
        finder, reduced = self.get_passage_finder(books), self.encode_question(question, books)
        found = finder.find_passages(question, count, reduced, rerank)
        return finder.place_at_words(found, question)

    @torch.inference_mode()
    def search_passages(
        self, question: str, books: Sequence[Book], count: int | None = 8,
        minimum: float | None = None,
    ) -> list[Passage]:  # fmt: skip
        """Returns the passages that may answer a question, best first.

        Args:
            count: the maximum number of passages, or None for all passages.
            minimum: the minimum probability of a passage. The default is 0, or `WORDLESS` without a
                word of the question, or, if `count` is None, `ABOVE` or the highest probability, if
                that is lower.

        Raises UsageError: there is no document, or `count` is below 1."""
        if not books:
            raise UsageError("there is no document to search", "name a document to search")
        if count is not None and not (isinstance(count, int) and count > 0):
            hint = "set count to None to get all passages"
            raise UsageError(f"the number of passages must be at least 1, got {count!r}", hint)
        finder = self.get_passage_finder(books)
        scores = finder.score_windows(question, self.encode_question(question, books))
        least = math.log(WORDLESS / (1 - WORDLESS)) if minimum is None else -torch.inf
        fits = scores.fitting & ((scores.words > 0) | (scores.total >= least))
        total = scores.total.masked_fill(~fits, -torch.inf)
        limit = len(finder.index) if count is None else count
        found = finder.pick_best_passages(scores._replace(total=total), limit)
        found = [one for one in found if one.score > -torch.inf]
        if minimum is None:
            best = max((one.probability or 0.0 for one in found), default=0.0)
            minimum = min(ABOVE, best) if count is None else 0.0
        fitting = [one for one in found if (one.probability or 0.0) >= minimum]
        return finder.place_at_words(sorted(fitting, key=lambda one: -one.score), question)
