"""Cuts documents into windows of sentences, ranks windows by BM25, and finds unmentioned names.

A window's score includes the BM25 scores of wider windows around the window, because a question
names people and places that the answer's sentences call "he" and "there" (docs/results.md). A word
that no document has is replaced by words with similar spelling (`spelling.py`).
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor

from esa_cli.documents.document import find_sentence_ends, strip_span
from esa_cli.qa.finding.spelling import SpellingIndex
from esa_cli.system.text import (
    ENGLISH,
    Bm25Index,
    compute_digest_of_word_rules,
    count_function_words,
    count_words_of_text,
    detect_language,
    find_content_words,
    find_question_words,
    has_stemmer,
    locate_content_words,
)

BLANK_LINES = re.compile(r"\n\s*\n")
WINDOW_WORDS = 60
"""The number of words in the windows that are ranked."""
AROUND = ((200, 0.6), (600, 0.6))
"""The numbers of words in the wider windows, and the weights of their scores."""

HAN = re.compile(r"[\u3005\u3007\u3400-\u9fff\U00020000-\U0003ffff]")
"""Matches a Chinese character."""
EDGES = re.compile(r"^\W+|(?:['’]s?)?\W*$")
"""Matches what is not part of a word at its ends, such as quotation marks and `'s`."""
NOUN = re.compile(
    r"\b(?i:the|an?)\s+(?!\w+est\b|(?:child|fe?[eo]+t|(?:wo)?m[ae]n|mouse|mice|people|person)\b)"
    r"([a-z]{3,})(?![-\w])"
)
"""Matches an English article, and the noun or adjective after it, but few irregular ones."""


class TextWindow(NamedTuple):
    """A window of a text: characters [start, end), which are the sentences [first, last)."""

    start: int
    end: int
    first: int
    last: int


def find_sentence_spans(text: str) -> list[tuple[int, int]]:
    """Returns the characters [start, end) of each sentence of a text, in the text's order."""
    blanks = chain.from_iterable(blank.span() for blank in BLANK_LINES.finditer(text))
    edges, out = [0, *blanks, len(text)], list[tuple[int, int]]()
    for paragraph in zip(edges[::2], edges[1::2], strict=True):
        start, last = strip_span(text, *paragraph)
        ends = find_sentence_ends(text, start, last)
        spans = (strip_span(text, *span) for span in pairwise([start, *ends]))
        out += [(first, end) for first, end in spans if first < end]
    return out


def find_overlapping_sentences(text: str, start: int, end: int) -> list[tuple[int, int]]:
    return [at for at in find_sentence_spans(text) if at[0] < end and start < at[1]]


def cut_sentence_windows(
    sentence_spans: list[tuple[int, int]], word_counts: list[int], words_per_window: int
) -> list[TextWindow]:
    """Groups sentences into half-overlapping windows of about `words_per_window` words."""
    ends = [0, *accumulate(word_counts)]
    out, first, last = list[TextWindow](), 0, 0
    while last < len(sentence_spans):
        enough = bisect_left(ends, ends[first] + words_per_window, first + 1)
        last = min(enough, len(sentence_spans))
        if ends[last] - ends[first] > 1.25 * words_per_window and ends[last - 1] > ends[first]:
            last -= 1
        out.append(TextWindow(sentence_spans[first][0], sentence_spans[last - 1][1], first, last))
        half = bisect_left(ends, (ends[first] + ends[last]) / 2, first, last)
        first = max(first + 1, half)
    return out


ARRAYS = ("spans", "counts", "ids", "ends")
"""The names of the array fields of `SentenceWords`."""


