"""The documents that requests of `esa serve` and `esa mcp` may name: documents of the command line,
files below the allowed folders, and texts of the library.

Links are resolved before the check: neither `..` nor a symbolic link leads out of a folder. A
refusal does not tell whether a file outside exists.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from esa_cli.apps.open_books import OpenBooks
from esa_cli.apps.server.wire import ApiError
from esa_cli.documents.document import Document, read_document
from esa_cli.documents.readers.text_builder import first_names
from esa_cli.documents.sources import FoundFiles, find_any
from esa_cli.errors import DiskError, DocumentError, LibraryError
from esa_cli.qa.ingestion.library_texts import FileIndexing, LibraryText, library_texts, restored
from esa_cli.storage.library import Library
from esa_cli.system.progress import Progress
from esa_cli.system.text import has_lone_surrogate, text_bytes

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa

STORED = "library:"
"""Begins ids of the library; the entry's id follows, or 12 digits for a file without an entry."""


@dataclass(frozen=True)
class NamedDocument:
    """A document that requests may name by its `id`: one that was given on the command line, a file
    below an allowed folder, or a `text` of the library."""

    id: str
    path: str = ""
    text: LibraryText | None = None
    is_given: bool = False

    @property
    def key(self) -> str:
        """The path of a file, or else the id with a digest of the text."""
        return self.path or f"{self.id} {self.text.digest if self.text else ''}"


class OpenDocument(NamedTuple):
    """The book of a document, and the id by which requests may name it."""

    id: str
    book: Any


