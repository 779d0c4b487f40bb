"""Names in a question that the documents never mention: a reason to doubt an answer.

A small model that reads a passage of the right kind answers although the question is about somebody
else. A name is a run of capitalised words inside a sentence. Acronyms, titles and words that are
written small as a rule (`CEO`, `Mr`, `the Managing Director`) say nothing: documents may have them
in other words. Where nouns are capitalised, as in German, nothing is a name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from esa_cli.system.content_words import language_of, located_words

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
    highest one.

    Args:
        known: whether a word, as it is written, occurs in the documents; see `LexicalIndex.knows`.
            small: of `small_words`.
    """
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