@dataclass(frozen=True, eq=False)
class SentenceWords:
    """A table of the content words (not stop words) in each of the S sentences of a text.

    Args:
        spans: (S, 2) int32, characters [start, end) of the sentences.
        counts: (S,) int32, words of each sentence, stop words included.
        ids: (n,) int32, content words in the order of the text.
        ends: (S + 1,) int64; sentence s has the content words [ends[s], ends[s + 1]).
        vocabulary: the stem that each id stands for.
        language: the language of the stop words and stems; see `detect_language`."""

    spans: Any
    counts: Any
    ids: Any
    ends: Any
    vocabulary: Sequence[str]
    language: str

    def cut_windows(self, words_per_window: int) -> list[TextWindow]:
        """Groups the text's sentences into windows of about `words_per_window` words."""
        spans = list(map(tuple, self.spans.tolist()))
        return cut_sentence_windows(spans, self.counts.tolist(), words_per_window)

    def serialise_table(self) -> bytes:
        """Returns the table of sentences and words as bytes, which `parse_table` reads."""
        texts = json.dumps([_digest_word_cutting_rules(), self.language, *self.vocabulary])
        arrays = {name: getattr(self, name) for name in ARRAYS}
        return save(arrays | {"texts": numpy.frombuffer(texts.encode(), dtype=numpy.uint8)})

    @classmethod
    def parse_table(cls, data: bytes) -> SentenceWords | None:
        """Reads a stored table of words; None if this version of esa cuts texts differently."""
        try:
            tensors = load(data)
            version, language, *vocabulary = json.loads(tensors["texts"].tobytes())
            if version != _digest_word_cutting_rules():
                return None
            spans, counts, ids, ends = (tensors[name] for name in ARRAYS)
            return cls(spans, counts, ids, ends, vocabulary, language)
        except (SafetensorError, KeyError, TypeError, ValueError):
            return None


@cache
def _digest_word_cutting_rules() -> str:
    """Returns a digest of the code and data that determine how texts are cut into words."""
    digest = hashlib.sha256(
        f"{unicodedata.unidata_version} {compute_digest_of_word_rules()}".encode()
    )
    for file in (find_sentence_ends.__code__.co_filename, __file__):
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()


@lru_cache(maxsize=2)  # a document is asked before its index is computed, and then again
def list_sentence_words(text: str) -> SentenceWords:
    """Returns the table of a text's sentences and of the content words in each sentence."""
    spans, language = find_sentence_spans(text), detect_language(text)
    vocabulary, ids, ends = dict[str, int](), list[int](), [0]
    for start, end in spans:
        stems = find_content_words(text[start:end], language)
        ids += [vocabulary.setdefault(stem, len(vocabulary)) for stem in stems]
        ends.append(len(ids))
    return SentenceWords(
        numpy.array(spans, dtype=numpy.int32).reshape(-1, 2),
        numpy.array([count_words_of_text(text[a:b]) for a, b in spans], dtype=numpy.int32),
        numpy.array(ids, dtype=numpy.int32),
        numpy.array(ends, dtype=numpy.int64),
        list(vocabulary),
        language,
    )


