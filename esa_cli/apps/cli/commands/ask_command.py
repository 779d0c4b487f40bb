"""`esa ask`: reads documents, or finds them in the library, and answers questions about them.

Everything that can be wrong without the model is found out before it is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import typer

from esa_cli.apps.batch.result_row import answer_row, error_row
from esa_cli.apps.cli import inputs
from esa_cli.apps.cli.options import options, output_paths
from esa_cli.apps.cli.options.answer_options import AnswerOptions
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.options import GenerationOptions, ModelOptions
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
from esa_cli.documents.sources import LeftOut, source_files
from esa_cli.errors import PARTIAL, EsaError, UsageError
from esa_cli.storage.library import Library

if TYPE_CHECKING:
    from esa_cli.apps.cli.document_search import BestBooks
    from esa_cli.documents.document import Document
    from esa_cli.qa.answering.reply import Reply
    from esa_cli.qa.api import Esa
    from esa_cli.qa.books import Book, TokenisedDocument
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
    documents, question = inputs.split(arguments or [], library=ways.library)
    options.exclusive("--report", "-", question == "-" and ways.report is not None)
    options.exclusive("--keep", "--read never", ways.keep and ways.read == "never")
    output_paths.check("--report", ways.report)
    with Reporter(ways.quiet) as reporter, inputs.no_keep_hint(ways.keep), ExitStack() as stack:
        run = AskRun(question, ways, generation.arguments(), reporter)
        code = run.run(documents, model, answer, stack)
    if code:
        raise typer.Exit(code)


class AskRun:
    """One `esa ask`: a question, the options of answering it, and what is known so far."""

    def __init__(
        self, question: str, ways: AskOptions, generation: Mapping[str, Any], reporter: Reporter
    ) -> None:
        self.question, self.ways, self.generation = question, ways, generation
        self.reporter, self.timing = reporter, Timing()
        self.esa: Esa
        self.left_out: Sequence[LeftOut] = ()
        self.searched = 0
        """Documents whose words were searched, if fewer were opened."""

    def run(
        self, documents: Sequence[str], model: ModelOptions, answer: AnswerOptions, stack: ExitStack
    ) -> int:
        """Opens the documents, of folders, patterns and library the best, and answers on standard
        output; the exit code. Raises EsaError."""
        from esa_cli.apps.cli import document_search as searching
        from esa_cli.apps.cli.open_esa import opened
        from esa_cli.models import parse_reference
        from esa_cli.models.tokenization.tokenizer import read_ahead
        from esa_cli.qa.books import distinct
        from esa_cli.qa.opening import answerable

        ways, reporter, lines = self.ways, self.reporter, self.question == "-"
        chosen, search = answer.load_preset(model, asked_by=ways.method), None
        files, library = source_files(documents), Library()
        output_paths.spare("--report", ways.report, files.paths)
        chosen = chosen if ways.method else answerable(chosen, reporter)
        if chosen.answer.source == "text" and ways.method is None:
            read_ahead(parse_reference(chosen.model))
            search = stack.enter_context(
                searching.document_search(
                    files, library, reporter,
                    most=chosen.answer.documents, in_library=ways.library, keep=ways.keep,
                )
            )  # fmt: skip
        reader = answer.reader_choice()
        gathered = inputs.read_files(
            files if search is None else searching.named_alone(files), reporter
        )
        self.left_out = gathered.left_out
        ready = self._prepare(chosen, model, gathered.documents)
        sources = _check_room(ready, gathered.documents, library, ways.keep)
        # A script gets one answer only, the better one.
        twice = ways.read == "after" and not (lines or ways.as_json) and sys.stdout.isatty()
        later = twice and ready.index is not None
        self.esa = esa = stack.enter_context(
            opened(
                ready, model, reporter,
                keep=ways.keep, library=library, reader=reader, reads_later=later,
            )
        )  # fmt: skip
        self.timing.load_s = self.timing.lap()
        make = esa.open if later or ways.read == "never" else esa.ingest
        books = [make(source) for source in sources]
        best = None if search is None else searching.BestBooks(search, esa.stored, make, reporter)
        if best is not None and not lines:
            books += best.books(self.question)
            self.searched = best.searched
        elif best is None and ways.library:
            by_text = None if esa.documents.needs_rows else make
            books += searching.library_books(esa.stored, library, reporter, by_text)
        self.timing.ingested(books)
        books = distinct(books)
        if lines:
            wrong = ask_lines(
                esa, books, inputs.numbered_lines(sys.stdin), sys.stdout, ways.as_json,
                reporter=reporter, options=self.generation,
                shown=ways.passages, left_out=self.left_out, best=best,
            )  # fmt: skip
            return PARTIAL if wrong else 0
        if later and not all(book.read for book in books):
            self._answer_and_read(books)
        else:
            self.answer(books)
        return 0

    def _prepare(
        self, chosen: Preset, model: ModelOptions, documents: Sequence[Document]
    ) -> Preflight:
        """The method and the model's small files."""
        from esa_cli.qa.opening import prepare
        from esa_cli.qa.planning.model_shape import shape_of
        from esa_cli.qa.planning.row_storage import check_asked_together
        from esa_cli.qa.presets.resolved_preset import stretches

        ways = self.ways
        if ways.library and ways.method is not None and stretches(ways.method, chosen):
            raise UsageError(
                f"method {ways.method!r} is made for the length of its documents: --library has "
                "any",
                "name the documents in place of --library",
            )
        ready = prepare(
            chosen,
            model.place,
            self.reporter,
            method=ways.method,
            documents=documents,
            keep=ways.keep,
        )
        resolved, config = ready.resolved, ready.model.config
        if len({document.text for document in documents}) > 1:
            stateful = shape_of(config).stateful > 0
            check_asked_together(resolved, config["model_type"], stateful)
        if ways.read == "never" and resolved.preset.answer.needs_rows:
            raise UsageError(
                "--read never needs answers from passages, found by their words: here they rest on "
                "the rows of documents that are read",
                "leave it out, or add --set answer.from=text and name no method or part of one",
            )
        return ready

    def answer(self, books: Sequence[Book]) -> None:
        """Answers about these books as they are, and writes what is asked for."""
        if self.ways.as_json:
            reply = self._reply(books, None)
            print_json(self._as_dict(reply, books))
        else:
            reply = self._streamed(books)
            self.reporter.note(summary(self._as_dict(reply, books)))
        self._report(reply, books)

    def _answer_and_read(self, books: Sequence[Book]) -> None:
        """Answers at once, reads what has not been read, and shows the answer after that
        where it is another one."""
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
                stored = self.esa.documents.stored_tokens
                rest = "" if stored is None else f"; of the reading, {stored:,} tokens are stored"
                reporter.note(f"esa: the answer above was found by words alone{rest}")
            self._report(reply, books)
            raise
        if _first_words(reply) == _first_words(later):
            reporter.note("esa: reading changed nothing: the same answer, the same first passage")
        else:
            reporter.warn("esa: the answer after reading:")
            print(clean(later.text), flush=True)
            show_under(later, self.ways.passages, reporter)
        reporter.note(summary(self._as_dict(later, books_read)))
        self._report(later, books_read)

    def _streamed(self, books: Sequence[Book]) -> Reply:
        """The reply, shown as it comes, with its passages."""
        reply = self._reply(books, AnswerStream(sys.stdout, self.reporter))
        print(flush=True)
        show_under(reply, self.ways.passages, self.reporter)
        return reply

    def _reply(self, books: Sequence[Book], on_text: Callable[[str], None] | None) -> Reply:
        self.reporter.waiting("answering")
        evidence = max(self.ways.passages, 0 if self.ways.as_json else 1)
        reply = self.esa.ask(
            self.question, books, evidence=evidence, on_text=on_text, **self.generation
        )
        self.timing.answer_s = self.timing.lap()
        self.reporter.settle()
        return reply

    def _as_dict(self, reply: Reply, books: Sequence[Book]) -> dict[str, Any]:
        facts = as_dict(self.esa, books, reply, self.timing, self.left_out)
        return {**facts, "searched": self.searched} if self.searched else facts

    def _report(self, reply: Reply, books: Sequence[Book]) -> None:
        """Last: where the report cannot be written, the answer is there."""
        if self.ways.report is not None:
            output_paths.write(self.ways.report, self.esa.report(reply, self.question, books))
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
    best: BestBooks | None = None,
) -> int:
    """Answers every line as it comes, and returns how many got no answer.

    With `in_json` each answer is one line of JSON. Without, it streams, a blank line follows, and
    the passages go where notes go.

    Args:
        lines: numbers and questions, as `inputs.numbered_lines` gives them.
        options: keyword arguments for `asker.ask`. shown: passages of each answer.
        left_out: of the documents, for the JSON. best: finds further books for a question.
    """
    wrong = 0
    for number, question in lines:
        stream, reply, text = AnswerStream(out, reporter), None, ""
        reporter.waiting("answering")
        try:
            if isinstance(question, EsaError):
                raise question
            about = [*books, *best.books(question)] if best else books
            reply = asker.ask(
                question, about,
                on_text=None if in_json else stream, **{**(options or {}), "evidence": shown},
            )  # fmt: skip
        except EsaError as error:
            wrong += 1
            row = error_row(error)
            if not in_json:
                where = "" if error is question else f"line {number}: "
                complain(reporter, f"esa: {where}{error.message}")
        else:
            row, text = answer_row(reply, about, left_out), clean(reply.text)
            if best is not None:
                row["documents"] = asked_documents(about)
                row |= {"searched": best.searched} if best.searched else {}
        reporter.settle()
        if in_json:
            words = question if isinstance(question, str) else ""
            line = as_json({"line": number, "question": words, **row})
            out.write(f"{line}\n")
        else:
            out.write("\n\n" if stream.any else f"{text}\n\n")
        out.flush()
        if reply is not None and not in_json:
            show_under(reply, shown, reporter)
    return wrong
