"""The documents that a name in a request means: stored ones, synchronised files, allowed files.

What the library has may always be read; a file outside only where `AllowedDocuments` lets it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from esa_cli.apps.server.allowed_documents import AllowedDocuments, allowed_files
from esa_cli.apps.server.wire import ApiError
from esa_cli.documents.document import Document, read_document
from esa_cli.errors import DocumentError, EsaError, UsageError
from esa_cli.qa.ingestion.library_texts import LibraryTexts, library_texts
from esa_cli.storage.library import Entry, Library
from esa_cli.system.text import text_digest

if TYPE_CHECKING:
    from esa_cli.qa.books import Book

MOST_FILES = 2000
"""Files of allowed folders that are listed."""


class NamedDocument(NamedTuple):
    """A document, the id that means it again, and its entry if it is stored in the library."""

    document: Document
    id: str
    entry: Entry | None = None


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

    def files(self, left_out: list[str]) -> list[str]:
        """Paths of the readable files of allowed folders, at most `MOST_FILES`."""
        return list(islice(map(str, allowed_files(self.allowed, left_out)), MOST_FILES))

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
                document = read_document(path)
                return NamedDocument(document, document.source)
        entry = _only(name, matches)
        if entry is None:
            raise self._refusal(name)
        return NamedDocument(self.stored(entry), entry.id, entry)

    def entry(self, name: str) -> Entry | None:
        """The stored document whose id begins so, or whose name or path it is. Raises UsageError:
        there are several."""
        return _only(name, self._matches(name))

    def stored(self, entry: Entry) -> Document:
        """A document of the library, as it was stored. Raises LibraryError: it is damaged."""
        from esa_cli.qa.ingestion.library_texts import restored

        text, known = self.library.text(entry), entry.provenance
        return restored(text, entry.marks, {**known, "source": path_of(entry) or known["source"]})

    def ids(self, books: Sequence[Book]) -> dict[str, tuple[str, str | None]]:
        """Id and path of each book, by the name that its passages have."""
        from esa_cli.qa.books import place_books

        stored = {e.text_sha256: e for e in stored_entries(self.texts()) if not e.damage}
        ids = dict[str, tuple[str, str | None]]()
        for book, placed in zip(books, place_books(books), strict=True):
            source = book.document.source
            entry = book.entry or stored.get(text_digest(book.document.text))
            known = (entry.id, path_of(entry)) if entry else (source, os.path.abspath(source))
            ids[placed.document.name] = known
        return ids

    def _matches(self, name: str) -> list[Entry]:
        """Stored documents of that name, each text once; damaged ones last."""
        if not self.library.exists:
            return []
        former = {entry.key for entry in self.texts().former}
        entries = [e for e in self.library.matches(name) if e.key not in former]
        good = {entry.text_sha256: entry for entry in reversed(entries) if not entry.damage}
        return [*reversed(good.values()), *(entry for entry in entries if entry.damage)]

    def _file(self, name: str) -> str | None:
        """The path of an allowed file, or of a synchronised one. Raises UsageError: several."""
        with suppress(ApiError):
            return str((self.allowed.find([name]) or [])[0])
        synced = [text.path for text in self.texts().texts if not text.entries]
        paths = [path for path in synced if name in (path, os.path.basename(path))]
        if len(paths) > 1:
            raise UsageError(f"{name} fits {len(paths)} files", "give the path of one")
        return paths[0] if paths else None

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
    good = [max(text.entries, key=lambda e: e.used) for text in library.texts if text.entries]
    return [*sorted(good, key=lambda e: (-e.used, e.key)), *library.damaged]


def _only(name: str, entries: Sequence[Entry]) -> Entry | None:
    if len(entries) > 1:
        ids = ", ".join(f"{entry.id} ({entry.name})" for entry in entries[:5])
        raise UsageError(f"{name} fits {len(entries)} documents: {ids}", "give an id")
    return entries[0] if entries else None
