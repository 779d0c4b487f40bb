"""The lines of a conversation: questions, and commands that begin with a slash.

A command is a slash and a word; anything else is a question, also a path that begins with a slash.
At a terminal a few words are commands by themselves, which people try before they know of slashes.
"""

from __future__ import annotations

import difflib
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from esa_cli.apps.chat.conversation import Conversation, Exchange, transcript
from esa_cli.apps.cli.inputs import Line
from esa_cli.apps.cli.options import output_paths
from esa_cli.apps.cli.output.answer_output import AnswerStream, complain, in_full, show_under
from esa_cli.apps.cli.output.terminal import Reporter, clean
from esa_cli.errors import EsaError, UsageError

COMMANDS = {
    "/evidence": "[N]: the passages the last answer rests on, in full",
    "/reset": "forget the conversation; the documents stay",
    "/save": "FILE: keep the conversation as Markdown, or as JSON in a .json",
    "/docs": "the documents",
    "/help": "this list",
    "/quit": "end; Ctrl-D does it, too",
}
_WORDS = {"exit": "/quit", "quit": "/quit", "help": "/help"}
_COMMAND = re.compile(r"(/[a-z]*)(?:\s+(.*))?", re.DOTALL)


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
            self.reporter.settle()
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
            near = difflib.get_close_matches(name, COMMANDS, n=1)
            raise UsageError(
                f"there is no command {name}", f"did you mean {near[0]}?" if near else "see /help"
            )

    def _record(self) -> list[Exchange]:
        if not self.talk.record:
            raise UsageError("there is no answer yet", "ask a question first")
        return self.talk.record

    def _evidence(self, rest: str) -> None:
        if rest and not (rest.isascii() and rest.isdigit() and int(rest)):
            raise UsageError(
                f"number of passages must be a whole number from 1, got {rest!r}", "try /evidence 5"
            )
        last = self._record()[-1]
        passages = last.evidence
        if not passages:
            raise UsageError("the last answer has no passages", "it was stopped, or rests on none")
        print(in_full(passages[: int(rest)] if rest else passages, last.found))
        if rest and int(rest) > len(passages):
            self.reporter.warn(f"  {len(passages)} are kept of an answer")

    def _save(self, rest: str) -> None:
        path, record = Path(rest.strip("\"'")).expanduser(), self._record()
        if not rest or (path.exists() and path.absolute() not in self._saved):
            got = path if rest else "none"
            raise UsageError(f"/save must name a new file, got {got}", "try /save talk.md")
        output_paths.check("/save", path)
        text = transcript(path, self.talk.asker.name, self.documents, record)
        output_paths.write(path, text)
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
