"""Finding by words: content words of sentences, BM25 scores of windows, names without mention.

A question names people and places that the answering sentences call "he" and "there"; the words of
the surrounding text then tell one passage from another. So a window's score is BM25 of itself, plus
that of the windows of 200 and of 600 words around it. Measured: docs/results.md."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor

from esa_cli.documents import sentences
from esa_cli.qa.finding import windows
from esa_cli.qa.finding.windows import TextWindow, sentence_windows
from esa_cli.system.bm25_scores import Bm25
from esa_cli.system.content_words import (
    content_words,
    language_of,
    located_words,
    question_words,
    word_count,
    words_version,
)

VERSION = "version"
"""The tensor that holds `_version`."""
NUMBERS = ("spans", "counts", "ids", "ends")


@dataclass(frozen=True, eq=False)
class SentenceWords:
    """The content words of a text's S sentences.

    Args:
        spans: (S, 2) int32, characters [start, end) of the sentences. counts: (S,) int32, the words
            of each, stop words included. ids: (n,) int32, content words in their order.
        ends: (S + 1,) int64; sentence s has the content words [ends[s], ends[s + 1]).
        vocabulary: the stem of each id. language: of the text; see `language_of`.
    """

    spans: Any
    counts: Any
    ids: Any
    ends: Any
    vocabulary: Sequence[str]
    language: str

    def windows(self, *sizes: int) -> list[list[TextWindow]]:
        """The text's windows of each size, in words."""
        spans, counts = list(map(tuple, self.spans.tolist())), self.counts.tolist()
        return [sentence_windows(spans, counts, size) for size in sizes]

    def as_bytes(self) -> bytes:
        """The table as `of_bytes` reads it."""
        texts = {
            VERSION: _version(),
            "vocabulary": "\n".join(self.vocabulary),
            "language": self.language,
        }
        arrays = {
            name: numpy.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=numpy.uint8)
            for name, text in texts.items()
        }
        return save(arrays | {name: getattr(self, name) for name in NUMBERS})

    @classmethod
    def of_bytes(cls, data: bytes) -> SentenceWords | None:
        """A table as it was stored; None where this esa would cut or stem the text otherwise."""
        try:
            tensors = load(data)
            if tensors[VERSION].tobytes().decode() != _version():
                return None
            text = tensors["vocabulary"].tobytes().decode("utf-8", "surrogatepass")
            vocabulary = text.split("\n") if text else []
            language = tensors["language"].tobytes().decode()
            numbers = {name: tensors[name] for name in NUMBERS}
            return cls(vocabulary=vocabulary, language=language, **numbers)
        except (SafetensorError, KeyError, ValueError):
            return None


@lru_cache(maxsize=2)  # a document is asked before it is read, and then again
def sentence_words(text: str) -> SentenceWords:
    """The sentences of a text and their words."""
    spans = windows.sentence_spans(text)
    language = language_of(text)
    known, ids, ends = dict[str, int](), list[int](), [0]
    for start, end in spans:
        stems = content_words(text[start:end], language)
        ids += [known.setdefault(stem, len(known)) for stem in stems]
        ends.append(len(ids))
    return SentenceWords(
        numpy.array(spans, dtype=numpy.int32).reshape(-1, 2),
        numpy.array([word_count(text[a:b]) for a, b in spans], dtype=numpy.int32),
        numpy.array(ids, dtype=numpy.int32),
        numpy.array(ends, dtype=numpy.int64),
        list(known),
        language,
    )


@cache
def _version() -> str:
    """A digest of everything that shapes a table beside the text."""
    digest = hashlib.sha256(f"{unicodedata.unidata_version} {words_version()}".encode())
    for file in (sentences.__file__, windows.__file__, __file__):
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()


WINDOW_WORDS = 60
AROUND = ((200, 0.6), (600, 0.6))
"""Words of the windows around, and the weight of their score."""