class AllowedDocuments:
    """The documents of one server, and their books.

    Args:
        fixed: books of the command line, for requests that name no documents.
        allowed: folders whose files requests may name. stored: they may name the library's texts.
        limit: maximum number of documents of a request that are opened; None: all.
    """

    def __init__(
        self,
        asker: Esa,
        fixed: Sequence[Any],
        allowed: Sequence[Path],
        library: Library | None = None,
        *,
        stored: bool = False,
        limit: int | None = None,
    ) -> None:
        self.asker, self.fixed = asker, list(fixed)
        self.allowed = [folder.resolve(strict=True) for folder in allowed]
        self.library, self.has_stored, self._limit = library, stored, limit
        self._books = OpenBooks(asker)
        self._given: dict[str, NamedDocument] = {}
        for number, book in enumerate(fixed, 1):
            id = f"esa:{number}"
            self._given[id] = NamedDocument(id, book.document.source, is_given=True)
            self._books.pin_book(book)

    def find(self, names: Sequence[str] | None) -> list[NamedDocument]:
        """Returns the documents of these names; None: all of the command line, or where there are
        none, of the library. Raises ApiError 400, 403, 404. LibraryError, DiskError."""
        if names is not None:
            find_stored_texts = cache(self.find_stored_texts)
            return [self._find_document(name, find_stored_texts) for name in names]
        documents = list((self._given or self.find_stored_texts()).values())
        if not documents:
            hint = 'name some, as {"documents": ["book.txt"]}'
            raise ApiError(400, f"no document: {hint}", "documents")
        return documents

    def _find_document(
        self, name: str, find_stored_texts: Callable[[], dict[str, NamedDocument]]
    ) -> NamedDocument:
        """Finds an id, else a file, else a name or path of the library."""
        if name in self._given:
            return self._given[name]
        if self.has_stored and name.startswith(STORED):
            if name in find_stored_texts():
                return find_stored_texts()[name]
            raise _refuse_missing(name)
        try:
            return NamedDocument(name, str(self._resolve(name)))
        except ApiError:
            for document in find_stored_texts().values():
                if document.text and name in (document.text.name, document.text.path):
                    return document
            raise

    def _resolve(self, name: str) -> Path:
        """Returns a file below an allowed folder, its links resolved. Raises ApiError 403, 404."""
        if not self.allowed:
            raise ApiError(403, "requests may not name documents here", "documents")
        is_inside = False
        for folder in self.allowed:
            # Suppressed are the errors of a loop of links, a zero byte, and too long a name.
            with suppress(OSError, ValueError, RuntimeError):
                path = (folder / name).resolve()
                if path.is_relative_to(folder):
                    is_inside = True
                    if path.is_file():
                        return path
        if is_inside:
            raise _refuse_missing(name)
        raise ApiError(403, f"{name} is not in a folder that requests may read", "documents")

    def find_stored_texts(self) -> dict[str, NamedDocument]:
        """Returns the texts of the library by id, if requests may name them. Raises LibraryError,
        DiskError."""
        if not self.has_stored or self.library is None:
            return {}
        found = {}
        for text in library_texts(self.library).texts:
            digits = hashlib.blake2b(text_bytes(text.path), digest_size=6).hexdigest()
            id = STORED + (text.entries[0].id if text.entries else digits)
            found[id] = NamedDocument(id, text=text)
        return found

    def open(
        self,
        named: Sequence[NamedDocument],
        progress: Progress | None = None,
        question: str = "",
        left_out: list[str] | None = None,
        *,
        read: bool | None = None,
        open_book: Callable[[Document], Any] | None = None,
    ) -> list[OpenDocument]:
        """Returns a book of each document, each text once; of too many documents those whose words
        fit the question best. Must be called by the worker's thread.

        Args:
            left_out: gets a line on each document that cannot be read, where others can be.
            read: whether the model reads unread documents; None: it does unless there are too many.
            open_book: opens a book in place of the server's `Esa`.

        Raises:
            DocumentError: none of the documents can be read. ResourceError.
        """
        lines = [] if left_out is None else left_out
        chosen, limit = list(named), len(named)
        given = [document for document in named if document.is_given]
        is_searched = self._limit is not None and len(named) - len(given) > self._limit
        if is_searched and self._limit is not None:
            chosen = [*given, *self._rank_documents(question, named, progress, lines)]
            limit = len(given) + self._limit
        self._books.needed = () if is_searched else [document.key for document in chosen]
        must_read = not is_searched if read is None else read
        opened: dict[str, OpenDocument] = {}
        refusal: DocumentError | None = None
        for document in chosen:
            if len(opened) >= limit:
                break
            try:
                text = self._books.read_document(document.key, partial(self._load, document))
                book = (
                    open_book(text)
                    if open_book
                    else self._books.open_book(text, progress, read=must_read)
                )
            except DocumentError as error:
                refusal = refusal or error
                is_damaged = isinstance(error, LibraryError)
                why = f"{document.id} is damaged in the library" if is_damaged else error.message
                lines.append(f"left out: {why}")
            else:
                opened.setdefault(book.document.text, OpenDocument(document.id, book))
        if refusal and not opened:
            raise refusal
        return list(opened.values())

    def _rank_documents(
        self,
        question: str,
        named: Sequence[NamedDocument],
        progress: Progress | None,
        left_out: list[str],
    ) -> list[NamedDocument]:
        """Returns readable files and stored texts, those that fit the question best first."""
        files = {one.path: one for one in named if one.path and not one.is_given}
        texts = {document.text.digest: document for document in named if document.text}
        library = self.library
        opened = library.search_catalogue() if library else Library().catalogue(keep=False)
        with opened as catalogue:
            changes = FileIndexing(catalogue).update(list(files), progress)
            if changes.refused:
                names = first_names([files[record.path].id for record in changes.refused])
                count = f"{len(changes.refused):,} files that cannot be read"
                left_out.append(f"left out: {count} ({names})")
            for record in changes.readable:
                texts.setdefault(record.digest, files[record.path])
            if self.has_stored:
                catalogue.add_stored_texts()
            order = [text.digest for text in catalogue.texts.ranked(question)]
        return [texts[digest] for digest in dict.fromkeys([*order, *texts]) if digest in texts]

    def document(self, name: str) -> Document:
        """Returns the text of one document, without the model. May be called by several threads.
        Raises ApiError 403, 404. DocumentError."""
        named = self._find_document(name, cache(self.find_stored_texts))
        return self._books.read_document(named.key, partial(self._load, named))

    def _load(self, named: NamedDocument, key: str) -> Document:
        """Reads a file, or a text of the library. Raises DocumentError, which does not tell where
        the folders are."""
        if named.text and named.text.entries and self.library is not None:
            entry = named.text.entries[0]
            known = entry.provenance
            source = known.get("path") or known["source"]
            return restored(self.library.text(entry), entry.marks, {**known, "source": source})
        try:
            return read_document(named.text.path if named.text else named.path)
        except DocumentError as error:
            if not named.path:
                raise
            texts = [text.replace(named.path, named.id) for text in (error.message, error.hint)]
            raise DocumentError(*texts) from error

    def list_files(self, left_out: list[str]) -> dict[Path, str]:
        """Returns the readable files below the allowed folders, links resolved, with their ids."""
        ids = dict[Path, str]()
        for folder in self.allowed:
            found = FoundFiles()
            try:
                found = find_any(str(folder))
                lines = [rest.line for rest in found.rest(str(folder))]
            except DocumentError as error:
                lines = [f"{error.message}; {error.hint}"]
            left_out += [line.replace(str(folder), folder.name) for line in lines]
            for path in found.files:
                id = Path(path).relative_to(folder).as_posix()
                # A file may have been removed meanwhile; a name that is not UTF-8 is no JSON.
                with suppress(ApiError):
                    if not has_lone_surrogate(id):
                        ids.setdefault(self._resolve(id), id)
        return ids


def _refuse_missing(name: str) -> ApiError:
    return ApiError(404, f"there is no document {name}", "documents", "document_not_found")


def list_documents(documents: AllowedDocuments) -> dict[str, Any]:
    """Returns the JSON of `GET /v1/documents`; `left_out` are sentences on what is not listed."""
    left_out: list[str] = []
    data: list[dict[str, Any]] = []

    def add(id: str, name: str, nbytes: int, kind: str) -> None:
        about = {"id": id, "object": "document", "name": name, "bytes": nbytes, "kind": kind}
        data.append(about)

    for number, book in enumerate(documents.fixed, 1):
        add(f"esa:{number}", book.document.name, book.document.bytes, "given")
    paths = {Path(b.document.source).resolve() for b in documents.fixed if b.document.stamp}
    for path, id in documents.list_files(left_out).items():
        if path not in paths:
            paths.add(path)
            add(id, path.name, path.stat().st_size, "file")
    try:
        for id, document in documents.find_stored_texts().items():
            text = document.text
            if text and (not text.path or Path(text.path).resolve() not in paths):
                add(id, text.name, text.bytes, "stored" if text.entries else "synced")
    except (LibraryError, DiskError):
        left_out.append("the library cannot be used")
    return {"object": "list", "data": data, "left_out": left_out}
