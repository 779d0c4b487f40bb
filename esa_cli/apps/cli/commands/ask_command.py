"""`esa ask`: reads documents, or finds them in the library, and answers questions about them.

Everything that can be wrong without the model is found out before it is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import typer

from esa_cli.apps.batch import answer_row, error_row
from esa_cli.apps.cli import inputs
from esa_cli.apps.cli.options import options, output_paths
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.options import AnswerOptions, GenerationOptions, ModelOptions
from esa_cli.apps.cli.output.answer_output import (
    AnswerStream,
    Timing,
    as_dict,
    asked_documents,
    complain,
    passage_count,
    show_under,
    summary,
)
from esa_cli.apps.cli.output.terminal import Reporter, as_json, clean, print_json
from esa_cli.documents.sources import source_files
from esa_cli.errors import PARTIAL, EsaError, UsageError
from esa_cli.storage.library import Library

if TYPE_CHECKING:
    from esa_cli.apps.cli.document_search import QuestionBooks
    from esa_cli.documents.document import Document, LeftOut
    from esa_cli.qa.answering.reply import Reply
    from esa_cli.qa.api import Esa
    from esa_cli.qa.finding.books import Book, TokenisedDocument
    from esa_cli.qa.opening import Preflight
    from esa_cli.qa.presets.preset import Preset

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="DOC... QUESTION",
        help="Files, folders or patterns, or - for standard input; then the question, in quotes, "
        "or - for a question a line of standard input.",
    ),
]
InLibrary = Annotated[bool, option("--library", "The documents of the library, too, or alone.")]
Top = Annotated[int | None, option("--top N", "Passages below the answer; 3.", min=0, max=50)]


@dataclass(frozen=True)
class AskOptions:
    """Options of `esa ask` besides those of the model and of generation."""

    keep: options.Keep = None
    read: Annotated[
        Literal["after", "first", "never"],
        option(
            "--read first|never",
            "When the finder reads a new document.",
            show_default="after a first answer, on a terminal",
        ),
    ] = "after"
    library: InLibrary = False
    top: Top = None
    report: Annotated[
        Path | None, option("--report FILE", "Write a page with the text and its passages.")
    ] = None
    method: options.Method = None
    as_json: options.Json = False
    quiet: options.Quiet = False

    @property
    def passages(self) -> int:
        """Passages of an answer to show, or to put into its JSON object."""
        return passage_count(self.top, self.quiet and not self.as_json)


@options.command
def ask(
    arguments: Arguments = None,
    *,
    ways: AskOptions,
    model: ModelOptions,
    generation: GenerationOptions,
    answer: AnswerOptions,
) -> None:
    """Answer a question about documents of any length.

    esa ask book.txt "Who is Ahab?"
    """
    names, question = inputs.split(arguments or [], library=ways.library)
    options.exclusive("--report", "-", question == "-" and ways.report is not None)
    options.exclusive("--keep", "--read never", ways.keep and ways.read == "never")
    output_paths.check("--report", ways.report)
    with Reporter(ways.quiet) as reporter, ExitStack() as stack:
        run = AskRun(question, ways, generation.arguments(), reporter)
        run.open(names, model, answer, stack)
        failed = run.answer_lines() if question == "-" else run.answer()
    if failed:
        raise typer.Exit(PARTIAL)


class AskRun:
    """One `esa ask`: a question, or `-` for lines of them, and what is known so far."""

    esa: Esa
    documents: QuestionBooks
    books: Sequence[Book]

    def __init__(
        self, question: str, ways: AskOptions, generation: Mapping[str, Any], reporter: Reporter
    ) -> None:
        self.question, self.ways, self.generation = question, ways, generation
        self.reporter, self.timing = reporter, Timing()
        self.reads_later = False
        """Whether documents are read after a first answer."""

    def open(
        self, names: Sequence[str], model: ModelOptions, answer: AnswerOptions, stack: ExitStack
    ) -> None:
        """Loads the model and opens the documents. Raises EsaError."""
        from esa_cli.apps.cli.document_search import QuestionBooks
        from esa_cli.apps.cli.open_esa import opened
        from esa_cli.qa.opening import answerable

        ways, reporter, files, library = self.ways, self.reporter, source_files(names), Library()
        chosen = answer.load_preset(model, asked_by=ways.method)
        output_paths.spare("--report", ways.report, files.paths)
        chosen = chosen if ways.method else answerable(chosen, reporter)
        from_text = chosen.answer.source == "text" and ways.method is None
        reader = answer.reader_choice()
        self.documents = QuestionBooks(
            files, library, reporter, stack,
            most=chosen.answer.documents if from_text else None,
            in_library=ways.library, keep=ways.keep,
        )  # fmt: skip
        named = self.documents.gathered.documents
        ready = self._prepare(chosen, model, named)
        sources = _check_room(ready, named, library, ways.keep)
        # A script gets one answer only, the better one.
        is_script = self.question == "-" or ways.as_json or not sys.stdout.isatty()
        self.reads_later = ways.read == "after" and not is_script and ready.index is not None
        self.esa = esa = stack.enter_context(
            opened(
                ready, model, reporter,
                keep=ways.keep, library=library, reader=reader, reads_later=self.reads_later,
            )
        )  # fmt: skip
        self.timing.load_s = self.timing.lap()
        make = esa.open if self.reads_later or ways.read == "never" else esa.ingest
        books = [make(source) for source in sources]
        self.documents.open(books, esa.stored, make, files=not esa.documents.needs_rows)

    def _prepare(
        self, chosen: Preset, model: ModelOptions, documents: Sequence[Document]
    ) -> Preflight:
        """The method and the model's small files. Raises UsageError: the documents cannot be asked
        so."""
        from esa_cli.qa.opening import prepare
        from esa_cli.qa.planning.model_shape import shape_of
        from esa_cli.qa.planning.row_storage import check_asked_together
        from esa_cli.qa.presets.resolved_preset import stretches

        ways, method = self.ways, self.ways.method
        if ways.library and method is not None and stretches(method, chosen):
            raise UsageError(
                f"method {method!r} is made for the length of its documents: --library has any",
                "name the documents in place of --library",
            )
        ready = prepare(
            chosen, model.place, self.reporter, method=method, documents=documents, keep=ways.keep
        )
        resolved, config = ready.resolved, ready.model.config
        if len({document.text for document in documents}) > 1:
            stateful = shape_of(config).stateful > 0
            check_asked_together(resolved, config["model_type"], stateful)
        if ways.read == "never" and resolved.preset.answer.needs_rows:
            raise UsageError(
                "--read never needs answers from passages, found by their words: here they rest "
                "on the rows of documents that are read",
                "leave it out, or add --set answer.from=text and name no method or part of one",
            )
        return ready

    def answer_lines(self) -> int:
        """Answers the lines of standard input; how many got no answer."""
        return ask_lines(
            self.esa, [], inputs.numbered_lines(sys.stdin), sys.stdout, self.ways.as_json,
            reporter=self.reporter, options=self.generation, shown=self.ways.passages,
            left_out=self.documents.gathered.left_out, documents=self.documents,
        )  # fmt: skip

    def answer(self) -> int:
        """Answers, and writes what is asked for; 0. Raises EsaError."""
        self.books = self.documents.about(self.question)
        self.timing.ingested(self.books)
        reply = self._ask(streamed=not self.ways.as_json)
        if self.reads_later and not all(book.read for book in self.books):
            reply = self._ask_again(reply)
        if self.ways.as_json:
            print_json(self._as_dict(reply))
        else:
            self.reporter.note(summary(self._as_dict(reply)))
        self._report(reply)
        return 0

    def _ask_again(self, first: Reply) -> Reply:
        """Reads what has not been read, and shows the answer after that where it is another."""
        reporter, books = self.reporter, self.books
        unread = [book.document.name for book in books if not book.read]
        which = unread[0] if len(books) == 1 else f"{len(unread)} of {len(books)} documents"
        reporter.warn(  # with --quiet, too: the command goes on for minutes
            f"esa: not read yet: {which}. This answer was found by words alone; reading now, "
            "Ctrl-C keeps it"
        )
        try:
            self.timing.lap()
            self.books = [b if b.read else self.esa.ingest(b.document) for b in books]
            self.timing.ingested(self.books)
            reply = self._ask(streamed=False)
        except BaseException as error:
            reporter.settle()
            if isinstance(error, KeyboardInterrupt):
                stored = self.esa.documents.stored_tokens
                rest = "" if stored is None else f"; of the reading, {stored:,} tokens are stored"
                reporter.note(f"esa: the answer above was found by words alone{rest}")
            self.books = books
            self._report(first)
            raise
        if _first_words(first) == _first_words(reply):
            reporter.note("esa: reading changed nothing: the same answer, the same first passage")
        else:
            reporter.warn("esa: the answer after reading:")
            print(clean(reply.text), flush=True)
            show_under(reply, self.ways.passages, reporter)
        return reply

    def _ask(self, streamed: bool) -> Reply:
        """The reply; `streamed`: it is shown as it comes, with its passages."""
        ways, reporter = self.ways, self.reporter
        reporter.waiting("answering")
        reply = self.esa.ask(
            self.question,
            self.books,
            evidence=max(ways.passages, 0 if ways.as_json else 1),
            on_text=AnswerStream(sys.stdout, reporter) if streamed else None,
            **self.generation,
        )
        self.timing.answer_s = self.timing.lap()
        reporter.settle()
        if streamed:
            print(flush=True)
            show_under(reply, ways.passages, reporter)
        return reply

    def _as_dict(self, reply: Reply) -> dict[str, Any]:
        documents = self.documents
        facts = as_dict(self.esa, self.books, reply, self.timing, documents.gathered.left_out)
        return {**facts, "searched": documents.searched} if documents.searched else facts

    def _report(self, reply: Reply) -> None:
        """Last: where the report cannot be written, the answer is there."""
        if self.ways.report is not None:
            page = self.esa.report(reply, self.question, self.books)
            output_paths.write(self.ways.report, page)
            if not self.ways.as_json:
                self.reporter.note(f"esa: wrote {self.ways.report}")


def _check_room(
    ready: Preflight, documents: Sequence[Document], library: Library, keep: bool | None
) -> Sequence[Document | TokenisedDocument]:
    """Documents to ingest. Raises ResourceError: memory has no room for them; ModelError."""
    from esa_cli.system.text import text_digest

    texts = list(ready.texts)
    if not keep and ready.resolved.preset.answer.needs_rows:
        stored = library.text_digests()
        new = [one for one in documents if text_digest(one.text) not in stored]
        texts = texts or ready.model.tokenise(new)
        if new:
            wanted = {one.text for one in new}
            ready.planner.check(sum(len(t.ids) for t in texts if t.document.text in wanted))
    known = {text.document.text: text for text in texts}
    return [known.get(one.text, one) for one in documents]


def _first_words(reply: Reply) -> tuple[Any, ...]:
    """A reply's text and the place of its first passage."""
    return (reply.text.strip(), *((e.document, e.start, e.end) for e in reply.evidence[:1]))


