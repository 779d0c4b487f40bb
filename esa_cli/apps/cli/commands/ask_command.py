"""The command `esa ask`, which answers a question about documents.

Errors that can be found without the model are reported before the model is loaded.
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

from esa_cli.apps.cli.inputs import split_off_question
from esa_cli.apps.cli.options import options, output_paths
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.output import answer_output
from esa_cli.apps.cli.output.terminal import Reporter, clean_text, print_json
from esa_cli.documents.readers.text_builder import shorten_name_list
from esa_cli.documents.sources import source_files
from esa_cli.errors import UsageError
from esa_cli.storage.library import Library

if TYPE_CHECKING:
    from esa_cli.apps.cli.model_and_documents import QuestionBooks
    from esa_cli.qa.answering.reply import Reply
    from esa_cli.qa.api import Esa
    from esa_cli.qa.finding.passage_finder import Book

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="DOC... QUESTION",
        help="Files, folders or patterns, or - for standard input; then the question in quotes.",
    ),
]
Top = Annotated[
    int | None, option("--top N", "Passages to show below the answer; by default 3.", min=0, max=50)
]


@dataclass(frozen=True)
class AskOptions(options.DocumentOptions):
    """The options that only the command `esa ask` has."""

    read: Annotated[
        Literal["after", "first", "never"],
        option(
            "--read first|never",
            "When the model reads a new document to make its token index.",
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
            "Form of the answer: a quotation (span), free text, or what fits the question.",
        ),
    ] = None

    @property
    def passage_count(self) -> int:
        """The number of passages to show with the answer or to put into its JSON object."""
        return answer_output.count_shown_passages(self.top, self.quiet and not self.as_json)


@options.typer_command
def ask(
    arguments: Arguments = None,
    *,
    flags: AskOptions,
    model: options.ModelOptions,
    generation_options: options.GenerationOptions,
    reader_options: options.ReaderOptions,
) -> None:
    """Answer a question about documents of any length.

    esa ask book.txt "Who is Ahab?"
    """
    names, question = split_off_question(arguments, "ask", library_allowed=flags.library)
    options.refuse_both("--keep", "--read never", flags.keep and flags.read == "never")
    with Reporter(flags.quiet) as reporter, ExitStack() as stack:
        run = AskRun(question, flags, generation_options.make_ask_arguments(), reporter)
        run.load_model_and_open_documents(names, model, reader_options, stack)
        run.answer_question()


class AskRun:
    """One run of the command `esa ask`, with its question, its documents and its model."""

    esa: Esa
    documents: QuestionBooks
    books: Sequence[Book]
    reads_later: bool
    """Whether the model reads new documents only after a first answer."""

    def __init__(
        self, question: str, flags: AskOptions, generation: Mapping[str, Any], reporter: Reporter
    ) -> None:
        self.question, self.flags, self.generation = question, flags, generation
        self.reporter = reporter
        self.started = [time.perf_counter()]
        """The times at which loading, opening and answering began, and the time of the answer."""

    def load_model_and_open_documents(
        self,
        names: Sequence[str],
        model: options.ModelOptions,
        reader_options: options.ReaderOptions,
        stack: ExitStack,
    ) -> None:
        """Loads the model and opens the documents of the question. Raises EsaError."""
        from esa_cli.apps.cli.model_and_documents import QuestionBooks, open_esa
        from esa_cli.models import path_of
        from esa_cli.models.tokenization.tokenizer import begin_loading_tokenizer
        from esa_cli.qa.opening import adapt_to_model, prepare
        from esa_cli.qa.planning.kv_cache_storage import check_asked_together
        from esa_cli.system.text import text_digest

        flags, reporter = self.flags, self.reporter
        files, library = source_files(names), Library()
        chosen = reader_options.load_preset(model, form=flags.form, later_method=flags.method)
        output_paths.check_output_file("--report", flags.report, files.paths)
        chosen = chosen if flags.method else adapt_to_model(chosen, reporter)
        from_text = chosen.answer.source == "text" and flags.method is None
        if from_text and (folder := path_of(chosen.model)) is not None:
            begin_loading_tokenizer(folder)
        reader = reader_options.choose_reader()
        limit = chosen.answer.documents if from_text else None
        self.documents = QuestionBooks(
            files, library, reporter, stack, limit=limit, in_library=flags.library, keep=flags.keep
        )
        named = self.documents.gathered.documents
        sized = () if flags.library else named  # the documents of the library may have any length
        keep, place = flags.keep, model.model_place
        ready = prepare(chosen, place, reporter, method=flags.method, documents=sized, keep=keep)
        needs_kv_cache = ready.resolved.preset.answer.needs_kv_cache
        if len(named) > 1:
            is_stateful = ready.planner.costs.shape.stateful > 0
            check_asked_together(ready.resolved, ready.model.config["model_type"], is_stateful)
        if flags.read == "never" and needs_kv_cache:
            wrong = "--read never needs answers from passages, not from the KV cache"
            raise UsageError(wrong, "add --set answer.from=text, and leave out --method")
        if needs_kv_cache and not flags.keep:
            stored = library.list_text_digests()
            new = [one.text for one in named if text_digest(one.text) not in stored]
            ready.planner.check(sum(map(ready.model.count_tokens, new)))
        # A script gets one answer only, the better one.
        is_script = flags.as_json or not sys.stdout.isatty()
        self.reads_later = flags.read == "after" and not is_script and ready.index is not None
        self.esa = esa = stack.enter_context(
            open_esa(ready, model, reporter, keep=flags.keep, library=library, reader=reader)
        )
        self.started.append(time.perf_counter())
        open_book = esa.open if self.reads_later or flags.read == "never" else esa.ingest
        books = [open_book(source) for source in ready.texts or named]
        self.documents.set_book_openers(books, esa.stored, None if needs_kv_cache else open_book)
        self.books = self.documents.open_question_books(self.question)
        self.started.append(time.perf_counter())

    def answer_question(self) -> None:
        """Answers the question, and prints the answer, its passages and its report."""
        reply = self._ask_question(is_streamed=not self.flags.as_json)
        self.started.append(time.perf_counter())
        if self.reads_later and not all(book.read for book in self.books):
            reply = self._read_books_and_ask_again(reply)
        if self.flags.as_json:
            steps = zip(("load_s", "ingest_s", "answer_s"), pairwise(self.started), strict=True)
            seconds = {name: end - start for name, (start, end) in steps}
            left_out, searched = self.documents.gathered.left_out, self.documents.searched
            facts = answer_output.describe_answer(self.esa, self.books, reply, seconds, left_out)
            print_json({**facts, **({"searched": searched} if searched else {})})
        self._write_report(reply)

    def _read_books_and_ask_again(self, unread_reply: Reply) -> Reply:
        """Reads the unread books, asks again, and prints the answer if it has changed."""
        reporter, books = self.reporter, self.books
        unread = shorten_name_list([book.document.name for book in books if not book.read])
        reporter.warn(  # with --quiet, too: the command goes on for minutes
            f"esa: not read yet: {unread}. This answer was found with BM25 alone. Reading now; "
            "Ctrl-C keeps the answer"
        )
        try:
            self.books = [b if b.read else self.esa.ingest(b.document) for b in books]
            reply = self._ask_question(is_streamed=False)
        except BaseException as error:
            reporter.clear_spinner()
            if isinstance(error, KeyboardInterrupt):
                reporter.note("esa: the answer above was found with BM25 alone")
            self.books = books
            self._write_report(unread_reply)
            raise
        replies = unread_reply, reply
        places = [[(e.document, e.start) for e in one.evidence[:1]] for one in replies]
        if unread_reply.text.strip() == reply.text.strip() and places[0] == places[1]:
            reporter.note("esa: reading changed neither the answer nor its first passage")
        else:
            reporter.warn("esa: the answer after reading:")
            print(clean_text(reply.text), flush=True)
            answer_output.show_answer_notes(reply, self.flags.passage_count, reporter)
        return reply

    def _ask_question(self, is_streamed: bool) -> Reply:
        """Asks the model the question. A streamed answer is printed as it is generated."""
        flags, reporter = self.flags, self.reporter
        reporter.show_spinner("answering")
        reply = self.esa.ask(
            self.question,
            self.books,
            evidence=max(flags.passage_count, 0 if flags.as_json else 1),
            on_text=answer_output.AnswerStream(sys.stdout, reporter) if is_streamed else None,
            **self.generation,
        )
        reporter.clear_spinner()
        if is_streamed:
            print(flush=True)
            answer_output.show_answer_notes(reply, flags.passage_count, reporter)
        return reply

    def _write_report(self, reply: Reply) -> None:
        """Writes the HTML page of --report, if wanted; the answer has already been printed."""
        if self.flags.report is not None:
            page = self.esa.report(reply, self.question, self.books)
            output_paths.write_text_file(self.flags.report, page)
            self.reporter.note(f"esa: wrote {self.flags.report}")
