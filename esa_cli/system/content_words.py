"""Content words of a text as stems, for lexical scores.

English stop words are left out. Scripts without spaces between words (Chinese, Japanese, Thai) give
pairs of adjacent characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any

WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
SPACELESS_CHARACTER = r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]"
SPACELESS = re.compile(f"{SPACELESS_CHARACTER}+")
_ENGLISH = """
a an and are as at be but by for if in into is it no not of on or such that the their then there
these they this to was will with what which who whom whose when where why how do does did has have
had he she his her him its i you your my me our we us were been being from about can could would
should may might must than so
"""
STOP_WORDS = frozenset(_ENGLISH.split())


@cache
def stemmer() -> Any:
    """The English Snowball stemmer; its import takes as long as that of all else here."""
    import snowballstemmer

    return snowballstemmer.stemmer("english")


@lru_cache(maxsize=1 << 17)
def stem(word: str) -> str:
    """The stem of a word in lower case, by the English Snowball stemmer."""
    return str(stemmer().stemWord(word))


def located_words(text: str) -> Iterator[tuple[int, str]]:
    """(first character, stem) of the words of `text` in their order, without stop words."""
    for found in WORD.finditer(text):
        word, start = found[0].lower(), found.start()
        if SPACELESS.search(word):
            yield from _pieces(found[0], start)
        elif word not in STOP_WORDS:
            yield start, stem(word)


def _pieces(word: str, start: int) -> Iterator[tuple[int, str]]:
    """Pairs of adjacent characters of scripts without spaces; what stands between is one word."""
    done = 0
    for match in SPACELESS.finditer(word):
        if match.start() > done:
            yield start + done, stem(word[done : match.start()].lower())
        run = match[0]
        for i in range(max(1, len(run) - 1)):
            yield start + match.start() + i, run[i : i + 2]
        done = match.end()
    if done < len(word):
        yield start + done, stem(word[done:].lower())


def word_count(text: str) -> int:
    """Words of a text, at least 1: one for each pair of characters of a script without spaces, and
    for each 20 characters of what has none for another reason."""
    spaceless = sum(len(run) for run in SPACELESS.findall(text))
    return max(1, len(text.split()), len(text) // 20, spaceless // 2)


def content_words(text: str) -> list[str]:
    """Stems of the words of `text` in their order, without stop words."""
    return [word for _, word in located_words(text)]
