"""A conversation about documents: each question is asked with the earlier turns.

A stopped answer stays in the record, but not in the history of later questions: the model would
take half an answer for a whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from esa_cli.errors import HistoryError
from esa_cli.qa.answering.reply import Asker, Evidence, Reply, Turn

MAX_PASSAGES = 10
"""Passages of each answer that are recorded, for /evidence."""


class AnswerStoppedError(Exception):
    """Raised in a callback to stop an answer."""


@dataclass(frozen=True)
class Exchange:
    """One question and its answer, whole or stopped."""

    question: str
    answer: str
    evidence: tuple[Evidence, ...] = ()
    found: bool = True
    cut: bool = False
    stopped: bool = False


class Conversation:
    """Questions and answers about the same books.

    Args:
        books: results of `asker.ingest`. options: keyword arguments of `asker.ask`.
        passages: recorded of each answer.
    """

    def __init__(
        self,
        asker: Asker,
        books: Sequence[Any],
        options: Mapping[str, Any] | None = None,
        passages: int = MAX_PASSAGES,
    ) -> None:
        self.asker, self.books, self.passages = asker, list(books), passages
        self.options = dict(options or {})
        self.reset()

    def reset(self) -> None:
        """Forgets all turns and the record."""
        self.turns: list[Turn] = []
        self.record: list[Exchange] = []
        self.forgotten = 0
        self._stop = False

    def stop(self) -> None:
        """Stops the present answer at its next piece. May be called from a signal handler."""
        self._stop = True

    def ask(self, question: str, on_text: Callable[[str], None]) -> Reply | None:
        """The answer, or None if it was stopped.

        Turns that do not fit are forgotten, oldest first; `forgotten` counts them.

        Raises:
            UsageError: the question alone does not fit, or is empty. Any other EsaError.
        """
        self._stop = False
        pieces: list[str] = []

        def add(piece: str) -> None:
            if self._stop:
                raise AnswerStoppedError
            pieces.append(piece)
            on_text(piece)

        turns = list(self.turns)
        try:
            reply = self._answer(question, turns, add)
        except AnswerStoppedError:
            if pieces:
                self.record.append(Exchange(question, "".join(pieces).strip(), stopped=True))
            return None
        self.forgotten += len(self.turns) - len(turns)
        self.turns = [*turns, Turn(question, reply.text)]
        self.record.append(Exchange(question, reply.text, reply.evidence, reply.found, reply.cut))
        return reply

    def _answer(self, question: str, turns: list[Turn], on_text: Callable[[str], None]) -> Reply:
        """Removes the oldest of `turns` until they fit."""
        while True:
            try:
                return self.asker.ask(
                    question,
                    self.books,
                    history=tuple(turns),
                    evidence=self.passages,
                    on_text=on_text,
                    **self.options,
                )
            except HistoryError:
                if not turns:
                    raise
                del turns[0]
