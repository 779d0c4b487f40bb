"""Finding by words: sentence windows, their BM25 scores, and names that no document mentions.

The score of a window is its own BM25 plus that of wider windows around it: a question names people
and places that the answering sentences call "he" and "there". Measured: docs/results.md.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor

from esa_cli.documents import sentences
from esa_cli.system.bm25_scores import Bm25
from esa_cli.system.content_words import (
    content_words,
    language_of,
    located_words,
    question_words,
    word_count,
    words_version,
)

BLANK_LINES = re.compile(r"\n\s*\n")
WINDOW_WORDS = 60
"""Words of the windows that are ranked."""
AROUND = ((200, 0.6), (600, 0.6))
"""Words of the windows around each of them, and the weight of their score."""


class TextWindow(NamedTuple):
    """Characters [start, end) of a text, which are its sentences [first, last)."""

    start: int
    end: int
    first: int
    last: int


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Returns the characters [start, end) of each sentence or line of `text`, in order."""
    out: list[tuple[int, int]] = []
    at = 0
    for blank_start, blank_end in [
        *(blank.span() for blank in BLANK_LINES.finditer(text)), (len(text), len(text)),
    ]:  # fmt: skip
        start, last = sentences.bare(text, at, blank_start)
        for end in sentences.cuts(text, start, last):
            first, stop = sentences.bare(text, start, end)
            if first < stop:
                out.append((first, stop))
            start = end
        at = blank_end
    return out


def sentence_windows(
    spans: list[tuple[int, int]], counts: list[int], words: int
) -> list[TextWindow]:
    """Cuts sentences with `counts` words each into half overlapping windows of about `words`."""
    out: list[TextWindow] = []
    first = 0
    while first < len(spans):
        last, total = first, 0
        while last < len(spans) and total < words:
            if total and total + counts[last] > 1.25 * words:
                break
            total += counts[last]
            last += 1
        out.append(TextWindow(spans[first][0], spans[last - 1][1], first, last))
        if last >= len(spans):
            break
        half, following = 0, first
        while following < last and half < total / 2:
            half += counts[following]
            following += 1
        first = max(first + 1, following)
    return out


ARRAYS = ("spans", "counts", "ids", "ends")
"""The fields of `SentenceWords` that are numbers."""


@dataclass(frozen=True, eq=False)
class SentenceWords:
    """The content words of the S sentences of a text.

    Args:
        spans: (S, 2) int32, characters [start, end) of the sentences.
        counts: (S,) int32, words of each sentence, stop words included.
        ids: (n,) int32, content words in the order of the text.
        ends: (S + 1,) int64; sentence s has the content words [ends[s], ends[s + 1]).
        vocabulary: the stem of each id. language: see `language_of`.
    """

    spans: Any
    counts: Any
    ids: Any
    ends: Any
    vocabulary: Sequence[str]
    language: str

    def cut_windows(self, words: int) -> list[TextWindow]:
        """Returns the windows of the text with about `words` words."""
        return sentence_windows(list(map(tuple, self.spans.tolist())), self.counts.tolist(), words)

    def as_bytes(self) -> bytes:
        """Returns the table in the form that `of_bytes` reads."""
        texts = {
            "version": _version(),
            "vocabulary": "\n".join(self.vocabulary),
            "language": self.language,
        }
        arrays = {
            name: numpy.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=numpy.uint8)
            for name, text in texts.items()
        }
        return save(arrays | {name: getattr(self, name) for name in ARRAYS})

    @classmethod
    def of_bytes(cls, data: bytes) -> SentenceWords | None:
        """Returns a stored table, or None where this version cuts or stems texts otherwise."""
        try:
            tensors = load(data)
            if tensors["version"].tobytes().decode() != _version():
                return None
            text = tensors["vocabulary"].tobytes().decode("utf-8", "surrogatepass")
            language = tensors["language"].tobytes().decode()
            spans, counts, ids, ends = (tensors[name] for name in ARRAYS)
            return cls(spans, counts, ids, ends, text.split("\n") if text else [], language)
        except (SafetensorError, KeyError, ValueError):
            return None


