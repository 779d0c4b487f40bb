"""The documents that requests of `esa serve` and `esa mcp` may name: those of the command line,
files below the allowed folders, and texts of the library.

Links are followed before the check: neither `..` nor a symbolic link leads out. The answer does not
say whether a file outside exists.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from esa_cli.apps.open_books import MOST_RECENT, FileStamp, OpenBooks, file_stamp
from esa_cli.apps.server.wire import ApiError
from esa_cli.documents.document import Document, read_document
from esa_cli.documents.readers.text_builder import first_names
from esa_cli.documents.sources import find_any
from esa_cli.errors import DiskError, DocumentError, LibraryError
from esa_cli.qa.ingestion.library_texts import FileIndexing, LibraryText, library_texts, restored
from esa_cli.storage.library import Library
from esa_cli.system.files import file_stamp as text_stamp
from esa_cli.system.progress import Progress
from esa_cli.system.text import has_lone_surrogate, text_bytes

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa

COMMAND_LINE = "esa:"
"""Begins the ids of the documents of the command line; their numbers follow, from 1."""
STORED = "library:"
"""Begins ids of the library; the entry's id follows, or 12 digits of a file that only has words."""
MOST_LISTED = 2000
"""Files of the allowed folders that are listed."""


@dataclass(frozen=True)
class NamedDocument:
    """A document that requests may name by its `id`: the `number` of one of the command line, a
    `text` of the library, or a file of an allowed folder, whose `path` has its links resolved."""

    id: str
    number: int | None = None
    text: LibraryText | None = None
    path: str = ""

    @property
    def key(self) -> str:
        """The path of a file; else what differs for another text of the same id."""
        return self.path or f"{self.id} {self.text.digest if self.text else ''}"


class OpenDocument(NamedTuple):
    """The book of a document, and the id by which requests may name it."""

    id: str
    book: Any


