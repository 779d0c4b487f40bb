"""`esa ask`: reads documents, or finds them in the library, and answers questions about them.

Everything that can be wrong without the model is found out before it is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from esa_cli.apps.cli.commands.ask_request import AS_NAMED, AskOptions, AskRequest
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.answer_options import AS_ANSWERED, AnswerOptions
from esa_cli.apps.cli.options.options import GenerationOptions, ModelOptions
from esa_cli.errors import PARTIAL, UsageError

if TYPE_CHECKING:
    from esa_cli.apps.cli.best_books import BestBooks
    from esa_cli.apps.cli.document_search import DocumentSearch
    from esa_cli.apps.cli.model_choice.open_esa import Preflight
    from esa_cli.apps.cli.output.answer_output import Timing
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.documents.document import Document, GatheredDocuments, SourceFiles
    from esa_cli.qa.api import Esa
    from esa_cli.qa.books import Book, TokenisedDocument
    from esa_cli.qa.presets.preset import Preset
    from esa_cli.storage.library import Library

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="DOC... QUESTION",
        help="Files, folders or patterns, or - for standard input; then the question, in quotes.",
    ),
]


@options.command
def ask(
    arguments: Arguments = None,
    ways: AskOptions = AS_NAMED,
    model: ModelOptions = options.DEFAULTS,
    generation: GenerationOptions = options.AS_PRESET,
    answer: AnswerOptions = AS_ANSWERED,
) -> None:
    """Answer a question about documents of any length.

    esa ask book.txt "Who is Ahab?"
    """
    from esa_cli.apps.cli.options.output_paths import check
    from esa_cli.apps.cli.output.answer_output import Timing
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.apps.cli.request import check_characters, check_method_alone, no_keep_hint, split

    if ways.stdin and ways.report is not None:
        raise UsageError("--report must be of one question, got --stdin", "ask it without --stdin")
    if ways.read == "never" and ways.keep:
        raise UsageError("--read never has nothing to keep", "give --read never or --keep")
    documents, question = split(arguments or [], library=ways.library, lines=ways.stdin)
    check_characters(question)
    check_method_alone(ways.method, ways.parts)
    answer.check_no_method(ways.method, ways.parts)
    request = AskRequest(documents, question, ways, model, generation, answer)
    reporter, timing = Reporter(ways.quiet), Timing()
    check("--report", ways.report)
    try:
        with no_keep_hint(ways.keep):
            code = _run(request, reporter, timing)
    finally:
        reporter.settle()
    if code:
        raise typer.Exit(code)


def _run(request: AskRequest, reporter: Reporter, timing: Timing) -> int:
    """Answers on standard output; the exit code. Raises EsaError."""
    from esa_cli.apps.cli.document_search import document_search
    from esa_cli.apps.cli.model_choice.known_model import answerable
    from esa_cli.apps.cli.options.output_paths import spare
    from esa_cli.documents.sources import source_files
    from esa_cli.models import parse_reference
    from esa_cli.models.tokenization.tokenizer_loading import read_ahead
    from esa_cli.storage.library import Library

    ways = request.options
    chosen = request.answer.load_preset(request.model, ways.overrides)
    files, library = source_files(request.documents), Library()
    spare("--report", ways.report, files.paths)
    chosen = chosen if ways.method else answerable(chosen, reporter)
    if chosen.answer.source == "rows" or ways.method is not None:
        return _answer(request, chosen, files, library, None, reporter, timing)
    read_ahead(parse_reference(chosen.model))
    with document_search(
        files, library, reporter,
        most=chosen.answer.documents, in_library=ways.library, keep=ways.keep,
    ) as search:  # fmt: skip
        return _answer(request, chosen, files, library, search, reporter, timing)


def _answer(
    request: AskRequest,
    chosen: Preset,
    files: SourceFiles,
    library: Library,
    search: DocumentSearch | None,
    reporter: Reporter,
    timing: Timing,
) -> int:
    """As `_run`; of folders, patterns and library what `search` finds."""
    from esa_cli.apps.cli import inputs
    from esa_cli.apps.cli.best_books import BestBooks
    from esa_cli.apps.cli.commands.one_question import OneQuestion
    from esa_cli.apps.cli.document_search import named_alone
    from esa_cli.apps.cli.model_choice.open_esa import opened
    from esa_cli.qa.books import distinct

    ways = request.options
    reader = request.answer.reader_choice()
    found = inputs.read_files(files if search is None else named_alone(files), reporter)
    ready = _ready(request, chosen, found.documents, reporter)
    sources = _check_room(request, ready, found.documents, library)
    later = ready.index is not None and ways.answers_first
    with opened(
        ready, request.model, reporter,
        keep=ways.keep, library=library, reader=reader, reads_later=later,
    ) as esa:  # fmt: skip
        timing.load_s = timing.lap()
        make = esa.open if later or ways.read == "never" else esa.ingest
        books = [make(source) for source in sources]
        best = None if search is None else BestBooks(search, esa.stored, library, make, reporter)
        if best is not None and not ways.stdin:
            books += best.books(request.question)
        elif best is None and ways.library:
            by_text = not esa.documents.needs_rows
            given = (esa.stored, library, reporter, make if by_text else None)
            books += inputs.library_books(*given)
        timing.ingested(books)
        books = distinct(books)
        if ways.stdin:
            return _lines(esa, books, best, found, request, reporter)
        question = OneQuestion(
            esa, request, found.left_out, reporter, timing, best.searched if best else 0
        )
        if later and not all(book.read for book in books):
            question.answer_and_read(
                books,
                lambda: [b if b.read else esa.ingest(b.document) for b in books],
                lambda: esa.documents.stored_tokens,
            )
        else:
            question.answer(books)
    return 0


def _ready(
    request: AskRequest, chosen: Preset, documents: Sequence[Document], reporter: Reporter
) -> Preflight:
    """The method and the model's small files.

    Raises:
        UsageError: --library with a method that is made for the length of its documents, --read
            never where answers need rows, or several documents that cannot be asked together.
    """
    from esa_cli.apps.cli.model_choice.open_esa import prepare
    from esa_cli.qa.ingestion.archive import check_asked_together
    from esa_cli.qa.planning.model_shape import shape_of

    method = request.options.method
    if request.options.library and method is not None:
        from esa_cli.qa.presets.resolved_preset import stretches

        if stretches(method, chosen):
            raise UsageError(
                f"method {method!r} is made for the length of its documents: --library has any",
                "name the documents in place of --library",
            )
    ready = prepare(
        chosen, request.model, reporter,
        method=method, documents=documents, keep=request.options.keep,
    )  # fmt: skip
    if len({one.text for one in documents}) > 1:
        resolved, config = ready.resolved, ready.model.config
        stateful = shape_of(config).stateful > 0
        check_asked_together(resolved.preset, resolved.method, config["model_type"], stateful)
    if request.options.read == "never" and ready.resolved.preset.answer.needs_rows:
        raise UsageError(
            "--read never needs answers from passages, found by their words: here they rest on the "
            "rows of documents that are read",
            "leave it out, or add --set answer.from=text and name no method or part of one",
        )
    return ready


def _check_room(
    request: AskRequest, ready: Preflight, documents: Sequence[Document], library: Library
) -> Sequence[Document | TokenisedDocument]:
    """Documents to ingest. Raises ResourceError where they do not fit into memory, ModelError."""
    from esa_cli.system.text import text_digest

    texts = list(ready.texts)
    if not request.options.keep and ready.resolved.preset.answer.needs_rows:
        stored = library.text_digests()
        new = [one for one in documents if text_digest(one.text) not in stored]
        texts = texts or ready.model.tokenise(new)
        if new:
            wanted = {one.text for one in new}
            ready.planner.check(sum(len(t.ids) for t in texts if t.document.text in wanted))
    known = {text.document.text: text for text in texts}
    return [known.get(one.text, one) for one in documents]


def _lines(
    esa: Esa,
    books: Sequence[Book],
    best: BestBooks | None,
    found: GatheredDocuments,
    request: AskRequest,
    reporter: Reporter,
) -> int:
    from esa_cli.apps.cli.commands.ask_lines import ask_lines
    from esa_cli.apps.cli.inputs import numbered_lines

    ways = request.options
    wrong = ask_lines(
        esa, books, numbered_lines(sys.stdin), sys.stdout, ways.as_json, reporter=reporter,
        options=request.generation.arguments(), shown=ways.passages, left_out=found.left_out,
        best=best,
    )  # fmt: skip
    return PARTIAL if wrong else 0