@cache
def _version() -> str:
    """Returns a digest of everything that shapes a table beside its text."""
    digest = hashlib.sha256(f"{unicodedata.unidata_version} {words_version()}".encode())
    for file in (sentences.__file__, __file__):
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()


@lru_cache(maxsize=2)  # a document is asked before its index is computed, and then again
def sentence_words(text: str) -> SentenceWords:
    """Returns the sentences of a text and their content words."""
    spans, language = sentence_spans(text), language_of(text)
    vocabulary, ids, ends = dict[str, int](), list[int](), [0]
    for start, end in spans:
        stems = content_words(text[start:end], language)
        ids += [vocabulary.setdefault(stem, len(vocabulary)) for stem in stems]
        ends.append(len(ids))
    return SentenceWords(
        numpy.array(spans, dtype=numpy.int32).reshape(-1, 2),
        numpy.array([word_count(text[a:b]) for a, b in spans], dtype=numpy.int32),
        numpy.array(ids, dtype=numpy.int32),
        numpy.array(ends, dtype=numpy.int64),
        list(vocabulary),
        language,
    )


class LexicalIndex:
    """BM25 of the windows of documents; `windows[i]` is of document number `documents[i]`."""

    def __init__(
        self, texts: Sequence[str], words: Sequence[SentenceWords | None] | None = None
    ) -> None:
        known = words or [None] * len(texts)
        tables = [one or sentence_words(text) for one, text in zip(known, texts, strict=True)]
        self._languages = dict.fromkeys(table.language for table in tables)
        self._vocabulary: dict[str, int] = {}
        for stem in chain.from_iterable(table.vocabulary for table in tables):
            self._vocabulary.setdefault(stem, len(self._vocabulary))
        narrow = [table.cut_windows(WINDOW_WORDS) for table in tables]
        self.windows = list(chain.from_iterable(narrow))
        self.documents = [number for number, windows in enumerate(narrow) for _ in windows]
        self._own = self._index_windows(tables, narrow)
        # For each size of windows around: their BM25, the nearest to each window, its weight.
        self._around: list[tuple[Bm25, Tensor, float]] = []
        for size, weight in AROUND:
            wide = [table.cut_windows(size) for table in tables]
            nearest = _nearest_windows(narrow, wide)
            self._around.append((self._index_windows(tables, wide), nearest, weight))

    def _index_windows(
        self, tables: Sequence[SentenceWords], windows: Sequence[Sequence[TextWindow]]
    ) -> Bm25:
        """Computes BM25 of the windows of each document."""
        texts: list[Any] = [numpy.empty(0, dtype=numpy.int64)]
        for table, cut in zip(tables, windows, strict=True):
            numbers = [self._vocabulary[stem] for stem in table.vocabulary]
            ids, ends = numpy.array(numbers, dtype=numpy.int64)[table.ids], table.ends.tolist()
            texts += [ids[ends[window.first] : ends[window.last]] for window in cut]
        sizes = numpy.array([len(text) for text in texts[1:]], dtype=numpy.int64)
        return Bm25(numpy.concatenate(texts), sizes, len(self._vocabulary))

    def __len__(self) -> int:
        return len(self.windows)

    def has_word(self, word: str) -> bool:
        """Whether a document has any form of a content word."""
        return bool(self._word_numbers(word))

    def _word_numbers(self, question: str) -> list[int]:
        """Returns the numbers of those words of a question that the documents have."""
        words = question_words(question, self._languages)
        return [
            self._vocabulary[stem] for stems in words for stem in stems if stem in self._vocabulary
        ]

    def scores(self, question: str) -> Tensor:
        """Returns BM25 of each window for a question, (windows,) float32; 0 without its words."""
        numbers = self._word_numbers(question)
        total = self._own.scores(numbers)
        for bm25, nearest, weight in self._around:
            total = total + weight * bm25.scores(numbers)[nearest]
        return total


