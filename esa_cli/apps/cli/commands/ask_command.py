"""`esa ask`: answers questions about documents, which are read now or taken from the library.

What can be wrong without the model is refused before the model is loaded.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from esa_cli.apps.cli.inputs import split_arguments
from esa_cli.apps.cli.options import options, output_paths
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.output.answer_output import (
    AnswerStream,
    count_passages,
    describe_answer,
    show_under,
)
from esa_cli.apps.cli.output.terminal import Reporter, clean, print_json
from esa_cli.documents.readers.text_builder import first_names
from esa_cli.documents.sources import source_files
from esa_cli.errors import UsageError
from esa_cli.storage.library import Library

if TYPE_CHECKING:
    from esa_cli.apps.cli.document_search import QuestionBooks
    from esa_cli.qa.answering.reply import Reply
    from esa_cli.qa.api import Esa
    from esa_cli.qa.finding.books import Book

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="DOC... QUESTION",
        help="Files, folders or patterns, or - for standard input; then the question, in quotes.",
    ),
]
Top = Annotated[
    int | None, option("--top N", "Passages to show below the answer; by default 3.", min=0, max=50)
]


@dataclass(frozen=True)
class AskOptions(options.DocumentOptions):
    """Options of `esa ask` besides those of the model and of generation."""

    read: Annotated[
        Literal["after", "first", "never"],
        option(
            "--read first|never",
            "When a new document is read for its token index.",
            show_default="after a first answer, on a terminal",
        ),
    ] = "after"
    top: Top = None
    report: Annotated[
        Path | None,
        option("--report FILE", "Write an HTML page with the documents and the answer's passages."),
    ] = None
    method: options.Method = None
    form: Annotated[
        Literal["auto", "span", "text"] | None,
        option(
            "--answer auto|span|text",
            "Form of the answer: a quotation, free words, or what fits the question.",
        ),
    ] = None

    @property
    def passages(self) -> int:
        """Passages of an answer to show, or to put into its JSON object."""
        return count_passages(self.top, self.quiet and not self.as_json)


@options.command
def ask(
    arguments: Arguments = None,
    *,
    ways: AskOptions,
    model: options.ModelOptions,
    generation: options.GenerationOptions,
    answer: options.ReaderOptions,
) -> None:
    """Answer a question about documents of any length.

    esa ask book.txt "Who is Ahab?"
    """
    names, question = split_arguments(arguments or [], library=ways.library)
    options.refuse_both("--keep", "--read never", ways.keep and ways.read == "never")
    with Reporter(ways.quiet) as reporter, ExitStack() as stack:
        run = AskRun(question, ways, generation.ask_arguments(), reporter)
        run.open(names, model, answer, stack)
        run.answer()


class AskRun:
    """One run of `esa ask`: the question, the documents and the model."""

    esa: Esa
    documents: QuestionBooks
    books: Sequence[Book]
    reads_later: bool
    """Whether documents are read after a first answer."""

    def __init__(
        self, question: str, ways: AskOptions, generation: Mapping[str, Any], reporter: Reporter
    ) -> None:
        self.question, self.ways, self.generation = question, ways, generation
        self.reporter = reporter
        self.started = [time.perf_counter()]
        """When the loading, opening and answering began, and when the answer was there."""

    def open(
        self,
        names: Sequence[str],
        model: options.ModelOptions,
        answer: options.ReaderOptions,
        stack: ExitStack,
    ) -> None:
        """Loads the model and opens the documents. Raises EsaError."""
        from esa_cli.apps.cli.document_search import QuestionBooks
        from esa_cli.apps.cli.open_esa import opened
        from esa_cli.qa.opening import answerable, prepare
        from esa_cli.qa.planning.row_storage import check_asked_together
        from esa_cli.system.text import text_digest

        ways, reporter, files, library = self.ways, self.reporter, source_files(names), Library()
        chosen = answer.load_preset(model, form=ways.form, later_method=ways.method)
        output_paths.check("--report", ways.report, files.paths)
        chosen = chosen if ways.method else answerable(chosen, reporter)
        from_text = chosen.answer.source == "text" and ways.method is None
        reader = answer.reader_choice()
        limit = chosen.answer.documents if from_text else None
        self.documents = QuestionBooks(
            files, library, reporter, stack, limit=limit, in_library=ways.library, keep=ways.keep
        )
        named = self.documents.gathered.documents
        sized = () if ways.library else named  # the documents of the library may have any length
        ready = prepare(
            chosen, model.place, reporter, method=ways.method, documents=sized, keep=ways.keep
        )
        needs_rows = ready.resolved.preset.answer.needs_rows
        if len(named) > 1:
            is_stateful = ready.planner.costs.shape.stateful > 0
            check_asked_together(ready.resolved, ready.model.config["model_type"], is_stateful)
        if ways.read == "never" and needs_rows:
            wrong = "--read never needs answers from passages, got answers from the KV cache"
            raise UsageError(wrong, "add --set answer.from=text, and name no method")
        if needs_rows and not ways.keep:
            stored = library.text_digests()
            new = [one.text for one in named if text_digest(one.text) not in stored]
            ready.planner.check(sum(map(ready.model.count_tokens, new)))
        # A script gets one answer only, the better one.
        is_script = ways.as_json or not sys.stdout.isatty()
        self.reads_later = ways.read == "after" and not is_script and ready.index is not None
        self.esa = esa = stack.enter_context(
            opened(ready, model, reporter, keep=ways.keep, library=library, reader=reader)
        )
        self.started.append(time.perf_counter())
        open_book = esa.open if self.reads_later or ways.read == "never" else esa.ingest
        books = [open_book(source) for source in ready.texts or named]
        self.documents.set_openers(books, esa.stored, None if needs_rows else open_book)
        self.books = self.documents.open_books(self.question)
        self.started.append(time.perf_counter())

    def answer(self) -> None:
        """Answers the question, and writes the answer, its passages and its report."""
        reply = self._ask(is_streamed=not self.ways.as_json)
        self.started.append(time.perf_counter())
        if self.reads_later and not all(book.read for book in self.books):
            reply = self._read_and_ask(reply)
        if self.ways.as_json:
            steps = zip(("load_s", "ingest_s", "answer_s"), pairwise(self.started), strict=True)
            seconds = {name: end - start for name, (start, end) in steps}
            left_out, searched = self.documents.gathered.left_out, self.documents.searched
            facts = describe_answer(self.esa, self.books, reply, seconds, left_out)
            print_json({**facts, **({"searched": searched} if searched else {})})
        self._write_report(reply)

    def _read_and_ask(self, unread_reply: Reply) -> Reply:
        """Reads the unread books, and shows the answer after that where it is another."""
        reporter, books = self.reporter, self.books
        unread = first_names([book.document.name for book in books if not book.read])
        reporter.warn(  # with --quiet, too: the command goes on for minutes
            f"esa: not read yet: {unread}. This answer was found by words alone; reading now, "
            "Ctrl-C keeps it"
        )
        try:
            self.books = [b if b.read else self.esa.ingest(b.document) for b in books]
            reply = self._ask(is_streamed=False)
        except BaseException as error:
            reporter.settle()
            if isinstance(error, KeyboardInterrupt):
                reporter.note("esa: the answer above was found by words alone")
            self.books = books
            self._write_report(unread_reply)
            raise
        replies = unread_reply, reply
        places = [[(e.document, e.start) for e in one.evidence[:1]] for one in replies]
        if unread_reply.text.strip() == reply.text.strip() and places[0] == places[1]:
            reporter.note("esa: reading changed nothing: the same answer, the same first passage")
        else:
            reporter.warn("esa: the answer after reading:")
            print(clean(reply.text), flush=True)
            show_under(reply, self.ways.passages, reporter)
        return reply

    def _ask(self, is_streamed: bool) -> Reply:
        """Answers the question. A streamed answer is shown as it comes, with its passages."""
        ways, reporter = self.ways, self.reporter
        reporter.waiting("answering")
        reply = self.esa.ask(
            self.question,
            self.books,
            evidence=max(ways.passages, 0 if ways.as_json else 1),
            on_text=AnswerStream(sys.stdout, reporter) if is_streamed else None,
            **self.generation,
        )
        reporter.settle()
        if is_streamed:
            print(flush=True)
            show_under(reply, ways.passages, reporter)
        return reply

    def _write_report(self, reply: Reply) -> None:
        """Writes the page of --report, after the answer is shown: writing may fail."""
        if self.ways.report is not None:
            page = self.esa.report(reply, self.question, self.books)
            output_paths.write(self.ways.report, page)
            self.reporter.note(f"esa: wrote {self.ways.report}")
