"""Documents and books that stay open from one set of questions to the next.

    LATER   books that stay for later sets, besides those of the present one
    most    of one set so far: so many were open together, so as many may stay

A text is held once, whichever files it stands in. Where memory is short, only the books of the
present set stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from esa_cli.documents.document import Document, read_document
from esa_cli.errors import ResourceError
from esa_cli.qa.reply import Asker

LATER = 8


class Held:
    """What is open while sets of paths are asked about, one after the other.

    Args:
        sets: the paths of each, in the order in which `next` comes to them.
    """

    def __init__(self, asker: Asker, sets: Sequence[Sequence[str]]) -> None:
        self.asker, self._sets, self._at, self._most = asker, sets, -1, 0
        self._documents: dict[str, Document] = {}
        self._books: dict[str, Any] = {}
        self._uses: dict[str, list[int]] = {}
        for at in reversed(range(len(sets))):
            for path in set(sets[at]):
                self._uses.setdefault(path, []).append(at)

    def next(self) -> None:
        """Goes to the next set, and lets go of what it and those after it do not need."""
        self._at += 1
        present = set(self._sets[self._at])
        for path in present:
            self._uses[path].pop()
        needed = sorted(
            (self._uses[path][-1], path)
            for path in self._documents
            if path not in present and self._uses[path]
        )
        self._most = max(self._most, len(present))
        room = max(LATER, self._most - len(present))
        self._keep(present | {path for _, path in needed[:room]})

    def _keep(self, paths: set[str]) -> bool:
        """Lets go of all but these; whether a book went."""
        before = len(self._books)
        self._documents = {path: one for path, one in self._documents.items() if path in paths}
        texts = {one.text for one in self._documents.values()}
        self._books = {text: book for text, book in self._books.items() if text in texts}
        return len(self._books) < before

    def read(self, path: str) -> Document:
        """The document, read if it is not open. Raises DocumentError."""
        if path not in self._documents:
            self._documents[path] = read_document(path)
        return self._documents[path]

    def book(self, document: Document) -> Any:
        """Its book, made if there is none. Raises ResourceError, LibraryError."""
        if document.text not in self._books:
            try:
                self._books[document.text] = self.asker.ingest(document)
            except ResourceError:
                if not self._keep(set(self._sets[self._at])):
                    raise
                self._books[document.text] = self.asker.ingest(document)
        return self._books[document.text]