def _nearest_windows(
    narrow: Sequence[Sequence[TextWindow]], wide: Sequence[Sequence[TextWindow]]
) -> Tensor:
    """Returns, for each narrow window, the number of the wide one whose middle is nearest."""
    out, base = list[int](), 0
    for windows, around in zip(narrow, wide, strict=True):
        middles, at = [window.start + window.end for window in around], 0
        for window in windows:
            middle = window.start + window.end
            while at + 1 < len(around) and (
                abs(middles[at + 1] - middle) <= abs(middles[at] - middle)
            ):
                at += 1
            out.append(base + at)
        base += len(around)
    return torch.tensor(out, dtype=torch.long)


def matched_words(text: str, question: str) -> list[tuple[int, int]]:
    """Returns the characters [start, end) of each content word that text and question share."""
    language = language_of(text)
    wanted = {stem for stems in question_words(question, [language]) for stem in stems}
    located = located_words(text, language)
    return list(dict.fromkeys((start, end) for start, end, stem in located if stem in wanted))


NAME = re.compile(r"(?<=[^.?!\s] )[A-Z][\w'’-]*(?:(?: (?:of|the|de|von|van) | )[A-Z][\w'’-]*)*")
CAPITALISED = re.compile(r"[A-Z][\w'’-]*")
TITLES = frozenset(
    ("mr", "mrs", "ms", "miss", "dr", "prof", "sir", "lord", "lady", "king", "queen", "captain")
)
INSIDE = re.compile(r"(?<=[a-z,] )[A-Za-z]")
"""The first letter of a word inside a sentence."""
SAMPLE = 200_000
"""Characters of the documents in which capital letters are counted."""
MAX_CAPITALS = 0.25
"""Share of capitalised words inside sentences above which capitals do not mean names."""


def capitals_mean_names(texts: Sequence[str]) -> bool:
    """Whether no text is German, and few of their words inside sentences have a capital."""
    share = SAMPLE // max(1, len(texts))
    samples = [text[:share] for text in texts]
    letters = [letter for text in samples for letter in INSIDE.findall(text)]
    capitals = len([letter for letter in letters if letter.isupper()])
    german = any(language_of(text) == "german" for text in samples)
    return capitals <= MAX_CAPITALS * len(letters) and not german


def small_words(tokenizer: Any) -> Callable[[str], bool]:
    """Returns a function that says whether a word has no capital as a rule, by its tokens."""

    def encode(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    prefix = len(encode("a"))

    @cache
    def is_small(word: str) -> bool:
        low, high = encode(f"a {word.lower()}")[prefix:], encode(f"a {word}")[prefix:]
        return len(low) == 1 and (len(high) > 1 or low[0] < high[0])

    return is_small


def unmentioned_share(
    question: str, has_word: Callable[[str], bool], is_small: Callable[[str], bool]
) -> float:
    """Returns the largest share, 0 to 1, of the words of a name that no document has."""
    if question.isupper():
        return 0.0
    shares = [0.0]
    for name in NAME.finditer(question):
        words = [
            {word[start:end] for start, end, _ in located_words(word)}
            for word in CAPITALISED.findall(name[0])
            if not _is_no_name(word, is_small)
        ]
        words = [parts for parts in words if parts]
        unknown = sum(not any(map(has_word, parts)) for parts in words)
        shares.append(unknown / max(1, len(words)))
    return max(shares)


def _is_no_name(word: str, is_small: Callable[[str], bool]) -> bool:
    """Whether a capitalised word is an acronym, a title, or usually written without a capital."""
    bare = re.sub(r"['’]s$", "", word)
    acronym = len(bare) > 1 and bare.isupper()
    return acronym or bare.lower() in TITLES or is_small(bare)
