"""Content words of a text as stems, for lexical scores: the one normal form of words for texts,
questions and names.

A word's form has no case, no accents and no signs of compatibility (Unicode NFKC), one apostrophe,
and no vowel marks of Arabic and Hebrew. An elided article (`l'Italie`) is apart from its noun;
words of other languages than English are divided at every apostrophe (`Ankara'da`). Words are
stemmed in the language of their text, where Snowball has it, with and without accents. The most
frequent words of the language are left out, else every passage would have a word of the question.
Scripts without spaces between words (Chinese, Japanese, Thai) give pairs of adjacent characters.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ENGLISH = "english"
SPACELESS_CHARACTER = (
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005\u3007\u3040-\u30ff\u3400-\u9fff"
    r"\U00020000-\U0003ffff]"
)
_SPACELESS = re.compile(f"{SPACELESS_CHARACTER}+")
_APOSTROPHES = "’‘ʼʻ＇"
_ELIDED = set("l d c j m n s t qu dell all nell dall sull quest quell jusqu lorsqu".split())  # noqa: SIM905
"""Articles and the like before a French or Italian noun in an English text."""
_FUNCTION_WORDS = Path(__file__).with_name("function_words.txt")
TATWEEL = "\u0640"  # it makes an Arabic word wider
# Marks that are no part of a letter: joiners, soft hyphens, variants, vowels of Hebrew and Arabic.
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
"""Where Unicode has combining marks of scripts."""
_RARE = r"\U00011000-\U00011fff\U0001e000-\U0001e95f"
"""Scripts of few texts, with their marks; sorting these out would make the pattern slow."""
CACHED_RUNS, CACHED_LETTERS = 1 << 17, 24
"""Runs of letters of a language whose stems are cached, and their characters at most."""
SLICES, SLICE = 8, 1500
"""Number and characters of the slices of a text by which its language is told."""
MIN_WORDS, MIN_SHARE, MARGIN = 3, 0.04, 2
"""Another language's frequent words in a sample, at least: their number, their share of all words,
and the multiple of those of English. A table, a name or a line has few of any."""


@cache
def function_words() -> dict[str, list[str]]:
    """Returns the most frequent words of each language."""
    paragraphs = _FUNCTION_WORDS.read_text("utf-8").split("\n\n")[1:]
    return {words[0]: words[1:] for words in map(str.split, paragraphs)}


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Patterns of a run of letters and ASCII apostrophes, and of a letter with its marks."""
    marks = _JOINERS + "".join(
        letter
        for first, last in _MARKS
        for letter in map(chr, range(first, last))
        if _is_mark(letter)
    )
    return re.compile(rf"\w['\w{marks}{_RARE}]*"), re.compile(rf"\w[{marks}]*")


@cache
def _find_stemmer(language: str) -> Any:
    """Returns the language's Snowball stemmer, or None."""
    import snowballstemmer

    if language not in snowballstemmer.algorithms():
        return None
    return lru_cache(CACHED_RUNS)(snowballstemmer.stemmer(language).stemWord)


@cache
def _find_stop_words(language: str) -> frozenset[str]:
    return frozenset(map(_simplify_word, function_words()[language]))


@cache
def _map_words_to_languages() -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for language in function_words():
        for word in _find_stop_words(language):
            out.setdefault(word, []).append(language)
    return out


def _remove_accents(word: str) -> str:
    if word.isascii():
        return word
    bare = _ACCENT.sub("", unicodedata.normalize("NFD", word))
    return unicodedata.normalize("NFC", bare).translate(_WITHOUT_ACCENT)


@lru_cache(CACHED_RUNS)
def _fold_word(word: str) -> str:
    """Removes case, signs of compatibility and marks that are no part of a letter."""
    if word.isascii():
        return word.lower()
    word = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", word).casefold())
    if word.isalnum() and TATWEEL not in word:  # no marks
        return word
    letters = _UNWRITTEN.sub("", word)
    # Compatibility gives some characters punctuation and spaces: ½ has a stroke.
    return "".join(one for one in letters if one.isalnum() or one == "'" or _is_mark(one))


def _is_mark(letter: str) -> bool:
    return unicodedata.category(letter)[0] == "M"


def _simplify_word(word: str) -> str:
    return _remove_accents(_fold_word(word))


def _prepare_text(text: str) -> tuple[str, re.Pattern[str]]:
    """Returns the text, as long as before, with apostrophes as in ASCII and no underscores, and the
    pattern of its runs of letters and apostrophes."""
    if text.isascii():
        return text, _RUN_OF_ASCII
    for sign in _APOSTROPHES:
        text = text.replace(sign, "'")
    return text.replace("_", " "), _patterns()[0]


class _Terms(dict[str, tuple[tuple[int, int, str], ...]]):
    """A cache from a run of letters to (first character, end, stem) of its content words."""

    def __init__(self, language: str) -> None:
        super().__init__()
        self._language = language

    def __missing__(self, run: str) -> tuple[tuple[int, int, str], ...]:
        terms = tuple(_divide_run(run, self._language))
        if len(run) <= CACHED_LETTERS:  # longer ones hardly come again
            if len(self) >= CACHED_RUNS:
                self.clear()
            self[run] = terms
        return terms


