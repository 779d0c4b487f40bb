"""The command `esa chat`: a user asks about documents, and types slash commands like /save."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from esa_cli.apps.cli.commands.ask_command import Top
from esa_cli.apps.cli.inputs import SAVE_INPUT, Line, read_documents, read_lines_of_standard_input
from esa_cli.apps.cli.options import options, output_paths
from esa_cli.apps.cli.options.command_help import argument
from esa_cli.apps.cli.output import answer_output, terminal
from esa_cli.apps.cli.output.passage_output import print_passages
from esa_cli.apps.cli.output.terminal import Reporter, pluralize
from esa_cli.apps.question_log import LoggedConversation
from esa_cli.documents.sources import WRITTEN_BY_ESA
from esa_cli.errors import PARTIAL, EsaError, UsageError
from esa_cli.qa.answering.passage_choice import choose_passages
from esa_cli.qa.answering.reply import Reply
from esa_cli.qa.api import Esa

MAX_PASSAGES = 10
"""The number of passages that are recorded with each answer, for the command /evidence."""
COMMANDS = {
    "/evidence": "show the full passages that the last answer rests on",
    "/reset": "forget the questions and answers, but not the documents",
    "/save": "FILE: write the conversation to a Markdown file",
    "/docs": "list the documents",
    "/help": "show this list",
    "/quit": "end the conversation, as Ctrl-D does",
}
PLAIN_WORDS = {
    "exit": "/quit", "quit": "/quit", "bye": "/quit", "help": "/help", "clear": "/reset",
    "/exit": "/quit", "/q": "/quit",
}  # fmt: skip
_THANKS = "thanks|thank you|thank you very much|thanks a lot|danke|danke schön|vielen dank|merci"
_THANKS += "|merci beaucoup|gracias|muchas gracias|grazie|obrigado|obrigada|спасибо|谢谢"
PLAIN_WORDS |= dict.fromkeys(_THANKS.split("|"), "/thanks")
"""What people type on a terminal, and the command that it means."""
_COMMAND = re.compile(r"(/[a-z]*)(?:\s+(.*))?", re.DOTALL)
"""Matches a slash with a word, then an argument, but no path that begins with a slash."""


@options.make_typer_command
def chat(
    documents: Annotated[list[str], argument("DOC...", "The documents to talk about.")],
    keep: options.Keep = None,
    method: options.Method = None,
    top: Top = None,
    *,
    model: options.AnswerModelOptions,
    generation_options: options.AnswerGenerationOptions,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Talk about documents; each question may refer to earlier questions.

    Without a terminal, each line of standard input is a question. Exit code 7 means that some lines
    got an error instead of an answer."""
    from esa_cli.apps.cli.model_and_documents import open_model
    from esa_cli.qa.opening import choose_answer_source

    if "-" in documents:
        wrong = "standard input (-) has the questions, and cannot be a document"
        raise UsageError(wrong, SAVE_INPUT)
    chosen = model.load_preset(method)
    reader, shown = (model.choose_reader(), answer_output.choose_passage_count(top, quiet))
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    with Reporter(quiet, verbose) as reporter:
        reporter.hold_warnings()
        gathered = read_documents(documents, reporter).documents
        chosen = chosen if method else choose_answer_source(chosen, reporter)
        with open_model(chosen, model, reporter, keep=keep, reader=reader) as esa:
            books = [esa.ingest(document) for document in gathered]
            reporter.clear_spinner()
            names = [document.source for document in gathered]
            talk = DocumentChat(
                esa, books, names, reporter, asdict(generation_options),
                top=shown, interruptible=on_terminal,
            )  # fmt: skip
            if on_terminal:
                warnings = reporter.release_warnings()
                about = f"{pluralize(len(names), 'document')}, {esa.name}"
                more = f"; {pluralize(len(warnings), 'warning')}: add -v" if warnings else ""
                reporter.show_note(f"{about}; /help lists the commands, Ctrl-D ends{more}")
                run_chat_on_terminal(talk)
                return
            for line in read_lines_of_standard_input():
                if not talk.answer_question_or_run_command(line):
                    break
    if talk.failed:
        raise typer.Exit(PARTIAL)


