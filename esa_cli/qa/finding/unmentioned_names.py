"""Names in a question that the documents never mention: then they cannot answer it.

A small model that reads a passage of the right kind answers although the question is about somebody
else. A name is a run of capitalised words inside a sentence; it counts as never mentioned when half
of its words or more occur nowhere. Where nouns are capitalised, as in German, nothing is a name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from esa_cli.system.content_words import located_words

NAME = re.compile(r"(?<=[^.?!\s] )[A-Z][\w'’-]*(?:(?: (?:of|the|de|von|van) | )[A-Z][\w'’-]*)*")
INSIDE = re.compile(r"(?<=[a-z,] )[A-Za-z]")
SAMPLE = 200_000
"""Characters of the documents that the share of capitalised words is counted in."""
MOST_CAPITALS = 0.25
"""Share of capitalised words inside sentences from which capitals do not mean names."""


def capitals_mean_names(texts: Sequence[str]) -> bool:
    """Whether few enough words inside the sentences of the texts are capitalised."""
    share = SAMPLE // max(1, len(texts))
    letters = [letter for text in texts for letter in INSIDE.findall(text[:share])]
    capitals = len([letter for letter in letters if letter.isupper()])
    return capitals <= MOST_CAPITALS * len(letters)


def unmentioned_names(question: str, known: Callable[[str], bool]) -> list[str]:
    """The names in the question that are never mentioned.

    Args:
        known: whether a word, as it is written, occurs in the documents; see `LexicalIndex.knows`.
    """
    if question.isupper():
        return []
    out = []
    for found in NAME.finditer(question):
        name = found[0]
        words = {start: name[start:end] for start, end, _ in located_words(name)}.values()
        if words and 2 * sum(not known(word) for word in words) >= len(words):
            out.append(name)
    return out
