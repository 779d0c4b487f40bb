"""A place that fits a question, and how much of the documents was looked at for all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from esa_cli.qa.answering.passage import Passage

_WORD = re.compile(r"\w+")
_ARTICLES = frozenset(("a", "an", "the"))


@dataclass(frozen=True)
class CollectedPlace(Passage):
    """The words of a passage that answer a question; place and text are theirs, the score is of
    the passage.

    Args:
        sentence: the sentences of the passage that the words are in.
        passage: character offsets of the passage that was read again.
        log_odds: that it tells an answer; None where another model decided. answer: that model's
            words, where there is one.
    """

    sentence: str
    passage: tuple[int, int]
    log_odds: float | None = None
    answer: str | None = None

    @property
    def words(self) -> str:
        """The other model's words, else the quoted ones, in lower case without punctuation and
        articles."""
        found = _WORD.findall((self.answer or self.text).lower())
        return " ".join([word for word in found if word not in _ARTICLES] or found)


@dataclass(frozen=True)
class Coverage:
    """Passages of the documents: all of them, those chosen to be read again, those read so far."""

    passages: int
    chosen: int
    read: int

    @property
    def share(self) -> float:
        """The share of all passages that has been read again."""
        return self.read / self.passages if self.passages else 0.0


def distinct_places(places: Iterable[CollectedPlace]) -> list[CollectedPlace]:
    """The first place of each wording; see `CollectedPlace.words`."""
    found: dict[str, CollectedPlace] = {}
    for one in places:
        found.setdefault(one.words, one)
    return list(found.values())
