"""Documents and books that stay open from one question to the next, for batch and server.

Files with the same text share one book. A file that has changed is read again. Where memory is
short, documents that the present question does not need are closed, the least recently used first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from esa_cli.documents.document import Document, read_document
from esa_cli.errors import DiskError, ResourceError
from esa_cli.system.files import file_stamp as text_stamp
from esa_cli.system.progress import Progress

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa

MAX_OPEN = 16
"""Documents that stay open although the present question does not need them."""
FileStamp = tuple[int, int] | None
"""A file's time of change and length; None for a file that cannot be seen."""


def file_stamp(path: str) -> FileStamp:
    """Returns a value that differs where the file has changed."""
    try:
        facts = os.stat(path)
    except (OSError, ValueError):
        return None
    return facts.st_mtime_ns, facts.st_size


class OpenBooks:
    """Open documents by path, and open books by text; `read` and `book` belong to one thread."""

    def __init__(self, asker: Esa) -> None:
        self.asker = asker
        self.needed: Collection[str] = ()
        """Paths of the present question's documents, which cannot be closed."""
        self._pinned = set[str]()
        self._documents: dict[str, tuple[FileStamp, Document]] = {}
        """Stamp and document by path, the least recently used first."""
        self._books: dict[tuple[str, bool], Any] = {}
        """Books by text, and by whether the model has read it."""

    def pin(self, book: Any) -> None:
        """Opens a book that is never closed; its document is read again once its file changes."""
        document, stamp = book.document, None
        with suppress(OSError, ValueError):
            if document.stamp is None or text_stamp(document.source) == document.stamp != "":
                stamp = file_stamp(document.source)
        self._documents[document.source] = stamp, document
        self._books[document.text, True] = book
        self._pinned.add(document.source)

    def find(self, path: str) -> Document | None:
        """Returns the document if it is open and unchanged. Any thread may call this."""
        stamp, document = self._documents.get(path, (None, None))
        return document if stamp == file_stamp(path) else None

    def read(self, path: str, load: Callable[[str], Document] = read_document) -> Document:
        """Returns the document, loaded unless it is open and unchanged. Raises DocumentError."""
        stamp = file_stamp(path)
        document = self.find(path) or load(path)
        self._documents.pop(path, None)
        self._documents[path] = stamp, document
        self._close_unused_books()
        while len(self._documents) > MAX_OPEN + len(self._pinned) and self._close_document():
            pass
        return document

    def book(
        self, document: Document, progress: Progress | None = None, *, read: bool = True
    ) -> Any:
        """Returns the book of an open document. Raises ResourceError, LibraryError.

        Args:
            progress: called during ingestion; its exceptions end the ingestion and pass through.
            read: False: a book that the model has not read will do, where answers can be had so.
        """
        text = document.text
        if not read and self.asker.answers_unread and (text, True) not in self._books:
            if (text, False) not in self._books:
                self._books[text, False] = self.asker.open(document)
            return self._books[text, False]
        while (text, True) not in self._books:
            try:
                self._books[text, True] = self.asker.ingest(document, progress)
            except DiskError:
                raise
            except ResourceError:
                if not self._close_document():
                    raise
        return self._books[text, True]

    def _close_document(self) -> bool:
        """Closes a document that is not needed, with its book. Returns False if all are needed."""
        kept = self._pinned.union(self.needed)
        path = next((path for path in self._documents if path not in kept), None)
        if path is not None:
            del self._documents[path]
            self._close_unused_books()
        return path is not None

    def _close_unused_books(self) -> None:
        texts = {document.text for _, document in self._documents.values()}
        self._books = {key: book for key, book in self._books.items() if key[0] in texts}