class AllowedDocuments:
    """The documents of one server, and their books.

    Args:
        fixed: books for requests that name no documents.
        allowed: folders whose files requests may name. library: has the words of files where many
            are named; None: nobody keeps them. stored: requests may name its texts.
        most: how many documents of a request are opened; None: all.
    """

    def __init__(
        self,
        asker: Esa,
        fixed: Sequence[Any],
        allowed: Sequence[Path],
        library: Library | None = None,
        *,
        stored: bool = False,
        most: int | None = None,
    ) -> None:
        self.asker, self.fixed = asker, list(fixed)
        self.allowed = [folder.resolve(strict=True) for folder in allowed]
        self.library, self.has_stored, self._most = library, stored, most
        self._stamps: dict[int, str | None] = {}
        self._books = OpenBooks(asker, {book.document.text: book for book in fixed})
        self._texts = lru_cache(MOST_RECENT)(self._read)

    def find(self, names: Sequence[str] | None) -> list[NamedDocument]:
        """The documents of these names; None: all of the command line, where it has none of the
        library. Raises ApiError 400, 403, 404. LibraryError, DiskError."""
        if names is None and self.fixed:
            return [self._of_command_line(number) for number in range(len(self.fixed))]
        stored = cache(self.stored_texts)
        if names is not None:
            return [self._find(name, stored) for name in names]
        if not stored():
            raise ApiError(
                400, 'no document: name some, as {"documents": ["book.txt"]}', "documents"
            )
        return list(stored().values())

    def _of_command_line(self, number: int) -> NamedDocument:
        return NamedDocument(f"{COMMAND_LINE}{number + 1}", number)

    def _find(self, name: str, stored: Callable[[], dict[str, NamedDocument]]) -> NamedDocument:
        """By its id, else a file as it is now, else by its name or path in the library."""
        number = name.removeprefix(COMMAND_LINE)
        is_number = number != name and number.isdecimal() and len(number) < 10
        if is_number and 0 < int(number) <= len(self.fixed):
            return self._of_command_line(int(number) - 1)
        if self.has_stored and name.startswith(STORED):
            if name not in stored():
                raise _missing(name)
            return stored()[name]
        try:
            return self.file(name)
        except ApiError:
            matches = [
                d for d in stored().values() if d.text and name in (d.text.name, d.text.path)
            ]
            if not matches:
                raise
        if len(matches) > 1:
            ids = ", ".join(document.id for document in matches[:5])
            raise ApiError(400, f"{name} fits {len(matches)} documents: {ids}", "documents")
        return matches[0]

    def file(self, name: str) -> NamedDocument:
        """A file of an allowed folder. Raises ApiError 403, 404."""
        path = self._resolve(name)
        names = [path.relative_to(root).as_posix() for root in self.allowed if root in path.parents]
        id = next((name for name in names if self._resolve(name) == path), str(path))
        return NamedDocument(id, path=str(path))

    def _resolve(self, name: str) -> Path:
        if not self.allowed:
            raise ApiError(403, "requests may not name documents here", "documents")
        inside = False
        for folder in self.allowed:
            # A loop of links, a zero byte, or too long a name.
            with suppress(OSError, ValueError, RuntimeError):
                path = (folder / name).resolve()
                inside = inside or path.is_relative_to(folder)
                if path.is_relative_to(folder) and path.is_file():
                    return path
        if inside:
            raise _missing(name)
        raise ApiError(403, f"{name} is not in a folder that requests may read", "documents")

    def stored_texts(self) -> dict[str, NamedDocument]:
        """Texts of the library by id, stored documents first, if requests may name them. Raises
        LibraryError, DiskError."""
        if not self.has_stored or self.library is None:
            return {}
        texts = library_texts(self.library).texts
        return {(id := _id(text)): NamedDocument(id, text=text) for text in texts}

    def open(
        self,
        named: Sequence[NamedDocument],
        progress: Progress | None = None,
        question: str = "",
        left_out: list[str] | None = None,
        *,
        read: bool | None = None,
        make: Callable[[Document], Any] | None = None,
    ) -> list[OpenDocument]:
        """Each document once, as a book; of many those whose words fit the question best. Called by
        the worker only.

        Args:
            progress: called during ingestion; what it raises ends that and passes through.
            left_out: gets a line on each of several documents that cannot be read.
            read: whether the model reads what it has not read; None: unless there are many.
            make: makes the books in place of the server's `Esa`.

        Raises:
            DocumentError: none can be read. ResourceError.
        """
        lines = [] if left_out is None else left_out
        fixed = [document for document in named if document.number is not None]
        chosen, most = list(named), len(named)
        is_searched = self._most is not None and len(chosen) - len(fixed) > self._most
        if is_searched and self._most is not None:
            chosen = [*fixed, *self._ranked(question, chosen, progress, lines)]
            most = len(fixed) + self._most
        read = not is_searched if read is None else read
        self._books.need([] if is_searched else [document.key for document in chosen])
        documents: dict[str, OpenDocument] = {}
        refusal: DocumentError | None = None
        try:
            for document in chosen:
                if len(documents) >= most:
                    break
                try:
                    book = self._open(document, progress, read, make)
                except DocumentError as error:
                    refusal = refusal or error
                    damaged = isinstance(error, LibraryError)
                    why = f"{document.id} is damaged in the library" if damaged else error.message
                    lines.append(f"left out: {why}")
                else:
                    documents.setdefault(book.document.text, OpenDocument(document.id, book))
        finally:
            self._books.need(())
        if refusal and not documents:
            raise refusal
        return list(documents.values())

    def _open(
        self,
        document: NamedDocument,
        progress: Progress | None,
        read: bool,
        make: Callable[[Document], Any] | None,
    ) -> Any:
        if document.number is not None:
            return self._fixed_book(document.number, progress)
        text = self._books.read(document.key, lambda key: self._texts(document, file_stamp(key)))
        return make(text) if make else self._books.book(text, progress, read=read)

    def _fixed_book(self, number: int, progress: Progress | None) -> Any:
        """The book of a document of the command line; it is read again if its file has another text
        now, and stays as it is if the file is gone."""
        document = self.fixed[number].document
        before = self._stamps.get(number, document.stamp)
        with suppress(OSError, DocumentError):
            if before == "" or (before and text_stamp(document.source) != before):
                now = read_document(document.source)
                if now.text != document.text:
                    self.fixed[number] = self.asker.ingest(now, progress)
                self._stamps[number] = now.stamp
        return self.fixed[number]

    def _ranked(
        self,
        question: str,
        named: Sequence[NamedDocument],
        progress: Progress | None,
        left_out: list[str],
    ) -> list[NamedDocument]:
        """The files and stored texts that can be read, each text once, the best by their words
        first."""
        files = {document.path: document for document in named if document.path}
        texts = {document.text.digest: document for document in named if document.text}
        library = self.library
        opened = library.search_catalogue() if library else Library().catalogue(keep=False)
        with opened as catalogue:
            changes = FileIndexing(catalogue).update(list(files), progress)
            refused = first_names([files[record.path].id for record in changes.refused])
            if refused:
                count = f"{len(changes.refused):,} files that cannot be read"
                left_out.append(f"left out: {count} ({refused})")
            for record in changes.readable:
                texts.setdefault(record.digest, files[record.path])
            if self.has_stored:
                catalogue.add_stored_texts()
            order = [text.digest for text in catalogue.texts.ranked(question)]
        return [texts[digest] for digest in dict.fromkeys([*order, *texts]) if digest in texts]

    def document(self, name: str) -> Document:
        """The text of one document, without the model. May be called by several threads. Raises
        ApiError 403, 404. DocumentError."""
        named = self._find(name, cache(self.stored_texts))
        if named.number is not None:
            document: Document = self.fixed[named.number].document
            return document
        return self._texts(named, file_stamp(named.key))

    def _read(self, named: NamedDocument, stamp: FileStamp) -> Document:
        """The text of a file with this stamp, or of the library. Raises DocumentError, which does
        not say where the folders are."""
        if named.text and named.text.entries and self.library is not None:
            entry = named.text.entries[0]  # as it was stored
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

    def list_files(self, left_out: list[str]) -> Iterator[Path]:
        """The readable files below the allowed folders, each where its links lead to."""
        for folder in self.allowed:
            try:
                files = find_any(str(folder))
                lines = [rest.line for rest in files.rest(str(folder))]
                yield from (Path(path).resolve() for path in files.files)
            except DocumentError as error:
                lines = [f"{error.message}; {error.hint}"]
            left_out += [line.replace(str(folder), folder.name) for line in lines]


