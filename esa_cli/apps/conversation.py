"""A conversation about documents: its questions, its commands, and the record that it saves.

Each question is asked with the earlier turns. A stopped answer stays in the record, but not in the
history of later questions: the model would take half an answer for a whole one. A command is a
slash and a word; anything else is a question, also a path that begins with a slash.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.inputs import Line
from esa_cli.apps.cli.options import output_paths
from esa_cli.apps.cli.output.answer_output import (
    AnswerStream,
    complain,
    in_full,
    show_under,
    weighed_place,
)
from esa_cli.apps.cli.output.terminal import Reporter, clean
from esa_cli.errors import EsaError, HistoryError, UsageError
from esa_cli.qa.answering.reply import Reply, Turn

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa

MAX_PASSAGES = 10
"""Passages of each answer that are recorded, for /evidence."""
COMMANDS = {
    "/evidence": "[N]: the passages the last answer rests on, in full",
    "/reset": "forget the conversation; the documents stay",
    "/save": "FILE: keep the conversation as Markdown, or as JSON in a .json",
    "/docs": "the documents",
    "/help": "this list",
    "/quit": "end; Ctrl-D does it, too",
}
_WORDS = {"exit": "/quit", "quit": "/quit", "help": "/help"}
"""What people type at a terminal before they know of slashes."""
_COMMAND = re.compile(r"(/[a-z]*)(?:\s+(.*))?", re.DOTALL)


class AnswerStoppedError(Exception):
    """Raised in a callback to stop an answer."""


@dataclass(frozen=True)
class Exchange:
    """One question and its answer, whole or stopped."""

    question: str
    reply: Reply
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
        while True:
            try:
                reply = self.asker.ask(
                    question, self.books, history=tuple(turns), on_text=add, **self.options
                )
                break
            except HistoryError:
                if not turns:
                    raise
                del turns[0]
            except AnswerStoppedError:
                if pieces:
                    half = Reply("".join(pieces).strip())
                    self.record.append(Exchange(question, half, stopped=True))
                return None
        self.forgotten += len(self.turns) - len(turns)
        self.turns = [*turns, Turn(question, reply.text)]
        self.record.append(Exchange(question, reply))
        return reply


class ChatLines:
    """Answers the questions and runs the commands of one conversation.

    Args:
        documents: their names. passages: shown under each answer.
        stoppable: a person types the lines: Ctrl-C stops the answer in place of the program, and
            `_WORDS` are commands.
    """

    def __init__(
        self,
        talk: Conversation,
        documents: Sequence[str],
        reporter: Reporter,
        passages: int,
        *,
        stoppable: bool = False,
    ) -> None:
        self.talk, self.documents, self.reporter = talk, documents, reporter
        self.passages, self.stoppable = passages, stoppable
        self.failed = 0
        """Lines that ended in an error."""
        self._saved: set[Path] = set()
        self._warned = False

    def take(self, line: Line) -> bool:
        """Answers or runs the line; False for /quit."""
        try:
            if isinstance(line, EsaError):
                raise line
            line = line.strip()
            if self.stoppable:
                line = _WORDS.get(line.lower(), line)
            command = _COMMAND.fullmatch(line)
            if command is None:
                if line:
                    self._ask(line)
            elif command[1] == "/quit":
                return False
            else:
                self._command(command[1], (command[2] or "").strip())
        except EsaError as error:
            self.failed += 1
            complain(self.reporter, f"esa: {error.message}")
            if error.hint:
                complain(self.reporter, f"     {error.hint}")
        return True

    def _ask(self, question: str) -> None:
        forgotten, stream = self.talk.forgotten, AnswerStream(sys.stdout, self.reporter)
        self.reporter.waiting("answering")
        try:
            with _interrupts(self.talk.stop) if self.stoppable else nullcontext():
                reply = self.talk.ask(question, stream)
        finally:
            self.reporter.settle()
            if stream.any:
                print(flush=True)
        if reply is None:
            self.reporter.note("  stopped")
            return
        if not stream.any:
            print(clean(reply.text), flush=True)
        show_under(reply, self.passages, self.reporter)
        if self.talk.forgotten > forgotten and not self._warned:
            self._warned = True
            self.reporter.warn("  the conversation has grown long: its oldest turns are left out")

    def _command(self, name: str, rest: str) -> None:
        if name == "/evidence":
            self._evidence(rest)
        elif name == "/reset":
            self.talk.reset()
            self._warned = False
            self.reporter.note("  forgotten; the documents stay")
        elif name == "/save":
            self._save(rest)
        elif name == "/docs":
            print(clean("\n".join(self.documents)))
        elif name == "/help":
            print("\n".join(f"{name:10} {about}" for name, about in COMMANDS.items()))
        else:
            raise UsageError(f"there is no command {name}", "see /help")

    def _record(self) -> list[Exchange]:
        if not self.talk.record:
            raise UsageError("there is no answer yet", "ask a question first")
        return self.talk.record

    def _evidence(self, rest: str) -> None:
        if rest and not (rest.isascii() and rest.isdigit() and int(rest)):
            raise UsageError(
                f"number of passages must be a whole number from 1, got {rest!r}", "try /evidence 5"
            )
        last = self._record()[-1].reply
        if not last.evidence:
            raise UsageError("the last answer has no passages", "it was stopped, or rests on none")
        count = int(rest or MAX_PASSAGES)
        print(in_full(last.evidence[:count], last.found))
        if rest and count > len(last.evidence):
            self.reporter.warn(f"  {len(last.evidence)} are kept of an answer")

    def _save(self, rest: str) -> None:
        path, record = Path(rest.strip("\"'")).expanduser(), self._record()
        if not rest or (path.exists() and path.absolute() not in self._saved):
            got = path if rest else "none"
            raise UsageError(f"/save must name a new file, got {got}", "try /save talk.md")
        output_paths.check("/save", path)
        output_paths.write(path, transcript(path, self.talk.asker.name, self.documents, record))
        self._saved.add(path.absolute())
        self.reporter.note(f"  saved {len(record)} questions in {path}")


@contextmanager
def _interrupts(stop: Callable[[], None]) -> Iterator[None]:
    """In this context the first Ctrl-C calls `stop`; a second one has its usual effect."""
    before: Any = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return

    def on_signal(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, before)
        stop()

    signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def transcript(path: Path, model: str, documents: Sequence[str], record: Sequence[Exchange]) -> str:
    """JSON where `path` ends with .json, else Markdown; names that are not UTF-8 are escaped."""
    date = time.strftime("%Y-%m-%d")
    if path.suffix.lower() == ".json":
        turns = [
            {"question": one.question, **one.reply.as_row(), "stopped": one.stopped}
            for one in record
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
    reply = exchange.reply
    lines = [f"> {line}".rstrip() for line in exchange.question.splitlines()]
    lines += ["", reply.text]
    if exchange.stopped or reply.cut:
        lines += ["", "*(stopped)*" if exchange.stopped else "*(cut off)*"]
    if reply.doubtful:
        lines += ["", "*(the documents may not contain the answer)*"]
    if reply.evidence:
        weights = "Passages, with how much each counts for the answer:"
        lines += ["", weights if reply.found else "The nearest passages:", ""]
    for rank, passage in enumerate(reply.evidence, 1):
        words = " ".join(passage.text.split())
        lines.append(f"{rank}. {weighed_place(passage, reply.found)}: {words}")
    return lines
