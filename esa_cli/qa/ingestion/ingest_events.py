"""The observer of an ingest."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from esa_cli.documents.document import Document
    from esa_cli.errors import DiskError
    from esa_cli.qa.books import Book
    from esa_cli.system.progress import Progress


class IngestEvents:
    """Called while books are made. A subclass overrides what it wants to see; an exception raised
    in a method ends the ingest and propagates."""

    def found(self, book: Book) -> None:
        """The book is in the library: nothing is read."""

    def unread(self, document: Document, tokens: int) -> None:
        """The document is not read: answers come from its text alone, and nothing is stored."""

    def started(self, document: Document, tokens: int, stored_bytes: int | None) -> None:
        """The document will be read.

        Args:
            tokens: of the document and of the prompt before it.
            stored_bytes: about what it will take in the library; None: it stays in memory.
        """

    def progress(self, done: int, total: int) -> None:
        """So many tokens have been read, of so many."""

    def unstored(self, document: Document, error: DiskError) -> bool:
        """The library's disk has no room for what is read of the document. Returns whether it is
        then read into memory; else the error is raised."""
        return False

    def waiting(self) -> None:
        """Another process reads the same document into the library, and this one waits for it."""

    def finished(self) -> None:
        """Reading or waiting has ended, with a book or with an exception."""


class ProgressEvents(IngestEvents):
    """Hands the progress of all ingests to a function."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress

    def progress(self, done: int, total: int) -> None:
        if self._progress:
            self._progress(done, total)