@cache
def _cached_terms(language: str) -> _Terms:
    return _Terms(language)


def _divide_run(run: str, language: str) -> Iterator[tuple[int, int, str]]:
    """Yields (first character, end, stem) of the content words of a run; pairs of characters of
    scripts without spaces."""
    if run.isascii() and "'" not in run:
        yield from ((0, len(run), stem) for stem in _stem_word(run, language))
        return
    done = 0
    for spaceless in _SPACELESS.finditer(run):
        yield from _divide_words(run, done, spaceless.start(), language)
        first, done = spaceless.span()
        if spaceless[0].isalnum() and unicodedata.is_normalized("NFKC", spaceless[0]):
            for at in range(first, max(first + 1, done - 1)):
                yield at, min(at + 2, done), run[at : min(at + 2, done)]
            continue
        letters = [one.span() for one in _patterns()[1].finditer(run, first, done)]
        pairs = zip(letters[: max(1, len(letters) - 1)], letters[1:] or letters, strict=True)
        for (first, _), (_, end) in pairs:
            yield first, end, _fold_word(run[first:end])
    yield from _divide_words(run, done, len(run), language)


def _divide_words(run: str, start: int, end: int, language: str) -> Iterator[tuple[int, int, str]]:
    """Yields the content words of the characters [start, end) of a run of a script with spaces."""
    for word in _WORD.finditer(run, start, end):
        at, parts = word.start(), word[0].split("'")
        if language == ENGLISH:
            while len(parts) > 1 and _simplify_word(parts[0]) in _ELIDED:
                at += len(parts.pop(0)) + 1
            parts = ["'".join(parts)]
        for part in parts:
            yield from ((at, at + len(part), stem) for stem in _stem_word(part, language))
            at += len(part) + 1


def _stem_word(word: str, language: str) -> Iterable[str]:
    """Returns a word's stem, and that of the word without accents where it is another, so that
    questions with and without accents find the word; nothing for a frequent word."""
    folded = _fold_word(word)
    plain = _remove_accents(folded)
    if not plain or plain in _find_stop_words(language):
        return ()
    stem = _find_stemmer(language)
    if stem is None:
        return (plain,)
    forms = (plain,) if plain == folded else (plain, folded)
    return dict.fromkeys(_remove_accents(stem(form)) or plain for form in forms)


def language_of(text: str) -> str:
    """Returns the language of a text by a vote of its most frequent words; English where these are
    not clearly another language's."""
    step = max(SLICE, len(text) // SLICES)
    sample = " ".join(text[at : at + SLICE] for at in range(0, len(text), step))
    sample, pattern = _prepare_text(sample)
    counts = Counter(part for run in pattern.findall(sample) for part in run.split("'"))
    votes, known = Counter[str](), _map_words_to_languages()
    for word, count in counts.items():
        for language in known.get(_simplify_word(word), ()):
            votes[language] += count
    enough = max(MIN_WORDS, MIN_SHARE * counts.total(), MARGIN * votes[ENGLISH])
    best = max(votes, key=votes.__getitem__, default=ENGLISH)
    return best if votes[best] >= enough else ENGLISH


def located_words(text: str, language: str = ENGLISH) -> Iterator[tuple[int, int, str]]:
    """Yields (first character, end, stem) of the content words of `text` in their order; a word
    with accents may have two stems, one after the other."""
    (text, pattern), terms = _prepare_text(text), _cached_terms(language)
    for run in pattern.finditer(text):
        start = run.start()
        for first, end, stem in terms[run[0]]:
            yield start + first, start + end, stem


def content_words(text: str, language: str = ENGLISH) -> list[str]:
    """Returns the stems of the content words of `text` in their order."""
    (text, pattern), terms = _prepare_text(text), _cached_terms(language)
    return [stem for run in pattern.findall(text) for _, _, stem in terms[run]]


def question_words(question: str, languages: Iterable[str]) -> list[tuple[str, ...]]:
    """Returns the question's content words in their order, each with its stems in texts of these
    languages."""
    out: dict[int, dict[str, None]] = {}
    for language in languages:
        for start, _, stem in located_words(question, language):
            out.setdefault(start, {})[stem] = None
    return [tuple(out[start]) for start in sorted(out)]


def word_count(text: str) -> int:
    """Returns the number of words of a text, at least 1; a pair of characters of a script without
    spaces counts as a word, and so do 20 characters of a text that has no spaces for other reasons.
    """
    spaceless = sum(len(run) for run in _SPACELESS.findall(text))
    return max(1, len(text.split()), len(text) // 20, spaceless // 2)


@cache
def words_version() -> str:
    """Returns a digest of all that shapes content words beside the text: words that were stored
    with another are made again."""
    # snowballstemmer hands over to PyStemmer where that is installed.
    parts = f"{version('snowballstemmer')} {find_spec('Stemmer') is not None}".encode()
    files = Path(__file__).read_bytes(), _FUNCTION_WORDS.read_bytes()
    return hashlib.sha256(b"\n".join([parts, *files])).hexdigest()