class AnswerStoppedError(Exception):
    """A person has stopped the answer whose next piece of text has come."""


class DocumentChat:
    """Answers questions with the earlier ones as their history, and runs slash commands. If it is
    `interruptible`, a person types the lines, and Ctrl-C stops only the answer."""

    def __init__(
        self, esa: Esa, books: Sequence[Any], names: Sequence[str], reporter: Reporter,
        ask_arguments: Mapping[str, Any] | None = None, *, top: int = 0,
        interruptible: bool = False,
    ) -> None:  # fmt: skip
        self.esa, self.books, self.documents = esa, list(books), names
        self.ask_arguments = {"evidence": max(MAX_PASSAGES, top), **(ask_arguments or {})}
        self.reporter, self.passages, self.stoppable = reporter, top, interruptible
        self.record: list[tuple[str, Reply]] = []
        """The questions with their answers, oldest first."""
        self.talk = LoggedConversation(names)
        self.failed = 0
        """How many lines ended in an error."""
        self._has_hinted = False
        self._saved: set[Path] = set()

    def answer_question_or_run_command(self, line: Line) -> bool:
        """Answers a question or runs a slash command; returns False for the command /quit."""
        try:
            if isinstance(line, EsaError):
                raise line
            line = line.strip()
            if self.stoppable:
                line = PLAIN_WORDS.get(line.lower().strip(" .!¡"), line)
            if command := _COMMAND.fullmatch(line):
                if command[1] == "/quit":
                    return False
                self._run_slash_command(command[1], (command[2] or "").strip())
            elif line:
                self._ask_and_print_answer(line)
        except EsaError as error:
            self.failed += 1
            self.reporter.clear_spinner()
            self.reporter.warn(f"esa: {error.message}")
            if error.hint:
                self.reporter.warn(f"     {error.hint}")
        return True

    def _ask_and_print_answer(self, question: str) -> None:
        """Answers without the oldest questions that do not fit into the model's window."""
        forgotten, presses = self.talk.forgotten, list[int]()
        stream = answer_output.AnswerPrinter(sys.stdout, self.reporter)
        streams = answer_output.writes_answer_in_pieces(self.esa)
        reply: Reply | None = None

        def print_piece_unless_stopped(answer_piece: str) -> None:
            if presses:
                raise AnswerStoppedError
            if streams:
                stream(answer_piece)

        if self.reporter.live and not self.stoppable:  # nobody has typed the question here
            self.reporter.show_note(f"> {question}", dim=False)
        self.reporter.show_spinner("answering")
        ctrl_c = _note_first_ctrl_c(presses) if self.stoppable else nullcontext()
        try:
            with suppress(AnswerStoppedError), ctrl_c:
                reply = self.talk.ask(
                    self.esa, question, self.books, on_text=print_piece_unless_stopped,
                    **self.ask_arguments,
                )  # fmt: skip
        finally:
            self.reporter.clear_spinner()
            if stream.has_text:
                print(flush=True)
        if reply is None:
            self.reporter.show_note("  stopped")
            return
        self.talk.append(question, reply, self.esa, self.reporter.show_note)
        known = {earlier.foreign_languages for _, earlier in self.record}
        self.record.append((question, reply))
        if reply.foreign_languages in known:  # said before
            reply = replace(reply, foreign_languages=())
        has_grown = self.talk.forgotten > forgotten == 0
        notes = ["The conversation has grown long: the oldest questions are left out."] * has_grown
        answer_output.print_answer_and_passages(
            reply, self.passages, self.reporter, notes=notes, is_printed=stream.has_text
        )
        if not self._has_hinted:
            self._has_hinted = answer_output.show_reader_hint(reply, self.reporter)
        if self.reporter.live:
            self.reporter.warn("")

    def _run_slash_command(self, command: str, argument: str) -> None:
        record = self.record
        if command == "/help":
            print("\n".join(f"{command:10} {about}" for command, about in COMMANDS.items()))
        elif command == "/thanks":
            self.reporter.show_note("  You are welcome.", dim=False)
        elif command == "/docs":
            print(terminal.strip_control_chars("\n".join(self.documents)))
        elif command == "/reset":
            self.record, self.talk = [], LoggedConversation(self.documents)
            self.reporter.show_note("  the conversation is forgotten, but not the documents")
        elif command not in ("/evidence", "/save"):
            wrong = f"`esa chat` has no command {command}"
            raise UsageError(wrong, "type /help for a list of the commands")
        elif not record:
            raise UsageError("the conversation has no answer yet", "ask a question first")
        elif command == "/save":
            self._save_conversation_as_markdown(argument.strip("\"'"))
        elif not record[-1][1].evidence:
            raise UsageError("the last answer has no passages", "ask another question")
        else:
            reply = record[-1][1]
            passages = choose_passages(reply, MAX_PASSAGES)
            console = terminal.make_rich_console(sys.stdout)
            print_passages(passages, reply.quotations, console, is_whole=True)
            print()

    def _save_conversation_as_markdown(self, file_name: str) -> None:
        path = Path(file_name).expanduser()
        if not file_name or (path.exists() and path.absolute() not in self._saved):
            wrong = f"/save must name a new file, got {file_name or 'none'}"
            raise UsageError(wrong, "try /save chat.md")
        output_paths.check_output_file("/save", path)
        about = f"{self.esa.name}, {time.strftime('%Y-%m-%d')}"
        text = format_chat_as_markdown(about, self.documents, self.record)
        output_paths.write_text_file(path, text)
        self._saved.add(path.absolute())
        self.reporter.show_note(f"  saved {pluralize(len(self.record), 'question')} in {path}")


