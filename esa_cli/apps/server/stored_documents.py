"""The documents of the library that requests may name: what `esa ask --library` searches, each text
once."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from esa_cli.documents.document import Document, read_document
from esa_cli.qa.ingestion.archive import restored
from esa_cli.qa.ingestion.library_texts import LibraryText, library_texts
from esa_cli.storage.library import Library
from esa_cli.system.text import text_bytes

STORED = "library:"
"""Begins their ids; the entry's id follows, or 12 digits of a file that no model has read."""


class StoredText(NamedTuple):
    """A text of the library, and the id by which requests may name it."""

    id: str
    text: LibraryText

    def __str__(self) -> str:
        """Another for another text of the same file."""
        return f"{self.id} {self.text.digest}"


class StoredDocuments:
    """Finds texts of a library by the ids of their documents."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def texts(self) -> dict[str, StoredText]:
        """Texts by id, stored documents first, in the order in which they were stored. Raises
        LibraryError, DiskError."""
        found = (StoredText(_id(one), one) for one in library_texts(self._library).texts)
        return {one.id: one for one in found}

    def document(self, one: StoredText) -> Document:
        """Its text. Raises LibraryError: it is damaged. DocumentError: its file cannot be read."""
        if not one.text.entries:
            return read_document(one.text.path)
        entry = one.text.entries[0]
        return restored(self._library.text(entry), entry.marks, entry.provenance)


def _id(text: LibraryText) -> str:
    if text.entries:
        return STORED + text.entries[0].id
    return STORED + hashlib.blake2b(text_bytes(text.path), digest_size=6).hexdigest()
