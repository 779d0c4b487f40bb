"""Books that are asked together: each text once, with a name of its own, placed in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from esa_cli.documents.document import Document
from esa_cli.qa.ingest import Book
from esa_cli.storage.prefilled_document import text_rows


@dataclass(frozen=True)
class PlacedBook:
    """A book with its place in the cache.

    Args:
        document: with a name that no other book of the question has. spans: (n, 2) first and last
            character of each token of its text. rows: the cached tokens of its text.
    """

    document: Document
    spans: Tensor
    rows: range


def distinct(books: Sequence[Book]) -> list[Book]:
    """The books, each text once: a copy would take selected tokens from other texts."""
    out: dict[str, Book] = {}
    for book in books:
        out.setdefault(book.document.text, book)
    return list(out.values())


def placed(books: Sequence[Book]) -> list[PlacedBook]:
    """The books in the order of the question, concatenated."""
    rows = text_rows([book.held for book in books])
    return [
        PlacedBook(replace(book.document, name=name), book.spans, at)
        for book, name, at in zip(books, _told_apart(books), rows, strict=True)
    ]


def _told_apart(books: Sequence[Book]) -> list[str]:
    """A name for each book: its own; its source, where another has the same; and where that is the
    same, too (two versions of one file), with its id in the library or its number."""
    names = [book.document.name for book in books]
    sources = [
        book.document.source if names.count(name) > 1 else name
        for book, name in zip(books, names, strict=True)
    ]
    return [
        f"{name} ({book.entry.id if book.entry else at})" if sources.count(name) > 1 else name
        for at, (book, name) in enumerate(zip(books, sources, strict=True), 1)
    ]
