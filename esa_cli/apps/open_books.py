"""Documents and books that stay open from one question to the next, for batch and server.

Files with the same text share one book. A file that has changed is read again. Where memory is
short, documents that the present question does not need are closed, the least recently used first.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from esa_cli.documents.document import Document, read_document
from esa_cli.errors import DiskError, ResourceError
from esa_cli.system.files import file_stamp
from esa_cli.system.progress import Progress

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa

MAX_OPEN = 16
"""Documents that stay open although the present question does not need them."""
Stamp = tuple[int, int] | None


class OpenBooks:
    """Open documents by path, and open books by text. Any thread may read documents; one thread
    alone opens books."""

    def __init__(self, asker: Esa) -> None:
        self.asker = asker
        self.needed: Collection[str] = ()
        """Paths of the present question's documents, which cannot be closed."""
        self._pinned = set[str]()
        self._documents: dict[str, tuple[Stamp, Document]] = {}
        """Stamp and document by path, the least recently used first."""
        self._books: dict[tuple[str, bool], Any] = {}
        """Books by text, and by whether the model has read it."""
        self._lock = threading.RLock()

    def pin_book(self, book: Any) -> None:
        """Opens a book that is never closed; its document is read again once its file changes."""
        document, stamp = book.document, None
        with suppress(OSError, ValueError):
            if document.stamp is None or file_stamp(document.source) == document.stamp != "":
                stamp = _stamp_file(document.source)
        self._documents[document.source] = stamp, document
        self._books[document.text, True] = book
        self._pinned.add(document.source)

    def read_document(self, path: str, load: Callable[[str], Document] = read_document) -> Document:
        """Returns the document, loaded unless it is open and unchanged. Raises DocumentError."""
        with self._lock:
            stamp, known = _stamp_file(path), self._documents.get(path)
            document = known[1] if known and known[0] == stamp else load(path)
            self._documents.pop(path, None)
            self._documents[path] = stamp, document
            self._close_unused_books()
            while len(self._documents) > MAX_OPEN + len(self._pinned) and self._close_document():
                pass
            return document

    def open_book(
        self, document: Document, progress: Progress | None = None, *, read: bool = True
    ) -> Any:
        """Returns the book of an open document. Raises ResourceError, LibraryError.

        Args:
            progress: called during ingestion; its exceptions end the ingestion and pass through.
            read: False: a book that the model has not read will do, where answers can be had so.
        """
        is_read = read or not self.asker.answers_unread or (document.text, True) in self._books
        book = self._books.get((document.text, is_read))
        while book is None:
            try:
                ingest = self.asker.ingest
                book = ingest(document, progress) if is_read else self.asker.open(document)
            except DiskError:
                raise
            except ResourceError:
                if not self._close_document():
                    raise
        with self._lock:
            self._books[document.text, is_read] = book
        return book

    def _close_document(self) -> bool:
        """Closes a document that is not needed, with its book. Returns False if all are needed."""
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


def _stamp_file(path: str) -> Stamp:
    """Returns a value that differs where the file has changed; None for a file that cannot be
    seen."""
    with suppress(OSError, ValueError):
        facts = os.stat(path)
        return facts.st_mtime_ns, facts.st_size
    return None
