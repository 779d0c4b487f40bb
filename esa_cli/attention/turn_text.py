"""The words of a turn, for scores that compare words or embeddings of words.

The session gives it with each question. Nothing is decoded until a score asks for `pieces`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class TurnText:
    """The text of the documents by token, and the question's.

    Args:
        question: its own words, without the prompt's.
        pieces: returns the text of each token of the documents, from position 0 on; joined, they
            are the text. Tokens behind them (earlier turns, the question) have none.
        kept: what scores made of the documents' text, see `once`; as long as they are cached.
    """

    question: str
    pieces: Callable[[], Sequence[str]]
    kept: MutableMapping[Hashable, Any] = field(default_factory=dict, repr=False)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returned the first time for this key: an index of the documents, which all
        layers and all later questions about them use. A score is a good key, since it is frozen."""
        if key not in self.kept:
            self.kept[key] = make()
        value: T = self.kept[key]
        return value