def _missing(name: str) -> ApiError:
    return ApiError(404, f"there is no document {name}", "documents", "document_not_found")


def _id(text: LibraryText) -> str:
    if text.entries:
        return STORED + text.entries[0].id
    return STORED + hashlib.blake2b(text_bytes(text.path), digest_size=6).hexdigest()


def list_documents(documents: AllowedDocuments) -> dict[str, Any]:
    """The JSON of `GET /v1/documents`: `data`, the documents of the command line first; `left_out`,
    in words. A file is listed once, however it may be named."""
    left_out: list[str] = []
    data: list[dict[str, Any]] = []

    def add(id: str, name: str, nbytes: int, kind: str) -> None:
        about = {"id": id, "object": "document", "name": name, "bytes": nbytes, "kind": kind}
        data.append(about)

    for number, book in enumerate(documents.fixed, 1):
        add(f"{COMMAND_LINE}{number}", book.document.name, book.document.bytes, "given")
    listed = {Path(b.document.source).resolve() for b in documents.fixed if b.document.stamp}
    refused = Counter[str]()
    for path in documents.list_files(left_out):
        if path in listed or not path.is_file():
            continue
        if has_lone_surrogate(str(path)):
            refused["files whose names are not UTF-8"] += 1
        elif len(listed) >= MOST_LISTED:
            refused[f"files beyond the first {MOST_LISTED:,}, which can be named all the same"] += 1
        elif os.path.isabs(id := documents.file(str(path)).id):
            refused["files of a name that another allowed folder has"] += 1
        else:
            listed.add(path)
            add(id, path.name, path.stat().st_size, "file")
    try:
        for id, document in documents.stored_texts().items():
            text = document.text
            if text and (not text.path or Path(text.path).resolve() not in listed):
                add(id, text.name, text.bytes, "stored" if text.entries else "synced")
    except (LibraryError, DiskError):
        left_out.append("the library cannot be used")
    left_out += [f"{why}: {count:,}" for why, count in refused.items()]
    return {"object": "list", "data": data, "left_out": left_out}
