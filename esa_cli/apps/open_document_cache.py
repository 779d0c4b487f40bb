"""Keeps documents open from one question to the next, for batch runs and servers.

Files with the same text share one opened document, a `Book`. A changed file is read again. If
memory is short, the least recently used documents that the question does not need are closed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING

from esa_cli.documents.document import Document, read_document
from esa_cli.errors import DiskError, ResourceError
from esa_cli.system.files import compute_file_stamp
from esa_cli.system.progress import Progress

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa
    from esa_cli.qa.finding.passage_finder import Book

MAX_OPEN = 16
"""How many documents stay open although the current question does not need them."""
Stamp = tuple[int, int] | None


class OpenDocumentCache:
    """A cache of documents, by their paths, and of opened documents (`Book`), by their texts. Any
    thread may call `read_document`, but only one thread may call `open_document`."""

    def __init__(self, esa: Esa) -> None:
        self.esa = esa
        self.needed: Collection[str] = ()
        """Paths of the documents of the current question, which must stay open."""
        self._pinned = set[str]()
        self._documents: dict[str, tuple[Stamp, Document]] = {}
        """The stamp and the document of each path, the least recently used path first."""
        self._books: dict[tuple[str, bool], Book] = {}
        """Books by their text and by whether the book has been ingested."""
        self._lock = threading.RLock()

    def keep_document_open(self, book: Book) -> None:
        """Keeps a document open until the cache is deleted, but reads a changed file again."""
        document, stamp = book.document, None
        with suppress(OSError, ValueError):
            if (
                document.stamp is None
                or compute_file_stamp(document.source) == document.stamp != ""
            ):
                stamp = _get_file_time_and_size(document.source)
        self._documents[document.source] = stamp, document
        self._books[document.text, True] = book
        self._pinned.add(document.source)

    def read_document(self, path: str, load: Callable[[str], Document] = read_document) -> Document:
        """Returns the document at a path; a changed file is read again. Raises DocumentError."""
        with self._lock:
            stamp, known = _get_file_time_and_size(path), self._documents.get(path)
            document = known[1] if known and known[0] == stamp else load(path)
            self._documents.pop(path, None)
            self._documents[path] = stamp, document
            self._drop_books_of_closed_documents()
            most = MAX_OPEN + len(self._pinned)
            while len(self._documents) > most and self._close_least_recent_document():
                pass
            return document

    def open_document(
        self, document: Document, progress: Progress | None = None, *, must_ingest: bool = True
    ) -> Book:
        """Opens a document; each text is opened only once. Unless it `must_ingest`, a document that
        has not been ingested is only opened if its words are enough to answer questions. An
        exception of `progress` ends the ingestion. Raises ResourceError, LibraryError."""
        is_read = must_ingest or not self.esa.answers_unread or (document.text, True) in self._books
        book = self._books.get((document.text, is_read))
        while book is None:
            try:
                ingest = self.esa.ingest
                book = ingest(document, progress) if is_read else self.esa.open(document)
            except DiskError:
                raise
            except ResourceError:
                if not self._close_least_recent_document():
                    raise
        with self._lock:
            self._books[document.text, is_read] = book
        return book

    def close_document(self, path: str) -> None:
        """Forgets the document that has the key `path`, if it is open. Any thread may call it."""
        with self._lock:
            self._documents.pop(path, None)
            self._drop_books_of_closed_documents()

    def _close_least_recent_document(self) -> bool:
        """Closes the least recently used document that may be closed; returns False without one."""
        with self._lock:
            kept = self._pinned.union(self.needed)
            path = next((path for path in self._documents if path not in kept), None)
            if path is not None:
                del self._documents[path]
                self._drop_books_of_closed_documents()
            return path is not None

    def _drop_books_of_closed_documents(self) -> None:
        texts = {document.text for _, document in self._documents.values()}
        self._books = {key: book for key, book in self._books.items() if key[0] in texts}


def _get_file_time_and_size(path: str) -> Stamp:
    """Returns the modification time and size of a file, or None if the file cannot be inspected."""
    with suppress(OSError, ValueError):
        file_status = os.stat(path)
        return file_status.st_mtime_ns, file_status.st_size
    return None
