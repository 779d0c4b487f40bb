"""The interface of another model that words answers from passages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from esa_cli.qa.answering.reply import Evidence, Turn

MOST_PASSAGES = 8
"""Passages that a reader is shown."""


@dataclass(frozen=True)
class Sampling:
    """Longest answer in tokens (None: the reader's own choice), temperature (0: greedy), top_p;
    seed: None for any."""

    max_new_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None


@dataclass(frozen=True)
class WrittenAnswer:
    """An answer, its tokens, and whether it ended at the longest allowed."""

    text: str
    tokens: int
    cut: bool


class AnswerReader(Protocol):
    """Another model that words answers from passages."""

    @property
    def name(self) -> str:
        """The model's name, as a person knows it."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of this machine's memory that its weights take."""
        ...

    def write(
        self,
        question: str,
        passages: Sequence[Evidence],
        history: Sequence[Turn],
        sampling: Sampling,
        on_text: Callable[[str], None] | None = None,
    ) -> WrittenAnswer:
        """The answer from at most `MOST_PASSAGES` passages, best first.

        Args:
            history: earlier turns, oldest first. on_text: called with each piece of the answer; an
                exception raised in it ends the answer and passes through.

        Raises:
            ReaderError: no answer came. HistoryError, LengthError: it does not fit its window.
        """
        ...

    def close(self) -> None:
        """Ends its connections, if there are any; it may be used again."""
        ...