@contextmanager
def _note_first_ctrl_c(presses: list[int]) -> Iterator[None]:
    """A context manager in which the first Ctrl-C only adds its signal to `presses`."""
    before = signal.getsignal(signal.SIGINT)

    def note_and_restore(signal_number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, before)
        presses.append(signal_number)

    signal.signal(signal.SIGINT, note_and_restore)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _hold_typed_keys_back() -> Iterator[None]:
    """Keeps a POSIX terminal from showing typed keys; the next line of input begins with them."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        yield
        return
    import termios

    before, silent = termios.tcgetattr(sys.stdin), termios.tcgetattr(sys.stdin)
    silent[3] &= ~termios.ECHO
    try:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def format_chat_as_markdown(
    subtitle: str, document_names: Sequence[str], questions_and_replies: Sequence[tuple[str, Reply]]
) -> str:
    """Formats questions and replies as Markdown, below a subtitle and the documents' names."""
    lines = [WRITTEN_BY_ESA, "# Questions and answers", "", subtitle, ""]
    lines += [f"- {name}" for name in document_names]
    for number, (question, reply) in enumerate(questions_and_replies, 1):
        lines += ["", f"## Question {number}", ""]
        lines += [f"> {line}".rstrip() for line in question.splitlines()]
        lines += ["", reply.text_with_marks, *(["", "*(cut off)*"] if reply.cut else [])]
        if reply.doubtful:
            lines += ["", "*(the documents may not contain the answer)*"]
        if reply.evidence:
            lines += ["", "Passages:" if reply.found else answer_output.NEAREST, ""]
        for rank, passage in choose_passages(reply, len(reply.evidence)):
            lines.append(f"{rank}. {passage.describe_place()}: {' '.join(passage.text.split())}")
    return "\n".join([*lines, ""]).encode("utf-8", "backslashreplace").decode()


def run_chat_on_terminal(conversation: DocumentChat) -> None:
    """Answers lines of the terminal until Ctrl-D or /quit; Ctrl-C discards the line being typed."""
    with suppress(ImportError):  # on Windows the console itself edits and recalls lines
        import readline  # noqa: F401
    while True:
        try:
            line = input("> ")
            with _hold_typed_keys_back():
                if not conversation.answer_question_or_run_command(line):
                    return
        except KeyboardInterrupt:
            conversation.reporter.show_note("  Ctrl-D ends; /help lists the commands")
        except EOFError:
            return
