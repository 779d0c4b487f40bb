"""Keeps documents open from one question to the next, for batch runs and servers.

Files with the same text share one `Book`, an opened document. A file that has changed is read
again. If memory is short, the least recently used documents are closed, but not those that the
current question needs.
"""

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


class OpenBookCache:
    """Keeps documents by their paths, and `Book`s, documents opened for the model, by their texts.
    Any thread may call `read_document`, but only one thread `open_book`."""

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

    def keep_book_open(self, book: Book) -> None:
        """Keeps an opened document as long as this cache; if its file changes, it is read again."""
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
        """Returns the document at a path, which is read again if its file has changed. Raises
        DocumentError."""
        with self._lock:
            stamp, known = _get_file_time_and_size(path), self._documents.get(path)
            document = known[1] if known and known[0] == stamp else load(path)
            self._documents.pop(path, None)
            self._documents[path] = stamp, document
            self._close_unused_books()
            most = MAX_OPEN + len(self._pinned)
            while len(self._documents) > most and self._close_oldest_document():
                pass
            return document

    def open_book(
        self, document: Document, progress: Progress | None = None, *, read: bool = True
    ) -> Book:
        """Opens a document for questions, once for each text. Raises ResourceError, LibraryError.

        Args:
            progress: called during ingestion; an exception of this function ends the ingestion.
            read: whether the document must be ingested. If False, a document that has not been
                ingested is opened if its words are enough to answer questions."""
        is_read = read or not self.esa.answers_unread or (document.text, True) in self._books
        book = self._books.get((document.text, is_read))
        while book is None:
            try:
                ingest = self.esa.ingest
                book = ingest(document, progress) if is_read else self.esa.open(document)
            except DiskError:
                raise
            except ResourceError:
                if not self._close_oldest_document():
                    raise
        with self._lock:
            self._books[document.text, is_read] = book
        return book

    def _close_oldest_document(self) -> bool:
        """Closes the least recently used unneeded document; returns False if there is none."""
        with self._lock:
            kept = self._pinned.union(self.needed)
            path = next((path for path in self._documents if path not in kept), None)
            if path is not None:
                del self._documents[path]
                self._close_unused_books()
            return path is not None

    def _close_unused_books(self) -> None:
        texts = {document.text for _, document in self._documents.values()}
        self._books = {key: book for key, book in self._books.items() if key[0] in texts}


def _get_file_time_and_size(path: str) -> Stamp:
    """Returns the modification time and size of a file, or None if the file cannot be inspected."""
    with suppress(OSError, ValueError):
        file_status = os.stat(path)
        return file_status.st_mtime_ns, file_status.st_size
    return None
