"""The books whose rows are in a session's cache."""

from __future__ import annotations

from collections.abc import Sequence

from esa_cli.errors import UsageError
from esa_cli.qa.answering.lazy_session import LazySession
from esa_cli.qa.books import Book


class CachedBooks:
    """Puts the rows of books into the cache of a session, unless they are there."""

    def __init__(self, lazy: LazySession) -> None:
        self._lazy = lazy
        self._books: list[Book] = []

    def forget(self) -> None:
        """The cache is used for something else."""
        self._books = []

    def use(self, books: Sequence[Book]) -> None:
        """Puts their rows into the cache. Raises UsageError: one has not been read."""
        if [id(mine) for mine in self._books] == [id(yours) for yours in books]:
            return
        self._books = []
        prefilled = [book.prefilled for book in books if book.prefilled]
        if len(prefilled) < len(books):
            raise UsageError("a document has not been read", "ingest it first")
        self._lazy.session.open(prefilled)
        self._books = list(books)