def ask_lines(
    asker: Esa,
    books: Sequence[Any],
    lines: Iterable[tuple[int, inputs.Line]],
    out: IO[str],
    in_json: bool,
    *,
    reporter: Reporter,
    options: Mapping[str, Any] | None = None,
    shown: int = 3,
    left_out: Sequence[LeftOut] = (),
    documents: QuestionBooks | None = None,
) -> int:
    """Answers every line as it comes, and returns how many got no answer.

    With `in_json` each answer is one line of JSON. Without, it streams, a blank line follows, and
    the passages go where notes go.

    Args:
        books: what the questions are about, where `documents` does not choose them.
        options: keyword arguments for `asker.ask`. shown: passages of each answer.
        left_out: of the documents, for the JSON.
    """
    wrong, how = 0, {**(options or {}), "evidence": shown}
    for number, question in lines:
        stream, reply, text = AnswerStream(out, reporter), None, ""
        reporter.waiting("answering")
        try:
            if isinstance(question, EsaError):
                raise question
            about = documents.about(question) if documents else books
            reply = asker.ask(question, about, on_text=None if in_json else stream, **how)
        except EsaError as error:
            wrong += 1
            row = error_row(error)
            if not in_json:
                where = "" if error is question else f"line {number}: "
                complain(reporter, f"esa: {where}{error.message}")
        else:
            row, text = answer_row(reply, about, left_out), clean(reply.text)
            if documents is not None and documents.searched:
                row |= {"documents": asked_documents(about), "searched": documents.searched}
        reporter.settle()
        if in_json:
            words = question if isinstance(question, str) else ""
            out.write(f"{as_json({'line': number, 'question': words, **row})}\n")
        else:
            out.write("\n\n" if stream.any else f"{text}\n\n")
        out.flush()
        if reply is not None and not in_json:
            show_under(reply, shown, reporter)
    return wrong
