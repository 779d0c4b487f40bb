"""The words of a question in a passage, as BM25 compares them: by their stems."""

from __future__ import annotations

import re

from esa_cli.system.content_words import SPACELESS, WORD, content_words, located_words

PIECE = re.compile(f"['’]?{WORD.pattern}")
"""A word, or what follows a character of a script without spaces: `'s` of `李's`."""


def matched_words(text: str, question: str) -> list[tuple[int, int]]:
    """Characters [start, end) of each word of `text` that the question has, too, ascending; stop
    words are none. Pairs of characters of a script without spaces may overlap."""
    wanted = set(content_words(question))
    return [(at, _end(text, at, word)) for at, word in located_words(text) if word in wanted]


def _end(text: str, start: int, word: str) -> int:
    if SPACELESS.match(text, start):
        return start + len(word)
    found = PIECE.match(text, start)
    assert found, "a word or a piece of one begins here"
    piece = SPACELESS.search(text, start, found.end())
    return piece.start() if piece else found.end()
