"""The documents of the library that requests may name, each text once."""

from __future__ import annotations

from esa_cli.apps.server.http_errors import ApiError
from esa_cli.documents.document import Document
from esa_cli.qa.ingestion.archive import restored
from esa_cli.storage.library import Entry, Library

STORED = "library:"
"""Begins their ids; the entry's id follows."""


class StoredDocuments:
    """Finds entries of a library by the ids of their documents."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def entries(self) -> dict[str, Entry]:
        """Undamaged entries by id, in the order in which they were stored. Raises LibraryError."""
        if not self._library.exists:
            return {}
        once: dict[str, Entry] = {}
        for entry in sorted(self._library.entries(), key=lambda one: (one.created, one.key)):
            if not entry.damage:
                once.setdefault(entry.text_sha256, entry)
        return {STORED + entry.id: entry for entry in once.values()}

    def document(self, id: str) -> Document:
        """Its text, as it was stored. Raises ApiError 404: there is none. LibraryError."""
        entry = self.entries().get(id)
        if entry is None:
            raise ApiError(404, f"there is no document {id}", "documents", "document_not_found")
        return restored(self._library.text(entry), entry.marks, entry.provenance)
