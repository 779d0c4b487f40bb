"""Turns about the same documents: asks with what was said before, and remembers what was said.

An answer that is stopped stays in the record, but is not handed on as history: half an answer
would be taken for a whole one. Knows no screen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from esa_cli.errors import HistoryError
from esa_cli.qa.reply import Asker, Evidence, Reply, Turn

KEPT = 10
"""Passages that are kept of an answer, to be shown when they are asked for."""


class Stopped(Exception):
    """The person has heard enough of an answer."""


@dataclass(frozen=True)
class Exchange:
    """One question and what came of it, for the record."""

    question: str
    answer: str
    evidence: tuple[Evidence, ...] = ()
    found: bool = True
    cut: bool = False
    stopped: bool = False


class Conversation:
    """Questions and answers about the same books.

    Args:
        books: what `asker.ingest` returned. options: keyword arguments for `asker.ask`.
        kept: passages to ask for with each answer.
    """

    def __init__(
        self,
        asker: Asker,
        books: Sequence[Any],
        options: Mapping[str, Any] | None = None,
        kept: int = KEPT,
    ) -> None:
        self.asker, self.books, self.kept = asker, list(books), kept
        self.options = dict(options or {})
        self.reset()

    def reset(self) -> None:
        """Forgets everything that was said."""
        self.turns: list[Turn] = []
        self.record: list[Exchange] = []
        self.forgotten = 0
        self._stop = False

    def stop(self) -> None:
        """Ends the answer that is being given, at its next piece. May be called from a signal."""
        self._stop = True

    def ask(self, question: str, on_text: Callable[[str], None]) -> Reply | None:
        """The answer, or None when it was stopped.

        Turns that no longer fit are forgotten, oldest first; `forgotten` counts them.

        Raises:
            UsageError: the question alone does not fit, or is empty. Any other EsaError.
        """
        self._stop = False
        said: list[str] = []

        def hear(piece: str) -> None:
            if self._stop:
                raise Stopped
            said.append(piece)
            on_text(piece)

        turns = list(self.turns)
        try:
            reply = self._answer(question, turns, hear)
        except Stopped:
            if said:
                self.record.append(Exchange(question, "".join(said).strip(), stopped=True))
            return None
        self.forgotten += len(self.turns) - len(turns)
        self.turns = [*turns, Turn(question, reply.text)]
        self.record.append(Exchange(question, reply.text, reply.evidence, reply.found, reply.cut))
        return reply

    def _answer(self, question: str, turns: list[Turn], hear: Callable[[str], None]) -> Reply:
        """Takes from `turns`, from the front, until they fit."""
        while True:
            try:
                return self.asker.ask(
                    question,
                    self.books,
                    history=tuple(turns),
                    evidence=self.kept,
                    on_text=hear,
                    **self.options,
                )
            except HistoryError:
                if not turns:
                    raise
                del turns[0]