class LexicalIndex:
    """Scores windows of documents by BM25; `windows[i]` is in document number `documents[i]`."""

    def __init__(self, tables: Sequence[SentenceWords]) -> None:
        self.tables = tables
        self.document_languages = [table.language for table in tables]
        self.languages = dict.fromkeys(self.document_languages)
        self._vocabulary: dict[str, int] = {}
        numbers = [self._number_words(table) for table in tables]
        narrow = [table.cut_windows(WINDOW_WORDS) for table in tables]
        self.windows = list(chain.from_iterable(narrow))
        self.documents = [number for number, windows in enumerate(narrow) for _ in windows]
        self._own = self._build_bm25_index(numbers, narrow)
        # For each size of windows around: their BM25, the nearest to each window, its weight.
        self._around: list[tuple[Bm25Index, Tensor, float]] = []
        for size, weight in AROUND:
            wide = [table.cut_windows(size) for table in tables]
            nearest = _find_nearest_windows(narrow, wide)
            self._around.append((self._build_bm25_index(numbers, wide), nearest, weight))

    def _number_words(self, table: SentenceWords) -> tuple[Any, list[int]]:
        """Returns the numbers of the words of a text, (n,) int64, and where each sentence ends."""
        numbers = [
            [self._vocabulary.setdefault(word, len(self._vocabulary)) for word in words]
            for words in map(_list_words_of_stem, table.vocabulary)
        ]
        most = max(map(len, numbers), default=1)
        padded = numpy.array([one + [-1] * (most - len(one)) for one in numbers], dtype=numpy.int64)
        of_stems = padded.reshape(-1, most)[table.ids]
        known = of_stems >= 0
        return of_stems[known], numpy.append(0, known.sum(1).cumsum())[table.ends].tolist()

    def _build_bm25_index(
        self, words: Sequence[tuple[Any, list[int]]], windows: Sequence[Sequence[TextWindow]]
    ) -> Bm25Index:
        texts = [
            ids[ends[window.first] : ends[window.last]]
            for (ids, ends), cut in zip(words, windows, strict=True)
            for window in cut
        ]
        return Bm25Index(texts, len(self._vocabulary))

    def __len__(self) -> int:
        return len(self.windows)

    def has_word(self, word: str) -> bool:
        """Whether any document contains a word in any form, such as singular or plural."""
        words = find_question_words(word, self.languages)
        return any(stem in self._vocabulary for stem in chain.from_iterable(words))

    def list_missing_words(self, question: str) -> list[str]:
        """Lists names and numbers of a question, and English nouns after an article, that no
        document has in any form; other words may have irregular forms. Nothing is listed unless the
        question is in the language of a document, and the words of all documents are stemmed."""
        votes, languages = count_function_words(question), list(self.languages)
        own = max((votes[language] for language in languages), default=0)
        ascii_stems = sum(map(str.isascii, self._vocabulary))
        is_unknown = ENGLISH in languages and 2 * ascii_stems < len(self._vocabulary)
        if is_unknown or own < max([1, *votes.values()]) or not all(map(has_stemmer, languages)):
            return []
        missing, is_english = dict[str, None](), languages == [ENGLISH]
        nouns = set(NOUN.findall(question)) if is_english else set[str]()
        for number, part in enumerate(question.split()):
            word = EDGES.sub("", part)
            stems = [find_content_words(word, language) for language in languages]
            is_name = number > 0 and any(map(str.isupper, word)) and not question.isupper()
            if all(stems) and (is_name or word.isdecimal() or word in nouns):
                is_regular = is_english and word not in nouns
                if not any(self._has_form(stem, is_regular) for stem in chain(*stems)):
                    missing[word] = None
        return list(missing)

    def _has_form(self, stem: str, is_regular: bool) -> bool:
        """Whether any document has a stem or, unless all forms of its word have this stem, a stem
        that contains it or begins like it, as `knive` begins like `knife`."""
        if stem in self._vocabulary:
            return True
        if is_regular or stem.isdecimal():
            return stem.isdecimal() and len(stem) > 3 and stem[-3:] in self._vocabulary  # 1,803
        start = stem[: max(3, len(stem) - 3)]
        return any(other.startswith(start) or stem in other for other in self._vocabulary)

    @cached_property
    def _spellings(self) -> SpellingIndex:
        return SpellingIndex(list(self._vocabulary))

    def _weigh_vocabulary(self, question: str) -> tuple[list[int], list[float]]:
        """Returns the numbers of a question's words in the vocabulary, and their weights: 1, or
        less for similar words in place of one that no document has."""
        numbers, weights = list[int](), list[float]()
        for stems in find_question_words(question, self.languages):
            words = chain.from_iterable(map(_list_words_of_stem, stems))
            known = {self._vocabulary[word]: 1.0 for word in words if word in self._vocabulary}
            for stem in () if known else stems:
                known |= self._spellings.find_similar_stems(stem)
            numbers += known
            weights += known.values()
        return numbers, weights

    def compute_bm25_scores(self, question: str) -> Tensor:
        """Returns each window's BM25 score for a question, as float32; 0 if no word matches."""
        numbers, weights = self._weigh_vocabulary(question)
        total = self._own.compute_scores(numbers, weights)
        for bm25, nearest, weight in self._around:
            total = total + weight * bm25.compute_scores(numbers, weights)[nearest]
        return total


