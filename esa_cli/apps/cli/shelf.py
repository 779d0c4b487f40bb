"""The books of the library that a model can be asked about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from esa_cli.apps.cli.terminal import Reporter
from esa_cli.errors import UsageError

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa
    from esa_cli.qa.ingest import Book
    from esa_cli.storage.library import Library


def shelf(esa: Esa, library: Library, reporter: Reporter) -> list[Book]:
    """Every book of the library that this model and method can ask about, in the order in which
    they were read; of a text that has grown the longest. Says what is left out.

    Raises:
        UsageError: there is none.
    """
    from esa_cli.storage.library import LibraryError

    books = []
    # Not the last used first: asking uses them, and the next answer would come of another order.
    for entry in sorted(library.entries(), key=lambda entry: (entry.created, entry.key)):
        try:
            books.append(esa.stored(entry))
        except (UsageError, LibraryError) as error:
            reporter.warn(f"esa: left out: {error.message}")
    if not books:
        raise UsageError("the library has no document for this preset", "`esa ingest` reads one")
    kept = []
    for book in books:
        longer = _grown(book, books)
        if longer is None:
            kept.append(book)
        else:
            beginning = f"{_called(book)} is the beginning of {_called(longer)}"
            reporter.warn(f"esa: left out: {beginning}")
    return kept


def _grown(book: Book, books: Sequence[Book]) -> Book | None:
    """The longest of the books that has the same source or name and goes on where this one ends."""
    mine = book.document
    longer = [
        other
        for other in books
        if (other.document.source == mine.source or other.document.name == mine.name)
        and len(other.document.text) > len(mine.text)
        and other.document.text.startswith(mine.text)
    ]
    return max(longer, key=lambda other: len(other.document.text), default=None)


def _called(book: Book) -> str:
    return f"{book.document.name} ({book.entry.id if book.entry else ''})"
