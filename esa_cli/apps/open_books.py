"""Documents and books that stay open from one question to the next, for batch and server.

A text is one book, whichever files contain it. A file that has changed is read again. Where memory
is short, documents that the present question does not need are closed, one at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from esa_cli.documents.document import Document, read_document
from esa_cli.errors import DiskError, ResourceError
from esa_cli.system.progress import Progress

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa

MOST_RECENT = 16
"""Documents that stay open after their question, the latest used."""
FileStamp = tuple[int, int] | None
"""A file's time of change and length; None where it cannot be seen, and reading it says why."""


def file_stamp(path: str) -> FileStamp:
    try:
        facts = os.stat(path)
    except (OSError, ValueError):
        return None
    return facts.st_mtime_ns, facts.st_size


class OpenBooks:
    """Open documents, the longest unused of which is closed first.

    Args:
        fixed: books by text that are never closed.
    """

    def __init__(self, asker: Esa, fixed: Mapping[str, Any] | None = None) -> None:
        self.asker, self._fixed = asker, fixed or {}
        self._needed: Collection[str] = ()
        self._files: dict[str, tuple[FileStamp, Document]] = {}
        """Stamp and document by path, in the order in which they are closed."""
        self._books: dict[tuple[str, bool], Any] = {}
        """By text, and whether the model has read it."""

    def need(self, paths: Collection[str], later: Collection[str] | None = None) -> None:
        """Sets the documents of the present question, which alone cannot be closed, and closes
        those that no question of `later` needs; None: any may be."""
        self._needed = paths
        texts = {text for text, _ in self._books} | self._fixed.keys()
        self._files = {
            path: (stamp, document)
            for path, (stamp, document) in self._files.items()
            if document.text in texts and (later is None or path in paths or path in later)
        }
        self._close_unused()
        self._close_surplus()

    def read(self, path: str, load: Callable[[str], Document] = read_document) -> Document:
        """The document, loaded unless it is open and unchanged. Raises DocumentError."""
        stamp, known = file_stamp(path), self._files.pop(path, None)
        if known is None or known[0] != stamp:
            del known
            self._close_unused()
            known = stamp, load(path)
        self._files[path] = known
        return known[1]

    def book(
        self, document: Document, progress: Progress | None = None, *, read: bool = True
    ) -> Any:
        """The book of an open document. Raises ResourceError, LibraryError.

        Args:
            progress: called during ingestion; what it raises ends that and passes through.
            read: False: one that was not read will do, where answers can do without.
        """
        text = document.text
        if text in self._fixed:
            return self._fixed[text]
        is_read = read or not self.asker.answers_unread or (text, True) in self._books
        if not is_read and (text, False) not in self._books:
            self._books[text, False] = self.asker.open(document)
        while (text, is_read) not in self._books:
            self._close_surplus()
            try:
                self._books[text, True] = self.asker.ingest(document, progress)
            except DiskError:
                raise
            except ResourceError:
                if not self._close_one():
                    raise
        return self._books[text, is_read]

    def _close_surplus(self) -> None:
        while len(self._files) > MOST_RECENT and self._close_one():
            pass

    def _close_one(self) -> bool:
        """Closes a document that is not needed; True if there was one."""
        path = next((path for path in self._files if path not in self._needed), None)
        if path is not None:
            del self._files[path]
            self._close_unused()
        return path is not None

    def _close_unused(self) -> None:
        texts = {document.text for _, document in self._files.values()}
        self._books = {key: book for key, book in self._books.items() if key[0] in texts}
