"""A conversation about documents: its turns, its commands, and the lines that a person types."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.inputs import Line
from esa_cli.apps.cli.options import output_paths
from esa_cli.apps.cli.output import answer_output
from esa_cli.apps.cli.output.terminal import Reporter, clean
from esa_cli.errors import EsaError, HistoryError, UsageError
from esa_cli.qa.answering.reply import Reply, Turn

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa

MAX_PASSAGES = 10
"""Passages of each answer that are recorded, for /evidence."""
COMMANDS = {
    "/evidence": "the passages the last answer rests on, in full",
    "/reset": "forget the conversation; the documents stay",
    "/save": "FILE: write the conversation as Markdown",
    "/docs": "the documents",
    "/help": "this list",
    "/quit": "end; Ctrl-D does, too",
}
_COMMAND = re.compile(r"(/[a-z]*)(?:\s+(.*))?", re.DOTALL)
"""A slash and a word, then an argument; a path that begins with a slash is a question."""


class AnswerStoppedError(Exception):
    """Raised in a callback to stop an answer."""


class Conversation:
    """Questions about the same books, each asked with the earlier turns, and commands. A stopped
    answer is no turn: a model would take half an answer for a whole one.

    Args:
        documents: their names. options: keyword arguments of `Esa.ask`.
        passages: shown under each answer.
        stoppable: a person types the lines, and Ctrl-C stops the answer, not the program.
    """

    def __init__(
        self,
        asker: Esa,
        books: Sequence[Any],
        documents: Sequence[str],
        reporter: Reporter,
        options: Mapping[str, Any] | None = None,
        *,
        passages: int = 0,
        stoppable: bool = False,
    ) -> None:
        self.asker, self.books, self.documents = asker, list(books), documents
        self.options = {"evidence": max(MAX_PASSAGES, passages), **(options or {})}
        self.reporter, self.passages, self.stoppable = reporter, passages, stoppable
        self.record: list[tuple[str, Reply]] = []
        """Questions and answers."""
        self.forgotten = 0
        """Turns at the beginning of the record that no longer fit."""
        self.failed = 0
        """Lines that ended in an error."""
        self._must_stop = False
        self._saved: set[Path] = set()

    def stop(self) -> None:
        """Stops the present answer at its next piece; a signal handler may call this."""
        self._must_stop = True

    def ask(self, question: str, on_text: Callable[[str], None]) -> Reply | None:
        """Returns the answer, or None if it was stopped. Turns that do not fit are forgotten, the
        oldest first. Raises UsageError: the question alone does not fit, or is empty. EsaError."""
        self._must_stop = False

        def add(piece: str) -> None:
            if self._must_stop:
                raise AnswerStoppedError
            on_text(piece)

        turns = tuple(Turn(asked, reply.text) for asked, reply in self.record)
        for first in range(self.forgotten, len(turns) + 1):
            try:
                reply = self.asker.ask(
                    question, self.books, history=turns[first:], on_text=add, **self.options
                )
            except HistoryError:
                if first == len(turns):
                    raise
            except AnswerStoppedError:
                break
            else:
                self.forgotten = first
                self.record.append((question, reply))
                return reply
        return None

    def take_line(self, line: Line) -> bool:
        """Answers a question or runs a command; returns False for /quit."""
        try:
            if isinstance(line, EsaError):
                raise line
            line = line.strip()
            if self.stoppable and line.lower() in ("exit", "quit", "help"):
                line = "/help" if line.lower() == "help" else "/quit"
            command = _COMMAND.fullmatch(line)
            if command is not None and command[1] == "/quit":
                return False
            if command is not None:
                self._run_command(command[1], (command[2] or "").strip())
            elif line:
                self._answer(line)
        except EsaError as error:
            self.failed += 1
            answer_output.complain(self.reporter, f"esa: {error.message}")
            if error.hint:
                answer_output.complain(self.reporter, f"     {error.hint}")
        return True

    def _answer(self, question: str) -> None:
        forgotten, stream = self.forgotten, answer_output.AnswerStream(sys.stdout, self.reporter)
        self.reporter.waiting("answering")
        try:
            with _stop_on_interrupt(self.stop) if self.stoppable else nullcontext():
                reply = self.ask(question, stream)
        finally:
            self.reporter.settle()
            if stream.any:
                print(flush=True)
        if reply is None:
            self.reporter.note("  stopped")
            return
        if not stream.any:
            print(clean(reply.text), flush=True)
        answer_output.show_under(reply, self.passages, self.reporter)
        if self.forgotten > forgotten == 0:
            self.reporter.warn("  the conversation has grown long: its oldest turns are left out")

    def _run_command(self, name: str, argument: str) -> None:
        record = self.record
        if name == "/help":
            print("\n".join(f"{command:10} {about}" for command, about in COMMANDS.items()))
        elif name == "/docs":
            print(clean("\n".join(self.documents)))
        elif name == "/reset":
            self.record, self.forgotten = [], 0
            self.reporter.note("  forgotten; the documents stay")
        elif name not in ("/evidence", "/save"):
            raise UsageError(f"there is no command {name}", "see /help")
        elif not record:
            raise UsageError("there is no answer yet", "ask a question first")
        elif name == "/save":
            self._save(argument.strip("\"'"))
        elif not record[-1][1].evidence:
            raise UsageError("the last answer has no passages", "ask a question that finds some")
        else:
            print(answer_output.in_full(record[-1][1].evidence, record[-1][1].found))

    def _save(self, name: str) -> None:
        path = Path(name).expanduser()
        if not name or (path.exists() and path.absolute() not in self._saved):
            raise UsageError(
                f"/save must name a new file, got {name or 'none'}", "try /save talk.md"
            )
        output_paths.check("/save", path)
        about = f"{self.asker.name}, {time.strftime('%Y-%m-%d')}"
        output_paths.write(path, write_markdown(about, self.documents, self.record))
        self._saved.add(path.absolute())
        self.reporter.note(f"  saved {len(self.record)} questions in {path}")


@contextmanager
def _stop_on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """In this context the first Ctrl-C calls `stop`; a second one has its usual effect."""
    before = signal.getsignal(signal.SIGINT)

    def on_signal(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, before)
        stop()

    signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def write_markdown(
    about: str, documents: Sequence[str], record: Sequence[tuple[str, Reply]]
) -> str:
    """Returns a conversation as Markdown; names of files that are not UTF-8 are escaped."""
    lines = ["# Questions and answers", "", about, "", *(f"- {name}" for name in documents)]
    for number, (question, reply) in enumerate(record, 1):
        lines += ["", f"## Question {number}", ""]
        lines += [f"> {line}".rstrip() for line in question.splitlines()]
        lines += ["", reply.text, *(["", "*(cut off)*"] if reply.cut else [])]
        if reply.doubtful:
            lines += ["", "*(the documents may not contain the answer)*"]
        if reply.evidence:
            weights = "Passages, with how much each counts for the answer:"
            lines += ["", weights if reply.found else "The nearest passages:", ""]
        for rank, passage in enumerate(reply.evidence, 1):
            words = " ".join(passage.text.split())
            lines.append(f"{rank}. {answer_output.weighed_place(passage, reply.found)}: {words}")
    return "\n".join([*lines, ""]).encode("utf-8", "backslashreplace").decode()


def edit_lines(talk: Conversation) -> None:
    """Reads lines from the terminal until Ctrl-D or /quit; Ctrl-C drops a line."""
    with suppress(ImportError):  # on Windows the console itself edits and recalls lines
        import readline  # noqa: F401
    while True:
        try:
            if not talk.take_line(input("> ")):
                return
        except KeyboardInterrupt:
            talk.reporter.note("  Ctrl-D ends; /help lists the commands")
        except EOFError:
            return
