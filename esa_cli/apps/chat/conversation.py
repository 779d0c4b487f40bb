"""A conversation about documents: each question is asked with the earlier turns.

A stopped answer stays in the record, but not in the history of later questions: the model would
take half an answer for a whole one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.output.answer_output import weighed_place
from esa_cli.errors import HistoryError
from esa_cli.qa.answering.reply import Passage, Reply, Turn, says_not_told

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa

MAX_PASSAGES = 10
"""Passages of each answer that are recorded, for /evidence."""


class AnswerStoppedError(Exception):
    """Raised in a callback to stop an answer."""


@dataclass(frozen=True)
class Exchange:
    """One question and its answer, whole or stopped."""

    question: str
    answer: str
    evidence: tuple[Passage, ...] = ()
    found: bool = True
    cut: bool = False
    stopped: bool = False


class Conversation:
    """Questions and answers about the same books.

    Args:
        options: keyword arguments of `Esa.ask`. passages: recorded of each answer.
    """

    def __init__(
        self,
        asker: Esa,
        books: Sequence[Any],
        options: Mapping[str, Any] | None = None,
        passages: int = MAX_PASSAGES,
    ) -> None:
        self.asker, self.books = asker, list(books)
        self.options = {"evidence": passages, **(options or {})}
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
                    question, self.books, history=tuple(turns), on_text=on_text, **self.options
                )
            except HistoryError:
                if not turns:
                    raise
                del turns[0]


def transcript(path: Path, model: str, documents: Sequence[str], record: Sequence[Exchange]) -> str:
    """JSON where `path` ends with .json, else Markdown; names that are not UTF-8 are escaped."""
    date = time.strftime("%Y-%m-%d")
    if path.suffix.lower() == ".json":
        turns = [
            {**asdict(exchange), "evidence": [p.as_evidence() for p in exchange.evidence]}
            for exchange in record
        ]
        data = {"model": model, "date": date, "documents": list(documents), "turns": turns}
        text = json.dumps(data, indent=2, ensure_ascii=False)
    else:
        lines = ["# Questions and answers", "", f"{model}, {date}", ""]
        lines += [f"- {name}" for name in documents]
        for number, exchange in enumerate(record, 1):
            lines += ["", f"## Question {number}", "", *_markdown(exchange)]
        text = "\n".join(lines)
    return f"{text}\n".encode("utf-8", "backslashreplace").decode()


def _markdown(exchange: Exchange) -> list[str]:
    lines = [f"> {line}".rstrip() for line in exchange.question.splitlines()]
    lines += ["", exchange.answer]
    if exchange.stopped or exchange.cut:
        lines += ["", "*(stopped)*" if exchange.stopped else "*(cut off)*"]
    if not exchange.found and not says_not_told(exchange.answer):
        lines += ["", "*(the documents may not contain the answer)*"]
    if exchange.evidence:
        weights = "Passages, with how much each counts for the answer:"
        lines += ["", weights if exchange.found else "The nearest passages:", ""]
    for rank, passage in enumerate(exchange.evidence, 1):
        words = " ".join(passage.text.split())
        lines.append(f"{rank}. {weighed_place(passage, exchange.found)}: {words}")
    return lines
