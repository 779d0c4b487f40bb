"""`esa ask`: reads documents, or finds them in the library, and answers questions about them.

Everything that can be wrong without the model is found out before it is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import typer

from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.answer_options import AnswerOptions
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.options import GenerationOptions, ModelOptions
from esa_cli.errors import PARTIAL, EsaError, UsageError

if TYPE_CHECKING:
    from esa_cli.apps.cli.best_books import BestBooks
    from esa_cli.apps.cli.document_search import DocumentSearch
    from esa_cli.apps.cli.inputs import Line
    from esa_cli.apps.cli.output.answer_output import Timing
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.documents.document import Document, GatheredDocuments, LeftOut, SourceFiles
    from esa_cli.qa.answering.reply import Reply
    from esa_cli.qa.api import Esa
    from esa_cli.qa.books import Book, TokenisedDocument
    from esa_cli.qa.opening import Preflight
    from esa_cli.qa.presets.preset import Preset
    from esa_cli.storage.library import Library

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
Report = Annotated[
    Path | None, option("--report FILE", "Write a page with the text and its passages.")
]
Read = Annotated[
    Literal["after", "first", "never"],
    option(
        "--read first|never",
        "When the finder reads a new document.",
        show_default="after a first answer, on a terminal",
    ),
]


@dataclass(frozen=True)
class AskOptions:
    """Options of `esa ask` besides those of the model and of generation."""

    keep: options.Keep = None
    read: Read = "after"
    library: InLibrary = False
    top: Top = None
    report: Report = None
    method: options.Method = None
    as_json: options.Json = False
    quiet: options.Quiet = False

    @property
    def passages(self) -> int:
        """Passages of an answer to show, or to put into its JSON object."""
        from esa_cli.apps.cli.output.answer_output import passage_count

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
    from esa_cli.apps.cli.options.output_paths import check
    from esa_cli.apps.cli.output.answer_output import Timing
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.apps.cli.request import no_keep_hint, split

    documents, question = split(arguments or [], library=ways.library)
    if question == "-" and ways.report is not None:
        raise UsageError("--report must be of one question, got -", "ask it without -")
    if ways.read == "never" and ways.keep:
        raise UsageError("--read never has nothing to keep", "give --read never or --keep")
    answer.check_no_method(ways.method, {})
    check("--report", ways.report)
    run = AskRun(documents, question, ways, model, generation, answer, Reporter(ways.quiet))
    run.timing = Timing()
    try:
        with no_keep_hint(ways.keep):
            code = run.run()
    finally:
        run.reporter.settle()
    if code:
        raise typer.Exit(code)


@dataclass
class AskRun:
    """One `esa ask`: what was asked for, and what is known so far.

    Attributes:
        left_out: of the documents, for the JSON object. searched: documents whose words were
            searched, if fewer were opened.
    """

    documents: Sequence[str]
    question: str
    ways: AskOptions
    model: ModelOptions
    generation: GenerationOptions
    answer_options: AnswerOptions
    reporter: Reporter
    timing: Timing = field(init=False)
    esa: Esa = field(init=False)
    left_out: Sequence[LeftOut] = ()
    searched: int = 0

    def run(self) -> int:
        """Answers on standard output; the exit code. Raises EsaError."""
        from esa_cli.apps.cli.document_search import document_search
        from esa_cli.apps.cli.options.output_paths import spare
        from esa_cli.documents.sources import source_files
        from esa_cli.models import parse_reference
        from esa_cli.models.tokenization.tokenizer import read_ahead
        from esa_cli.qa.opening import answerable
        from esa_cli.storage.library import Library

        ways = self.ways
        chosen = self.answer_options.load_preset(self.model)
        files, library = source_files(self.documents), Library()
        spare("--report", ways.report, files.paths)
        chosen = chosen if ways.method else answerable(chosen, self.reporter)
        if chosen.answer.source == "rows" or ways.method is not None:
            return self._open(chosen, files, library, None)
        read_ahead(parse_reference(chosen.model))
        with document_search(
            files, library, self.reporter,
            most=chosen.answer.documents, in_library=ways.library, keep=ways.keep,
        ) as search:  # fmt: skip
            return self._open(chosen, files, library, search)

    def _open(
        self, chosen: Preset, files: SourceFiles, library: Library, search: DocumentSearch | None
    ) -> int:
        """Opens the documents, of folders, patterns and library what `search` finds, and asks."""
        from esa_cli.apps.cli import inputs
        from esa_cli.apps.cli.best_books import BestBooks
        from esa_cli.apps.cli.document_search import named_alone
        from esa_cli.apps.cli.open_esa import opened
        from esa_cli.qa.books import distinct

        ways, reporter, lines = self.ways, self.reporter, self.question == "-"
        reader = self.answer_options.reader_choice()
        gathered = inputs.read_files(files if search is None else named_alone(files), reporter)
        self.left_out = gathered.left_out
        ready = self._prepare(chosen, gathered)
        sources = self._check_room(ready, gathered.documents, library)
        # A script gets one answer only, the better one.
        twice = ways.read == "after" and not (lines or ways.as_json) and sys.stdout.isatty()
        later = twice and ready.index is not None
        with opened(
            ready, self.model, reporter,
            keep=ways.keep, library=library, reader=reader, reads_later=later,
        ) as self.esa:  # fmt: skip
            esa = self.esa
            self.timing.load_s = self.timing.lap()
            make = esa.open if later or ways.read == "never" else esa.ingest
            books = [make(source) for source in sources]
            best = (
                None if search is None else BestBooks(search, esa.stored, library, make, reporter)
            )
            if best is not None and not lines:
                books += best.books(self.question)
                self.searched = best.searched
            elif best is None and ways.library:
                by_text = None if esa.documents.needs_rows else make
                books += inputs.library_books(esa.stored, library, reporter, by_text)
            self.timing.ingested(books)
            books = distinct(books)
            if lines:
                return self._lines(books, best)
            if later and not all(book.read for book in books):
                self._answer_and_read(books)
            else:
                self._answer(books)
        return 0

    def _prepare(self, chosen: Preset, gathered: GatheredDocuments) -> Preflight:
        """The method and the model's small files.

        Raises:
            UsageError: --library with a method that is made for the length of its documents, --read
                never where answers need rows, or several documents that cannot be asked together.
        """
        from esa_cli.qa.opening import prepare
        from esa_cli.qa.planning.model_shape import shape_of
        from esa_cli.qa.planning.row_storage import check_asked_together

        method, documents = self.ways.method, gathered.documents
        if self.ways.library and method is not None:
            from esa_cli.qa.presets.resolved_preset import stretches

            if stretches(method, chosen):
                raise UsageError(
                    f"method {method!r} is made for the length of its documents: --library has any",
                    "name the documents in place of --library",
                )
        ready = prepare(
            chosen, self.model.place, self.reporter,
            method=method, documents=documents, keep=self.ways.keep,
        )  # fmt: skip
        if len({document.text for document in documents}) > 1:
            resolved, config = ready.resolved, ready.model.config
            stateful = shape_of(config).stateful > 0
            check_asked_together(resolved.preset, resolved.method, config["model_type"], stateful)
        if self.ways.read == "never" and ready.resolved.preset.answer.needs_rows:
            raise UsageError(
                "--read never needs answers from passages, found by their words: here they rest on "
                "the rows of documents that are read",
                "leave it out, or add --set answer.from=text and name no method or part of one",
            )
        return ready

    def _check_room(
        self, ready: Preflight, documents: Sequence[Document], library: Library
    ) -> Sequence[Document | TokenisedDocument]:
        """Documents to ingest. Raises ResourceError: memory has no room for them; ModelError."""
        from esa_cli.system.text import text_digest

        texts = list(ready.texts)
        if not self.ways.keep and ready.resolved.preset.answer.needs_rows:
            stored = library.text_digests()
            new = [one for one in documents if text_digest(one.text) not in stored]
            texts = texts or ready.model.tokenise(new)
            if new:
                wanted = {one.text for one in new}
                ready.planner.check(sum(len(t.ids) for t in texts if t.document.text in wanted))
        known = {text.document.text: text for text in texts}
        return [known.get(one.text, one) for one in documents]

    def _lines(self, books: Sequence[Book], best: BestBooks | None) -> int:
        from esa_cli.apps.cli.inputs import numbered_lines

        wrong = ask_lines(
            self.esa, books, numbered_lines(sys.stdin), sys.stdout, self.ways.as_json,
            reporter=self.reporter, options=self.generation.arguments(),
            shown=self.ways.passages, left_out=self.left_out, best=best,
        )  # fmt: skip
        return PARTIAL if wrong else 0

    def _answer(self, books: Sequence[Book]) -> None:
        """Answers about these books as they are, and writes what is asked for."""
        from esa_cli.apps.cli.output.answer_output import summary
        from esa_cli.apps.cli.output.terminal import print_json

        if self.ways.as_json:
            reply = self._reply(books, None)
            print_json(self._as_dict(reply, books))
        else:
            reply = self._streamed(books)
            self.reporter.note(summary(self._as_dict(reply, books)))
        self._report(reply, books)

    def _answer_and_read(self, books: Sequence[Book]) -> None:
        """Answers at once, reads what has not been read, and shows the answer after that where it
        is another one. What ends the reading leaves the first answer, and its report."""
        from esa_cli.apps.cli.output.answer_output import show_under, summary
        from esa_cli.apps.cli.output.terminal import clean
        from esa_cli.apps.cli.output.wrapping import wrapped_text

        reply, reporter = self._streamed(books), self.reporter
        unread = [book.document.name for book in books if not book.read]
        which = unread[0] if len(books) == 1 else f"{len(unread)} of {len(books)} documents"
        reporter.warn(  # with --quiet, too: the command goes on for minutes
            f"esa: not read yet: {which}. This answer was found by words alone; reading now, "
            "Ctrl-C keeps it"
        )
        try:
            self.timing.lap()
            books_read = [b if b.read else self.esa.ingest(b.document) for b in books]
            self.timing.ingested(books_read)
            later = self._reply(books_read, None)
        except BaseException as error:
            reporter.settle()
            if isinstance(error, KeyboardInterrupt):
                rest = _next_reading(self.esa.documents.stored_tokens)
                reporter.note(f"esa: the answer above was found by words alone{rest}")
            self._report(reply, books)
            raise
        if _same(reply, later):
            reporter.note("esa: reading changed nothing: the same answer, the same first passage")
        else:
            reporter.warn("esa: the answer after reading:")
            print(wrapped_text(clean(later.text), sys.stdout), flush=True)
            show_under(later, self.ways.passages, reporter)
        reporter.note(summary(self._as_dict(later, books_read)))
        self._report(later, books_read)

    def _streamed(self, books: Sequence[Book]) -> Reply:
        """The reply, shown as it comes, with its passages."""
        from esa_cli.apps.cli.output.answer_output import AnswerStream, show_under

        with AnswerStream(sys.stdout, self.reporter) as stream:
            reply = self._reply(books, stream)
        print(flush=True)
        show_under(reply, self.ways.passages, self.reporter)
        return reply

    def _reply(self, books: Sequence[Book], on_text: Callable[[str], None] | None) -> Reply:
        self.reporter.waiting("answering")
        reply = self.esa.ask(
            self.question,
            books,
            evidence=max(self.ways.passages, 0 if self.ways.as_json else 1),
            on_text=on_text,
            **self.generation.arguments(),
        )
        self.timing.answer_s = self.timing.lap()
        self.reporter.settle()
        return reply

    def _as_dict(self, reply: Reply, books: Sequence[Book]) -> dict[str, Any]:
        from esa_cli.apps.cli.output.answer_output import as_dict

        facts = as_dict(self.esa, books, reply, self.timing, self.left_out)
        return {**facts, "searched": self.searched} if self.searched else facts

    def _report(self, reply: Reply, books: Sequence[Book]) -> None:
        """Last: where the report cannot be written, the answer is there."""
        if self.ways.report is not None:
            from esa_cli.apps.cli.options.output_paths import write

            write(self.ways.report, self.esa.report(reply, self.question, books))
            if not self.ways.as_json:
                self.reporter.note(f"esa: wrote {self.ways.report}")


def _next_reading(stored: int | None) -> str:
    """Where the next reading of a document begins of which so many tokens are stored."""
    if stored is None:
        return ""
    if stored == 0:
        return "; nothing of the document is stored yet, so the next reading begins anew"
    return f"; the next reading goes on after the first {stored:,} tokens, which are stored"


def _same(one: Reply, other: Reply) -> bool:
    """Whether two replies have the same text and the same first passage."""
    places = [[(e.document, e.start, e.end) for e in reply.evidence[:1]] for reply in (one, other)]
    return one.text.strip() == other.text.strip() and places[0] == places[1]


def ask_lines(
    asker: Esa,
    books: Sequence[Any],
    lines: Iterable[tuple[int, Line]],
    out: IO[str],
    as_json: bool,
    *,
    reporter: Reporter,
    options: Mapping[str, Any] | None = None,
    shown: int = 3,
    left_out: Sequence[LeftOut] = (),
    best: BestBooks | None = None,
) -> int:
    """Answers every line as it comes, and returns how many got no answer.

    With `as_json` each answer is one line of JSON. Without, it streams, a blank line follows, and
    the passages go where notes go.

    Args:
        lines: numbers and questions, as `inputs.numbered_lines` gives them.
        options: keyword arguments for `asker.ask`. shown: passages of each answer.
        left_out: of the documents, for the JSON. best: finds further books for a question.
    """
    from esa_cli.apps.batch import answer_row, error_row
    from esa_cli.apps.cli.output.answer_output import (
        AnswerStream,
        asked_documents,
        complain,
        show_under,
    )
    from esa_cli.apps.cli.output.terminal import as_json as written
    from esa_cli.apps.cli.output.terminal import clean
    from esa_cli.apps.cli.output.wrapping import wrapped_text

    wrong = 0
    for number, question in lines:
        stream, reply, text = AnswerStream(out, reporter), None, ""
        reporter.waiting("answering")
        try:
            if isinstance(question, EsaError):
                raise question
            about = [*books, *best.books(question)] if best else books
            with stream:
                reply = asker.ask(
                    question, about,
                    on_text=None if as_json else stream, **{**(options or {}), "evidence": shown},
                )  # fmt: skip
        except EsaError as error:
            wrong += 1
            row = error_row(error)
            if not as_json:
                where = "" if error is question else f"line {number}: "
                complain(reporter, f"esa: {where}{error.message}")
        else:
            row, text = answer_row(reply, about, left_out), clean(reply.text)
            if best is not None:
                row["documents"] = asked_documents(about)
                row |= {"searched": best.searched} if best.searched else {}
        reporter.settle()
        if as_json:
            words = question if isinstance(question, str) else ""
            out.write(written({"line": number, "question": words, **row}) + "\n")
        else:
            out.write("\n\n" if stream.any else f"{wrapped_text(text, out)}\n\n")
        out.flush()
        if reply is not None and not as_json:
            show_under(reply, shown, reporter)
    return wrong
