"""Inputs of a command: documents from files, documents of the library, questions from a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.errors import UsageError
from esa_cli.system.work_shard import WorkShard

if TYPE_CHECKING:
    from esa_cli.documents.document import Document, GatheredDocuments, SourceFiles
    from esa_cli.qa.api import Esa
    from esa_cli.qa.books import Book
    from esa_cli.qa.ingestion.library_texts import LibraryText
    from esa_cli.storage.library import Entry, Library

Line = str | UsageError
"""A question, or why a line is not one."""


def check(documents: Sequence[str], *, questions_on_stdin: bool) -> None:
    """Refuses, before a model is loaded, document names that cannot work.

    Raises:
        UsageError: no document, or standard input as a document where the questions come from it.
    """
    if not documents:
        raise UsageError(
            "a document must be named, got none", "name one, for example: esa chat book.txt"
        )
    if documents.count("-") > 1:
        raise UsageError("standard input (-) must be named once, got more", "leave the others out")
    if "-" in documents and questions_on_stdin:
        raise UsageError(
            "standard input (-) must be a document or the questions, got both",
            "save the document to a file, and name that",
        )


def read(
    names: Sequence[str], reporter: Reporter, shard: WorkShard | None = None
) -> GatheredDocuments:
    """The documents that names, folders and patterns mean, each text once; reports the rest.

    Args:
        shard: reads the files of this shard only.

    Raises:
        UsageError: standard input has no shards. UsageError, DocumentError: as `document.gather`.
    """
    from esa_cli.documents.document import shard_of, source_files

    meant = source_files(names)
    if shard is not None and not shard.whole:
        if "-" in names:
            raise UsageError("standard input (-) has no shards", "save it to a file, and name that")
        every, meant = len(meant.paths), shard_of(meant, shard)
        files = f"{len(meant.sources):,} of {every:,} files"
        reporter.note(f"esa: shard {shard}: {files}", dim=False)
    return read_files(meant, reporter)


def read_files(files: SourceFiles, reporter: Reporter) -> GatheredDocuments:
    """As `read`, of files."""
    from esa_cli.documents.document import gather

    found = gather(files).without_copies()
    for left_out in found.left_out:
        reporter.warn(f"esa: {left_out.line}")
    return found


def ingest(asker: Esa, documents: Sequence[Document]) -> list[Any]:
    """A book for each document. Raises DocumentError, ResourceError."""
    return [asker.ingest(document) for document in documents]


def ingest_or_open(asker: Esa, documents: Sequence[Document], reporter: Reporter) -> list[Any]:
    """As `ingest`, but Ctrl-C ends the reading: the rest is asked by its words alone, where answers
    can do without."""
    books: list[Any] = []
    try:
        for document in documents:
            books.append(asker.ingest(document))
    except KeyboardInterrupt:
        if not asker.answers_unread:
            raise
        reporter.settle()
        books += [asker.open(document) for document in documents[len(books) :]]
        reporter.warn("esa: stopped reading; what has not been read is found by its words alone")
    return books


def library_books(
    stored: Callable[[Entry], Book],
    library: Library,
    reporter: Reporter,
    make: Callable[[str], Book] | None = None,
) -> list[Book]:
    """A book of every text of the library that this model and method can be asked about, in the
    order in which they were ingested; of a text that has grown only the longest. Reports what is
    left out.

    Args:
        stored: as `api.Esa.stored`. make: makes a book of a file, where no stored document has its
            text; None: such files are left out.

    Raises:
        UsageError: there is none.
    """
    from esa_cli.apps.cli.document_search import asked_texts
    from esa_cli.qa.ingestion.library_texts import LibraryTexts

    library_texts = LibraryTexts()
    if library.exists:
        with library.search_catalogue() as catalogue:
            library_texts = asked_texts(catalogue, reporter)
    books: list[Book] = []
    unread = 0
    with reporter.brief():
        for text in library_texts.texts:
            book, errors = _book_of(text, stored, make)
            books += [book] if book else []
            unread += book is None and not errors
            for message in errors if book is None else ():
                reporter.warn(f"esa: left out: {message}")
    if unread:
        reporter.warn(f"esa: left out: {unread:,} files that were not read with this preset")
    if not books:
        raise UsageError("the library has no document for this preset", "`esa ingest` reads one")
    return without_beginnings(books, reporter)


def _book_of(
    text: LibraryText, stored: Callable[[Entry], Book], make: Callable[[str], Book] | None
) -> tuple[Book | None, list[str]]:
    """The book of a text, or why there is none."""
    from esa_cli.errors import DocumentError

    errors = []
    for entry in text.entries:
        try:
            return stored(entry), []
        except (UsageError, DocumentError) as error:
            errors.append(error.message)
    try:
        return (make(text.path) if make and text.path else None), errors
    except DocumentError as error:
        return None, [*errors, error.message]


def incomplete(books: Sequence[Book]) -> str:
    """The end of a line on books: how many lack something of their files; empty: none does."""
    count = sum(bool(book.document.missing) for book in books)
    return f"; of {count:,} the text lacks parts of the file" if count else ""


def without_beginnings(books: Sequence[Book], reporter: Reporter) -> list[Book]:
    """The books, of a text that has grown only the longest; reports what is left out."""
    kept = []
    for book in books:
        longer = _grown(book, books)
        if longer is None:
            kept.append(book)
        else:
            beginning = f"{_label(book)} is the beginning of {_label(longer)}"
            reporter.warn(f"esa: left out: {beginning}")
    return kept


def _grown(book: Book, books: Sequence[Book]) -> Book | None:
    """The longest of the books with the same source or name whose text begins with this one's."""
    mine = book.document
    longer = [
        other
        for other in books
        if (other.document.source == mine.source or other.document.name == mine.name)
        and len(other.document.text) > len(mine.text)
        and other.document.text.startswith(mine.text)
    ]
    return max(longer, key=lambda other: len(other.document.text), default=None)


def _label(book: Book) -> str:
    return f"{book.document.name} ({book.entry.id if book.entry else ''})"


def numbered_lines(stream: IO[Any]) -> Iterator[tuple[int, Line]]:
    """Number and text of every line that is not blank, without waiting for the next; an error in
    place of a text that is not UTF-8, so that the lines after it are still asked."""
    for number, line in enumerate(getattr(stream, "buffer", stream), 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except AttributeError:
            text = line
        except UnicodeDecodeError:
            hint = "convert the questions first, as with iconv"
            yield number, UsageError(f"line {number} must be UTF-8", hint)
            continue
        if text.strip():
            yield number, text.rstrip("\r\n")