class LexicalIndex:
    """Words of documents, for BM25 scores of their windows: statistics are over all of them, and a
    question's words are stemmed as each document's. `windows[i]` is in document `documents[i]`.

    Args:
        texts: of the documents. words: of each; None where they are not known.
    """

    def __init__(
        self, texts: Sequence[str], words: Sequence[SentenceWords | None] | None = None
    ) -> None:
        known = words or [None] * len(texts)
        tables = [one or sentence_words(text) for one, text in zip(known, texts, strict=True)]
        self._languages = dict.fromkeys(table.language for table in tables)
        self._vocabulary: dict[str, int] = {}
        for stem in chain.from_iterable(table.vocabulary for table in tables):
            self._vocabulary.setdefault(stem, len(self._vocabulary))
        sizes = (WINDOW_WORDS, *(size for size, _ in AROUND))
        windows = [table.windows(*sizes) for table in tables]
        own, *wide = ([cut[n] for cut in windows] for n in range(len(sizes)))
        self.windows = list(chain.from_iterable(own))
        self.documents = [number for number, cut in enumerate(own) for _ in cut]
        ids = [self._numbered(table) for table in tables]
        ends = [table.ends.tolist() for table in tables]
        self._bm25 = [self._index(ids, ends, cuts) for cuts in (own, *wide)]
        self._nearest = [_nearest(own, cuts) for cuts in wide]

    def _numbered(self, table: SentenceWords) -> Any:
        """The words of a document by their numbers in all documents' vocabulary."""
        numbers = [self._vocabulary[stem] for stem in table.vocabulary]
        return numpy.array(numbers, dtype=numpy.int64)[table.ids]

    def _index(
        self, ids: Sequence[Any], ends: Sequence[list[int]], windows: Sequence[list[TextWindow]]
    ) -> Bm25:
        """BM25 of each document's windows."""
        texts: list[Any] = [numpy.empty(0, dtype=numpy.int64)]
        for words, end, cut in zip(ids, ends, windows, strict=True):
            texts += [words[end[one.first] : end[one.last]] for one in cut]
        sizes = numpy.array([len(text) for text in texts[1:]], dtype=numpy.int64)
        return Bm25(numpy.concatenate(texts), sizes, len(self._vocabulary))

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
        own, *around = self._bm25
        total = own.scores(ids)
        for bm25, nearest, (_, weight) in zip(around, self._nearest, AROUND, strict=True):
            total = total + weight * bm25.scores(ids)[nearest]
        return total


def _nearest(own: Sequence[Sequence[TextWindow]], wide: Sequence[Sequence[TextWindow]]) -> Tensor:
    """For each window of the documents the wide one whose middle is nearest to its own."""
    out, base = list[int](), 0
    for narrow, around in zip(own, wide, strict=True):
        middles, at = [one.start + one.end for one in around], 0
        for window in narrow:
            middle = window.start + window.end
            while at + 1 < len(around) and abs(middles[at + 1] - middle) <= abs(
                middles[at] - middle
            ):
                at += 1
            out.append(base + at)
        base += len(around)
    return torch.tensor(out, dtype=torch.long)


def matched_words(text: str, question: str) -> list[tuple[int, int]]:
    """Characters [start, end) of each word of `text` that the question has, too, ascending; stop
    words are none. Pairs of characters of a script without spaces may overlap."""
    language = language_of(text)
    wanted = {stem for stems in question_words(question, [language]) for stem in stems}
    found = ((start, end) for start, end, stem in located_words(text, language) if stem in wanted)
    return list(dict.fromkeys(found))


NAME = re.compile(r"(?<=[^.?!\s] )[A-Z][\w'’-]*(?:(?: (?:of|the|de|von|van) | )[A-Z][\w'’-]*)*")
CAPITALISED = re.compile(r"[A-Z][\w'’-]*")
TITLES = frozenset(
    ("mr", "mrs", "ms", "miss", "dr", "prof", "sir", "lord", "lady", "king", "queen", "captain")
)
INSIDE = re.compile(r"(?<=[a-z,] )[A-Za-z]")
SAMPLE = 200_000
"""Characters of the documents that capitals and words are counted in."""
MOST_CAPITALS = 0.25
"""Share of capitalised words inside sentences from which capitals do not mean names."""


def capitals_mean_names(texts: Sequence[str]) -> bool:
    """Whether no text is German, and few of their words inside sentences have a capital."""
    share = SAMPLE // max(1, len(texts))
    shown = [text[:share] for text in texts]
    letters = [letter for text in shown for letter in INSIDE.findall(text)]
    capitals = len([letter for letter in letters if letter.isupper()])
    german = any(language_of(text) == "german" for text in shown)
    return capitals <= MOST_CAPITALS * len(letters) and not german


def small_words(tokenizer: Any) -> Callable[[str], bool]:
    """A function that says whether a word is written small as a rule: it is one token then, and of
    a lower number than with a capital, since vocabularies begin with what is frequent."""
    before = len(_ids(tokenizer, "a"))

    @cache
    def small(word: str) -> bool:
        low, high = (_ids(tokenizer, f"a {one}")[before:] for one in (word.lower(), word))
        return len(low) == 1 and (len(high) > 1 or low[0] < high[0])

    return small


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def unmentioned_share(
    question: str, known: Callable[[str], bool], small: Callable[[str], bool]
) -> float:
    """The share of a name's words that is never mentioned, 0 to 1: of the question's name with the
    highest one. `known`: of `LexicalIndex.knows`. `small`: of `small_words`."""
    if question.isupper():
        return 0.0
    shares = [0.0]
    for found in NAME.finditer(question):
        named = [
            {word[start:end] for start, end, _ in located_words(word)}
            for word in CAPITALISED.findall(found[0])
            if not _says_nothing(word, small)
        ]
        named = [parts for parts in named if parts]
        unknown = sum(not any(map(known, parts)) for parts in named)
        shares.append(unknown / max(1, len(named)))
    return max(shares)


def _says_nothing(word: str, small: Callable[[str], bool]) -> bool:
    bare = re.sub(r"['’]s$", "", word)
    acronym = len(bare) > 1 and bare.isupper()
    return acronym or bare.lower() in TITLES or small(bare)
