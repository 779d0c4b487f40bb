"""`esa find`: the passages of documents that fit some words, with their places, without an answer.

Nothing is read again, so neither the adapter nor, where words alone are searched, the model is
loaded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from esa_cli.apps.cli.commands.find_request import AS_FOUND, FindOptions, FindRequest
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.errors import NOT_FOUND

if TYPE_CHECKING:
    from esa_cli.apps.cli.document_search import DocumentSearch
    from esa_cli.apps.cli.output.passage_output import FoundInBooks
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.apps.cli.passage_books import PassageBooks
    from esa_cli.documents.document import Document
    from esa_cli.qa.books import Book
    from esa_cli.storage.library import Library

EXAMPLE = 'for example: esa find book.txt "the white whale"'
Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="DOC... WORDS",
        help="Files, folders or patterns, or - for standard input; then words or a question, in "
        "quotes.",
    ),
]


@options.command
def find(
    arguments: Arguments = None,
    ways: FindOptions = AS_FOUND,
    model: ModelOptions = options.DEFAULTS,
) -> None:
    """Find passages in documents, without an answer.

    esa find book.txt "the white whale"
    """
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.apps.cli.request import check_characters, no_keep_hint, split

    ways.check()
    documents, question = split(arguments or [], library=ways.library, example=EXAMPLE)
    check_characters(question)
    reporter = Reporter(ways.quiet)
    try:
        with no_keep_hint(ways.keep), ExitStack() as stack:
            request = FindRequest(documents, question, ways, model)
            found = _found(request, reporter, stack)
            reporter.settle()
            _show(request, found, reporter)
    finally:
        reporter.settle()
    if not found.passages:
        raise typer.Exit(NOT_FOUND)


def _found(request: FindRequest, reporter: Reporter, stack: ExitStack) -> FoundInBooks:
    """Opens the documents, and finds passages. Raises EsaError."""
    from esa_cli.apps.cli.document_search import document_search, named_alone
    from esa_cli.apps.cli.inputs import read_files
    from esa_cli.apps.cli.output.passage_output import FoundInBooks
    from esa_cli.apps.cli.passage_books import PassageBooks
    from esa_cli.documents.sources import source_files
    from esa_cli.qa.books import place_books
    from esa_cli.qa.finding.passage_finder import passages_with_words
    from esa_cli.qa.presets.adapter_files import check_adapter, for_finding
    from esa_cli.storage.library import Library

    ways, started = request.options, time.perf_counter()
    chosen = for_finding(request.model.load_preset(), ways.by_words)
    check_adapter(chosen.answer)
    files, library = source_files(request.documents), Library()
    opener = PassageBooks(
        chosen, request.model, library, reporter, stack,
        read=ways.read == "first", keep=ways.keep,
    )  # fmt: skip
    search = stack.enter_context(
        document_search(
            files,
            library,
            reporter,
            most=chosen.answer.documents,
            in_library=ways.library,
            keep=ways.keep,
        )
    )
    given = read_files(files if search is None else named_alone(files), reporter)
    books, searched = _books(request, opener, library, search, given.documents, reporter)
    opened = time.perf_counter()
    reporter.waiting("searching")
    if ways.by_words:
        found = passages_with_words(request.question, place_books(books))
        passages = found.passages
        if 0 < found.most < found.words:
            part = f"{found.most} of the {found.words} words"
            reporter.note(f"esa: no passage has all of the words; these have {part}")
    else:
        passages = opener.passages(request.question, books, ways.count, ways.minimum)
    timing = {"open_s": opened - started, "find_s": time.perf_counter() - opened}
    return FoundInBooks(passages, books, given.left_out, searched, chosen, opener.loaded, timing)


def _books(
    request: FindRequest,
    opener: PassageBooks,
    library: Library,
    search: DocumentSearch | None,
    documents: Sequence[Document],
    reporter: Reporter,
) -> tuple[list[Book], int]:
    """The books to search, each text once, and the number of documents whose words were searched
    where fewer are among them, else 0."""
    from esa_cli.apps.cli.best_books import BestBooks
    from esa_cli.apps.cli.inputs import library_books
    from esa_cli.qa.books import distinct

    books, searched = [opener.open(one) for one in documents], 0
    if search is not None:
        if request.options.by_words:
            search.open_all_with_words(request.question)
        best = BestBooks(search, opener.stored, library, opener.open, reporter)
        books += best.books(request.question)
        searched = best.searched
    elif request.options.library:
        books += library_books(opener.stored, library, reporter, opener.open)
    return distinct(books), searched


def _show(request: FindRequest, found: FoundInBooks, reporter: Reporter) -> None:
    """Writes what was found to standard output, and on standard error what it lacks."""
    from esa_cli.apps.cli.output.passage_output import files_of, print_files, print_passages
    from esa_cli.apps.cli.output.terminal import print_json

    ways = request.options
    passages = found.in_document_order() if ways.every else found.passages
    files = files_of(passages)[: ways.top] if ways.files else None
    if ways.as_json:
        print_json(found.as_dict(passages, files))
    elif files is None:
        print_passages(passages, request.question)
    else:
        print_files(files)
    if note := found.unread:
        reporter.note(f"esa: {note}")
    if not passages:
        reporter.warn("esa: no passage fits")