def _list_words_of_stem(stem: str) -> list[str]:
    """Returns a stem and its Chinese characters: most words of older Chinese are one character."""
    return [stem] if stem.isascii() else list(dict.fromkeys([stem, *HAN.findall(stem)]))


def _find_nearest_windows(
    narrow_windows: Sequence[Sequence[TextWindow]], wide_windows: Sequence[Sequence[TextWindow]]
) -> Tensor:
    """Returns, for each narrow window, the number of the wide window with the nearest middle."""
    out, base = list[int](), 0
    for windows, around in zip(narrow_windows, wide_windows, strict=True):
        middles = [window.start + window.end for window in around]
        borders = [one + following for one, following in pairwise(middles)]
        out += [base + bisect_right(borders, 2 * (one.start + one.end)) for one in windows]
        base += len(around)
    return torch.tensor(out, dtype=torch.long)


def find_shared_words(text: str, question: str) -> list[tuple[int, int]]:
    """Returns the characters [start, end) of a text's content words that a question has as well."""
    language = detect_language(text)
    wanted = {stem for stems in find_question_words(question, [language]) for stem in stems}
    located = locate_content_words(text, language)
    return list(dict.fromkeys((start, end) for start, end, stem in located if stem in wanted))


def locate_question_words(text: str, question: str) -> int:
    """Returns where a question's words begin in the sentence of a text that has the most, or 0."""
    words, spans = [at for at, _ in find_shared_words(text, question)], find_sentence_spans(text)
    counts = [sum(start <= at < end for at in words) for start, end in spans]
    first = spans[counts.index(max(counts))][0] if spans else 0
    return next((at for at in words if at >= first), 0)


NAME = re.compile(r"(?<=[^.?!\s] )[A-Z][\w'’-]*(?:(?: (?:of|the|de|von|van) | )[A-Z][\w'’-]*)*")
CAPITALISED = re.compile(r"[A-Z][\w'’-]*")
TITLES = frozenset(
    ("mr", "mrs", "ms", "miss", "dr", "prof", "sir", "lord", "lady", "king", "queen", "captain")
)
INSIDE = re.compile(r"(?<=[a-z,] )[A-Za-z]")
"""Matches the first letter of a word inside a sentence."""
SAMPLE = 200_000
"""The number of characters of the documents in which capital letters are counted."""
MAX_CAPITALS = 0.25
"""The share of capitalised words inside sentences above which capitals do not indicate names."""


def capitals_indicate_names(texts: Sequence[str]) -> bool:
    """Whether capital letters indicate names, as no text is German and few words have capitals."""
    samples = [text[: SAMPLE // len(texts)] for text in texts]
    letters = [letter for text in samples for letter in INSIDE.findall(text)]
    capitals = len([letter for letter in letters if letter.isupper()])
    german = any(detect_language(text) == "german" for text in samples)
    return capitals <= MAX_CAPITALS * len(letters) and not german


def make_lowercase_predicate(tokenizer: Any) -> Callable[[str], bool]:
    """Returns a function that guesses from token ids whether a word is usually in lower case."""

    def encode_text(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    prefix = len(encode_text("a"))

    @cache
    def is_usually_lowercase(word: str) -> bool:
        low, high = encode_text(f"a {word.lower()}")[prefix:], encode_text(f"a {word}")[prefix:]
        return len(low) == 1 and (len(high) > 1 or low[0] < high[0])

    return is_usually_lowercase


def cannot_be_name(word: str, is_usually_lowercase: Callable[[str], bool]) -> bool:
    """Whether a capitalised word is an acronym, a title, or usually written in lower case."""
    bare = re.sub(r"['’]s$", "", word)
    acronym = len(bare) > 1 and bare.isupper()
    return acronym or bare.lower() in TITLES or is_usually_lowercase(bare)
