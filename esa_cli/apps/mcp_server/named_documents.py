"""The documents that a name of a request means: stored ones, synchronised files, allowed files.

What the library has may always be read; a file outside only where `AllowedDocuments` lets it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from esa_cli.apps.server.allowed_documents import AllowedDocuments
from esa_cli.apps.server.document_listing import allowed_files
from esa_cli.apps.server.http_errors import ApiError
from esa_cli.documents.document import Document, read_document
from esa_cli.errors import DocumentError, EsaError, UsageError
from esa_cli.qa.ingestion.library_texts import LibraryTexts, library_texts
from esa_cli.storage.library import Entry, Library
from esa_cli.system.text import text_digest

if TYPE_CHECKING:
    from esa_cli.qa.books import Book

MOST_FILES = 2000
"""Files of allowed folders that are listed."""


@dataclass(frozen=True)
class NamedDocument:
    """A document, and its entry in the library if it is stored there."""

    document: Document
    entry: Entry | None = None

    @property
    def id(self) -> str:
        """The name that means it again: its id in the library, else its path."""
        return self.entry.id if self.entry else self.document.source


class DocumentNames:
    """Finds documents by their names in requests.

    Args:
        allowed: the files outside the library that requests may name.
    """

    def __init__(self, library: Library, allowed: AllowedDocuments) -> None:
        self.library, self.allowed = library, allowed

    @property
    def folders(self) -> list[str]:
        return [str(folder) for folder in self.allowed.allowed]

    def texts(self) -> LibraryTexts:
        """What the library can be asked about now. Raises LibraryError, DiskError."""
        return library_texts(self.library)

    def entries(self) -> list[Entry]:
        """Stored documents, each text once, the last used first; damaged ones last."""
        return stored_entries(self.texts())

    def synced(self) -> list[str]:
        """Paths of the files of the library that no model has read."""
        return [one.path for one in self.texts().texts if not one.entries]

    def files(self, left_out: list[str]) -> list[str]:
        """Paths of the files of allowed folders that can be read, at most `MOST_FILES`."""
        found = (str(path) for path in allowed_files(self.allowed, left_out))
        return list(islice(found, MOST_FILES))

    def find(self, name: str) -> NamedDocument:
        """The document of that name: by its id in the library, else a file as it is now, else by
        its name or path in the library.

        Raises:
            UsageError: there is none, several, or it may not be read here.
            DocumentError: it cannot be read. LibraryError: it is damaged.
        """
        matches = self._matches(name)
        if not any(entry.key.startswith(name) for entry in matches):
            path = self._file(name)
            if path is not None:
                return NamedDocument(read_document(path))
        entry = _one(name, matches)
        if entry is None:
            raise self._refusal(name)
        return NamedDocument(self.stored(entry), entry)

    def entry(self, name: str) -> Entry | None:
        """The stored document whose id begins so, or whose name or path it is. Raises UsageError:
        there are several."""
        return _one(name, self._matches(name))

    def stored(self, entry: Entry) -> Document:
        """A document of the library, as it was stored. Raises LibraryError: it is damaged."""
        from esa_cli.qa.ingestion.archive import restored

        text, known = self.library.text(entry), entry.provenance
        return restored(text, entry.marks, {**known, "source": path_of(entry) or known["source"]})

    def ids(self, books: Sequence[Book]) -> dict[str, tuple[str, str | None]]:
        """Id and path of each book, by the name that passages call it."""
        from esa_cli.qa.books import place_books

        stored = {entry.text_sha256: entry for entry in self.entries() if not entry.damage}
        found = {}
        for book, placed in zip(books, place_books(books), strict=True):
            entry = book.entry or stored.get(text_digest(book.document.text))
            file = path_of(entry) if entry else os.path.abspath(book.document.source)
            found[placed.document.name] = (entry.id if entry else book.document.source, file)
        return found

    def _matches(self, name: str) -> list[Entry]:
        if not self.library.exists:
            return []
        former = {entry.key for entry in self.texts().former}
        return _each_text_once([e for e in self.library.matches(name) if e.key not in former])

    def _file(self, name: str) -> str | None:
        """The path of an allowed file, or of a synchronised one. Raises UsageError: several."""
        with suppress(ApiError):
            return str((self.allowed.find([name]) or [])[0])
        synced = [one for one in self.synced() if name in (one, os.path.basename(one))]
        if len(synced) > 1:
            raise UsageError(f"{name} fits {len(synced)} files", "give the path of one")
        return synced[0] if synced else None

    def _refusal(self, name: str) -> EsaError:
        if not self.allowed.allowed:
            return UsageError(
                f"no document {name} in the library, and no other file may be read here",
                "`list` shows what there is; `esa mcp --allow FOLDER` allows a folder's files",
            )
        hint = f"`list` shows what there is; files may be in {', '.join(self.folders)}"
        try:
            self.allowed.find([name])
        except ApiError as error:
            return DocumentError(error.message, hint)
        return DocumentError(f"there is no document {name}", hint)


def path_of(entry: Entry) -> str | None:
    """The path of the file that a stored document was read from."""
    return entry.provenance.get("path") or None


def stored_entries(library: LibraryTexts) -> list[Entry]:
    """One document of each text, the last used first; damaged ones last."""
    good = [max(one.entries, key=lambda entry: entry.used) for one in library.texts if one.entries]
    return [*sorted(good, key=lambda one: (-one.used, one.key)), *library.damaged]


def _one(name: str, found: Sequence[Entry]) -> Entry | None:
    if len(found) > 1:
        ids = ", ".join(f"{one.id} ({one.name})" for one in found[:5])
        raise UsageError(f"{name} fits {len(found)} documents: {ids}", "give an id")
    return found[0] if found else None


def _each_text_once(entries: Sequence[Entry]) -> list[Entry]:
    good = {entry.text_sha256: entry for entry in reversed(entries) if not entry.damage}
    return [*reversed(good.values()), *(entry for entry in entries if entry.damage)]
