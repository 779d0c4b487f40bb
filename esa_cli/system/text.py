"""Computes digests, content words and BM25 scores of texts, without a model.

Content words are stems in lower case, without accents, Unicode compatibility characters (NFKC) and
vowel marks of Arabic and Hebrew, and with ASCII apostrophes. An elided article (`l'Italie`) is
separated from its noun; in languages other than English, words are divided at every apostrophe
(`Ankara'da`). Words are stemmed in the language of their text, where Snowball supports the
language, both with and without accents. The most frequent words of a language are left out, since
otherwise every passage would share a word with the question. In scripts without spaces between
words (Chinese, Japanese, Thai), pairs of adjacent characters are the content words."""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_SURROGATE = re.compile("[\ud800-\udfff]")
ENGLISH = "english"
SPACELESS_CHARACTER = (
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005\u3007\u3040-\u30ff\u3400-\u9fff"
    r"\U00020000-\U0003ffff]"
)
_SPACELESS = re.compile(f"{SPACELESS_CHARACTER}+")
_APOSTROPHES = "’‘ʼʻ＇"
_ELIDED = set("l d c j m n s t qu dell all nell dall sull quest quell jusqu lorsqu".split())  # noqa: SIM905
"""Elided articles and pronouns before a French or Italian noun in an English text."""
_FUNCTION_WORDS = Path(__file__).with_name("function_words.txt")
TATWEEL = "\u0640"  # it makes an Arabic word wider
# Marks that are not part of a letter: joiners, soft hyphens, variants, Hebrew and Arabic vowels.
_UNWRITTEN = re.compile(
    rf"[{TATWEEL}\u00ad\u200c\u200d\u2060\ufe00-\ufe0f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7"
    r"\u0610-\u061a\u064b-\u0652\u0656-\u065f\u0670\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed]"
)
# Accents of decomposed letters. In Cyrillic they tell letters apart, but for the stress.
_ACCENT = re.compile(
    r"(?<![\u0400-\u04ff])[\u0300-\u036f\u0653-\u0655\u1ab0-\u1aff\u1dc0-\u1dff]|[\u0300\u0301]"
)
_WITHOUT_ACCENT = str.maketrans({"æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "đ": "d", "ı": "i"})
_RUN_OF_ASCII = re.compile(r"[A-Za-z0-9]['A-Za-z0-9]*")
_WORD = re.compile(r"[^']+(?:'[^']+)*")
_JOINERS = "\u00ad\u200c\u200d\u2060"
_MARKS = ((0x300, 0x3400), (0xA66F, 0xAC00), (0xFB1E, 0xFE30))
"""Unicode ranges that contain the combining marks of scripts."""
_RARE = r"\U00011000-\U00011fff\U0001e000-\U0001e95f"
"""Rare scripts with their combining marks; listing only their marks would make the pattern slow."""
CACHED_RUNS, CACHED_LETTERS = 1 << 17, 24
"""The number of runs of letters that are cached with their stems, and their maximum length."""
SLICES, SLICE = 8, 1500
"""The number and the length of the samples of a text by which its language is detected."""
MIN_WORDS, MIN_SHARE, MARGIN = 3, 0.04, 2
"""The least that a sample must have of another language's frequent words: their number, share of
all words, and multiple of the English ones. Tables, names and short lines have only a few."""

K1, B = 1.5, 0.75
"""The usual parameters of BM25: k1 saturates a word's count, and b weighs a text's length."""


def encode_text(text: str) -> bytes:
    """Encodes a text in UTF-8; a lone surrogate, which UTF-8 forbids, becomes three bytes."""
    return text.encode("utf-8", "surrogatepass")


def digest_text(text: str) -> str:
    """Returns the SHA-256 of a text as 64 hexadecimal digits."""
    return hashlib.sha256(encode_text(text)).hexdigest()


def has_lone_surrogate(text: str) -> bool:
    """Whether a text contains a lone surrogate (U+D800 to U+DFFF), which no tokenizer accepts. Lone
    surrogates come from command-line arguments that are not UTF-8, and from JSON escapes."""
    return _SURROGATE.search(text) is not None


def replace_lone_surrogates(value: Any) -> Any:
    """Returns a text or a JSON value with U+FFFD in place of each lone surrogate."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        parts = ((replace_lone_surrogates(name), part) for name, part in value.items())
        return {name: replace_lone_surrogates(part) for name, part in parts}
    if isinstance(value, list):
        return [replace_lone_surrogates(part) for part in value]
    return value


@cache
def load_function_words() -> dict[str, list[str]]:
    """Returns, for each known language, its most frequent words, such as articles."""
    paragraphs = _FUNCTION_WORDS.read_text("utf-8").split("\n\n")[1:]
    return {words[0]: words[1:] for words in map(str.split, paragraphs)}


@cache
def _compile_letter_patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Returns patterns that match a run of letters and apostrophes, and a letter with accents."""
    marks = _JOINERS + "".join(
        letter
        for first, last in _MARKS
        for letter in map(chr, range(first, last))
        if _is_combining_mark(letter)
    )
    return re.compile(rf"\w['\w{marks}{_RARE}]*"), re.compile(rf"\w[{marks}]*")


@cache
def _make_cached_stemmer(language: str) -> Any:
    """Returns Snowball's stemmer of a language, or None for a language that Snowball lacks."""
    import snowballstemmer

    if language not in snowballstemmer.algorithms():
        return None
    return lru_cache(CACHED_RUNS)(snowballstemmer.stemmer(language).stemWord)


def has_stemmer(language: str) -> bool:
    """Whether words of a language are stemmed, so that all forms of a word are found."""
    return _make_cached_stemmer(language) is not None


@cache
def _load_stop_words(language: str) -> frozenset[str]:
    return frozenset(map(_normalise_without_accents, load_function_words()[language]))


@cache
def _map_stop_words_to_languages() -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for language in load_function_words():
        for word in _load_stop_words(language):
            out.setdefault(word, []).append(language)
    return out


def _remove_accents(word: str) -> str:
    if word.isascii():
        return word
    bare = _ACCENT.sub("", unicodedata.normalize("NFD", word))
    return unicodedata.normalize("NFC", bare).translate(_WITHOUT_ACCENT)


@lru_cache(CACHED_RUNS)
def _normalise_word(word: str) -> str:
    """Returns a word in lower case without Unicode compatibility characters and vowel marks."""
    if word.isascii():
        return word.lower()
    word = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", word).casefold())
    if word.isalnum() and TATWEEL not in word:  # no marks
        return word
    letters = _UNWRITTEN.sub("", word)
    # Compatibility gives some characters punctuation and spaces: ½ has a stroke.
    return "".join(c for c in letters if c.isalnum() or c == "'" or _is_combining_mark(c))


def _is_combining_mark(character: str) -> bool:
    return unicodedata.category(character)[0] == "M"


def _normalise_without_accents(word: str) -> str:
    return _remove_accents(_normalise_word(word))


def _prepare_word_search(text: str) -> tuple[str, re.Pattern[str]]:
    """Returns the text with ASCII apostrophes, and spaces in place of underscores, and the regular
    expression that finds runs of letters and apostrophes in the returned text."""
    if text.isascii():
        return text, _RUN_OF_ASCII
    for sign in _APOSTROPHES:
        text = text.replace(sign, "'")
    return text.replace("_", " "), _compile_letter_patterns()[0]


class _ContentWordsCache(dict[str, tuple[tuple[int, int, str], ...]]):
    """A cache that maps a run of letters to (first character, end, stem) of its content words."""

    def __init__(self, language: str) -> None:
        super().__init__()
        self._language = language

    def __missing__(self, run: str) -> tuple[tuple[int, int, str], ...]:
        terms = tuple(_find_words_in_letter_run(run, self._language))
        if len(run) <= CACHED_LETTERS:  # longer ones hardly come again
            if len(self) >= CACHED_RUNS:
                self.clear()
            self[run] = terms
        return terms


@cache
def _get_content_words_cache(language: str) -> _ContentWordsCache:
    return _ContentWordsCache(language)


def _find_words_in_letter_run(run: str, language: str) -> Iterator[tuple[int, int, str]]:
    """Yields (first character, end, stem) of the content words in a run of letters. In scripts
    without spaces, pairs of adjacent characters are the content words."""
    if run.isascii() and "'" not in run:
        yield from ((0, len(run), stem) for stem in _list_stems_of_word(run, language))
        return
    done = 0
    for spaceless in _SPACELESS.finditer(run):
        yield from _find_words_between_spaces(run, done, spaceless.start(), language)
        first, done = spaceless.span()
        if spaceless[0].isalnum() and unicodedata.is_normalized("NFKC", spaceless[0]):
            for at in range(first, max(first + 1, done - 1)):
                yield at, min(at + 2, done), run[at : min(at + 2, done)]
            continue
        letters = [one.span() for one in _compile_letter_patterns()[1].finditer(run, first, done)]
        pairs = zip(letters[: max(1, len(letters) - 1)], letters[1:] or letters, strict=True)
        for (first, _), (_, end) in pairs:
            yield first, end, _normalise_word(run[first:end])
    yield from _find_words_between_spaces(run, done, len(run), language)


def _find_words_between_spaces(
    letter_run: str, start: int, end: int, language: str
) -> Iterator[tuple[int, int, str]]:
    """Yields as `_find_words_in_letter_run` the words of a part in a script with spaces."""
    for word in _WORD.finditer(letter_run, start, end):
        at, parts = word.start(), word[0].split("'")
        if language == ENGLISH:
            while len(parts) > 1 and _normalise_without_accents(parts[0]) in _ELIDED:
                at += len(parts.pop(0)) + 1
            parts = ["'".join(parts)]
        for part in parts:
            yield from ((at, at + len(part), stem) for stem in _list_stems_of_word(part, language))
            at += len(part) + 1


def _list_stems_of_word(word: str, language: str) -> Iterable[str]:
    """Returns the stem of a word, and the stem of the word without accents if it differs, so that
    questions with and without accents find the word; frequent words have no stem."""
    folded = _normalise_word(word)
    plain = _remove_accents(folded)
    if not plain or plain in _load_stop_words(language):
        return ()
    stem = _make_cached_stemmer(language)
    if stem is None:
        return (plain,)
    forms = (plain,) if plain == folded else (plain, folded)
    return dict.fromkeys(_remove_accents(stem(form)) or plain for form in forms)


def detect_language(text: str) -> str:
    """Returns the language of most of a text's frequent words, or English if that is unclear."""
    step = max(SLICE, len(text) // SLICES)
    sample = " ".join(text[at : at + SLICE] for at in range(0, len(text), step))
    words, votes = len(_split_into_words(sample)), count_function_words(sample)
    enough = max(MIN_WORDS, MIN_SHARE * words, MARGIN * votes[ENGLISH])
    best = max(votes, key=votes.__getitem__, default=ENGLISH)
    return best if votes[best] >= enough else ENGLISH


def count_function_words(text: str) -> Counter[str]:
    """Counts the words of a text that are among the most frequent words of each language."""
    votes, known = Counter[str](), _map_stop_words_to_languages()
    for word, count in Counter(_split_into_words(text)).items():
        for language in known.get(_normalise_without_accents(word), ()):
            votes[language] += count
    return votes


def _split_into_words(text: str) -> list[str]:
    text, pattern = _prepare_word_search(text)
    return [part for run in pattern.findall(text) for part in run.split("'")]


def locate_content_words(text: str, language: str = ENGLISH) -> Iterator[tuple[int, int, str]]:
    """Yields (first character, end, stem) of the content words of `text`, in text order. A word
    with accents may have two stems, one after the other."""
    (text, pattern), terms = _prepare_word_search(text), _get_content_words_cache(language)
    for run in pattern.finditer(text):
        start = run.start()
        for first, end, stem in terms[run[0]]:
            yield start + first, start + end, stem


def find_content_words(text: str, language: str = ENGLISH) -> list[str]:
    """Returns the stems of the content words of `text`, in text order."""
    (text, pattern), terms = _prepare_word_search(text), _get_content_words_cache(language)
    return [stem for run in pattern.findall(text) for _, _, stem in terms[run]]


def find_question_words(question: str, languages: Iterable[str]) -> list[tuple[str, ...]]:
    """Returns a tuple of stems for each content word of the question, in the order of the words;
    one word may have a different stem in each of the languages."""
    out: dict[int, dict[str, None]] = {}
    for language in languages:
        for start, _, stem in locate_content_words(question, language):
            out.setdefault(start, {})[stem] = None
    return [tuple(out[start]) for start in sorted(out)]


def count_words_of_text(text: str) -> int:
    """Returns the number of words of a text, at least 1. In scripts without spaces, two characters
    count as a word; in other texts that have no spaces, 20 characters count as a word."""
    spaceless = sum(len(run) for run in _SPACELESS.findall(text))
    return max(1, len(text.split()), len(text) // 20, spaceless // 2)


@cache
def compute_digest_of_word_rules() -> str:
    """Returns a digest of the code, lists and packages that determine the content words of a text.
    Content words that were stored with another digest are computed again."""
    from importlib.metadata import version
    from importlib.util import find_spec

    # snowballstemmer hands over to PyStemmer where that is installed.
    parts = f"{version('snowballstemmer')} {find_spec('Stemmer') is not None}".encode()
    files = Path(__file__).read_bytes(), _FUNCTION_WORDS.read_bytes()
    return hashlib.sha256(b"\n".join([parts, *files])).hexdigest()


class Bm25Index:
    """An index that computes BM25 scores of texts for questions. The words of each text are
    `numbers` below `vocabulary`; the scores of every word are computed when the index is made.

    For a question with the words w, a text d, one of n texts, has the score(d) = sum over w of
    idf(w) * tf(w, d) / (tf(w, d) + k1 * (1 - b + b * |d| / mean |d|)), where tf(w, d) counts w in
    d, |d| is the number of words of d, idf(w) = ln(1 + (n - df(w) + 1/2) / (df(w) + 1/2)), and
    df(w) is the number of texts with w. A word that the question repeats counts repeatedly, and the
    scores equal those of the library bm25s bit for bit."""

    def __init__(self, numbers: Sequence[Sequence[int]], vocabulary: int) -> None:
        import numpy

        ids = numpy.concatenate([numpy.empty(0, dtype=numpy.int64), *numbers])
        sizes = numpy.array([len(text) for text in numbers], dtype=numpy.int64)
        self._count = texts = len(sizes)
        # One number for each word of each text; sorted, it is by words and then by texts.
        pairs = ids.astype(numpy.int64, copy=False) * texts + numpy.repeat(
            numpy.arange(texts), sizes
        )
        pairs.sort()
        first = numpy.flatnonzero(numpy.diff(pairs, prepend=-1))
        word_counts = numpy.diff(first, append=len(pairs))
        words, own = numpy.divmod(pairs[first], max(1, texts))
        self._texts = own.astype(numpy.int32)
        text_counts = numpy.bincount(words, minlength=vocabulary)
        self._ends = numpy.append(0, text_counts.cumsum())
        # In float64 and then rounded, as bm25s does.
        length = K1 * ((1 - B) + B * sizes / sizes.mean()) if len(pairs) else sizes
        counts, at = numpy.unique(text_counts, return_inverse=True)
        weights = [math.log(1 + (texts - df + 0.5) / (df + 0.5)) for df in counts.tolist()]
        idf = numpy.array(weights, dtype=numpy.float32)[at][words]
        scores = idf * (word_counts / (length[self._texts] + word_counts))
        self._scores = scores.astype(numpy.float32)

    def compute_scores(
        self, question_words: Iterable[int], weights: Iterable[float] = repeat(1.0)
    ) -> Tensor:
        """Returns the BM25 scores of the texts for the words of a question and the words' weights,
        (texts,) float32; a text without any of the words has the score 0."""
        import numpy
        import torch

        out = numpy.zeros(self._count, dtype=numpy.float32)
        for word, weight in zip(question_words, weights, strict=False):
            own = slice(self._ends[word], self._ends[word + 1])
            out[self._texts[own]] += weight * self._scores[own]
        return torch.from_numpy(out)
