"""Questions that a passage does not answer, made of those that it answers: one name, number or word
that stands in both is another one in the question.

What the passage says of one person, year or colour it does not say of another. The new name is one
of the text's, so that the question could be asked of another of its passages.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from name_pattern import BEGINNINGS, NAME

from esa_cli.evaluation.tasks.task_sample import StableRandom

FEWEST = 3
"""Times that a text must mention a name that others are replaced by."""
_KINDS = (
    "black white red green blue yellow brown grey purple orange pink golden silver scarlet crimson",
    "january february april june july august september october november december",
    "monday tuesday wednesday thursday friday saturday sunday",
    "first second third fourth fifth sixth",
    "two three four five six seven eight nine ten twelve twenty thirty hundred",
    "north south east west",
    "father mother brother sister uncle aunt cousin wife husband son daughter grandmother",
    "morning afternoon evening night",
    "spring summer autumn winter",
    "wood stone iron copper brass glass leather paper",
    "king queen prince princess duke captain colonel doctor bishop judge",
    "dog cat horse cow bird fish",
)
KINDS = tuple(tuple(kind.split()) for kind in _KINDS)
"""Words that answer to each other, by kind."""
_KIND = {word: kind for kind in KINDS for word in kind}


def frequent_names(text: str) -> list[str]:
    """Names that a text mentions often, in the order of the alphabet; no numbers, and no words that
    it also has without a capital letter."""
    counts = Counter(match.group() for match in NAME.finditer(text))
    small = set(re.findall(r"\b[a-z]+\b", text))
    return sorted(
        name for name, count in counts.items()
        if count >= FEWEST and name[0].isalpha() and name.split()[0].lower() not in small
    )  # fmt: skip


def swapped_question(
    question: str, passage: str, names: Sequence[str], rng: StableRandom
) -> str | None:
    """The question about another name, number or word, which the passage does not mention; None
    where the two have none in common.

    Args:
        names: what names are replaced by.
    """
    places = [
        (match.start(), match.end())
        for match in (*NAME.finditer(question), *re.finditer(r"\b[a-z]+\b", question))
        if (not match.group().islower() or match.group() in _KIND)
        and match.group().lower() not in BEGINNINGS
        and question.count(match.group()) == 1
        and _mentions(passage, match.group())
    ]
    if not places:
        return None
    start, end = places[rng.draw_integer_below(len(places))]
    other = _other(question[start:end], passage, names, rng)
    return question[:start] + other + question[end:] if other else None


def _other(word: str, passage: str, names: Sequence[str], rng: StableRandom) -> str | None:
    """Another of the same kind that the passage does not mention."""
    if word[0].isdigit():
        digits = [str(1 + rng.draw_integer_below(9)) if one.isdigit() else one for one in word]
        found = [word[:-2] + "".join(digits[-2:])]
    elif word.lower() in _KIND:
        kind = _KIND[word.lower()]
        found = [one.capitalize() for one in kind] if word[0].isupper() else list(kind)
    else:
        found = [name for name in names if name not in word and word not in name]
    kept = [one for one in found if one != word and not _mentions(passage, one)]
    return kept[rng.draw_integer_below(len(kept))] if kept else None


def _mentions(passage: str, words: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", passage, re.IGNORECASE) is not None
