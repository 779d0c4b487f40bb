"""The documents that requests of `esa serve` and `esa mcp` may name: those of the command line,
files below the allowed folders, and texts of the library.

Links are followed before the check: neither `..` nor a symbolic link leads out. The answer does not
say whether a file outside exists.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from esa_cli.apps.open_books import FileStamp, OpenBooks, file_stamp
from esa_cli.apps.server.wire import ApiError
from esa_cli.documents.document import Document, read_document
from esa_cli.documents.sources import FoundFiles, find_any
from esa_cli.documents.text_builder import first_names
from esa_cli.errors import DiskError, DocumentError, LibraryError
from esa_cli.qa.api import Esa
from esa_cli.qa.ingestion.library_texts import FileIndexing, LibraryText, library_texts, restored
from esa_cli.storage.library import Entry, Library
from esa_cli.system.files import file_stamp as text_stamp
from esa_cli.system.progress import Progress
from esa_cli.system.text import has_lone_surrogate, text_bytes

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa

COMMAND_LINE = "esa:"
"""Begins the ids of the documents of the command line; their numbers follow, from 1."""
STORED = "library:"
"""Begins ids of the library; the entry's id follows, or 12 digits of a file that only has words."""
MOST_CHARACTERS = 50_000_000
"""Characters of texts that stay in memory for the page, unless one document alone has more."""
MOST_LISTED = 2000
"""Files of the allowed folders that are listed."""
LISTED_FOR_S = 5.0
"""Seconds for which the files of a folder are not looked for again."""


class StoredText(NamedTuple):
    """A text of the library, and the id by which requests may name it."""

    id: str
    text: LibraryText

    def __str__(self) -> str:
        """Differs for another text of the same file."""
        return f"{self.id} {self.text.digest}"


NamedDocument = Path | int | StoredText
"""A file, the number of a document of the command line, or a text of the library."""


class OpenDocument(NamedTuple):
    """The book of a document, and the id by which requests may name it."""

    id: str
    book: Any


class DocumentTexts:
    """The documents used last, by path. Several threads may use it."""

    def __init__(self) -> None:
        self._documents: dict[str, tuple[FileStamp, Document]] = {}
        self._lock = threading.Lock()

    def keep(self, path: str, document: Document, stamp: FileStamp) -> None:
        """Keeps a document of the file; `stamp` is from before it was read."""
        with self._lock:
            self._documents.pop(path, None)
            self._documents[path] = stamp, document
            sizes = {path: len(document.text) for path, (_, document) in self._documents.items()}
            while sum(sizes.values()) > MOST_CHARACTERS and len(sizes) > 1:
                oldest = next(iter(sizes))
                del sizes[oldest], self._documents[oldest]

    def read(self, path: str, load: Callable[[str], Document]) -> Document:
        """The document; it is loaded if the file has changed. Raises: as `load`."""
        stamp = file_stamp(path)
        with self._lock:
            known = self._documents.get(path)
        document = known[1] if known and known[0] == stamp else load(path)
        self.keep(path, document, stamp)
        return document


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
        self._texts = DocumentTexts()
        self._files: dict[Path, tuple[float, FoundFiles]] = {}

    def find(self, names: Sequence[str] | None) -> list[NamedDocument] | None:
        """The documents, or None for all of the command line; where it has none, the library's.
        Raises ApiError 400, 403, 404. LibraryError, DiskError."""
        if names is None and self.fixed:
            return None
        texts = cache(self.stored_texts)
        if names is not None:
            return [self._find(name, texts) for name in names]
        if not texts():
            raise ApiError(
                400, 'no document: name some, as {"documents": ["book.txt"]}', "documents"
            )
        return list(texts().values())

    def _find(self, name: str, texts: Callable[[], dict[str, StoredText]]) -> NamedDocument:
        """By its id, else a file as it is now, else by its name or path in the library."""
        number = name.removeprefix(COMMAND_LINE)
        is_number = number != name and number.isdecimal() and len(number) < 10
        if is_number and 0 < int(number) <= len(self.fixed):
            return int(number) - 1
        if self.has_stored and name.startswith(STORED):
            if name not in texts():
                raise _missing(name)
            return texts()[name]
        try:
            return self._file(name)
        except ApiError:
            matches = [t for t in texts().values() if name in (t.text.name, t.text.path)]
            if not matches:
                raise
        if len(matches) > 1:
            ids = ", ".join(stored.id for stored in matches[:5])
            raise ApiError(400, f"{name} fits {len(matches)} documents: {ids}", "documents")
        return matches[0]

    def _file(self, name: str) -> Path:
        """The file of an allowed folder. Raises ApiError 403, 404."""
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

    def stored_texts(self) -> dict[str, StoredText]:
        """Texts of the library by id, stored documents first, if requests may name them. Raises
        LibraryError, DiskError."""
        if not self.has_stored or self.library is None:
            return {}
        texts = (StoredText(_id(text), text) for text in library_texts(self.library).texts)
        return {text.id: text for text in texts}

    def open(
        self,
        named: Sequence[NamedDocument] | None,
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
        chosen = list(range(len(self.fixed)) if named is None else named)
        lines = [] if left_out is None else left_out
        fixed = [document for document in chosen if isinstance(document, int)]
        most = len(chosen)
        is_searched = self._most is not None and len(chosen) - len(fixed) > self._most
        if is_searched and self._most is not None:
            chosen = [*fixed, *self._ranked(question, chosen, progress, lines)]
            most = len(fixed) + self._most
        read = not is_searched if read is None else read
        self._books.need([] if is_searched else [str(document) for document in chosen])
        documents: dict[str, OpenDocument] = {}
        refusal: DocumentError | None = None
        try:
            for document in chosen:
                if len(documents) >= most:
                    break
                try:
                    book = self._open(document, progress, read, make)
                except LibraryError as error:
                    refusal = refusal or error
                    lines.append(f"left out: {self.id(document)} is damaged in the library")
                except DocumentError as error:
                    error = self._with_short_name(error, document)
                    refusal = refusal or error
                    lines.append(f"left out: {error.message}")
                else:
                    documents.setdefault(book.document.text, OpenDocument(self.id(document), book))
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
        if isinstance(document, int):
            return self._of_command_line(document, progress)
        path = str(document)
        stamp = file_stamp(path)  # it may change while it is read
        text = self._books.read(path, self._load(document))
        book = make(text) if make else self._books.book(text, progress, read=read)
        self._texts.keep(path, text, stamp)
        return book

    def _of_command_line(self, number: int, progress: Progress | None) -> Any:
        """Its book; it is read again if its file has another text now, and stays as it is if the
        file is gone."""
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
        paths = {str(path): path for path in named if isinstance(path, Path)}
        texts: dict[str, NamedDocument] = {
            stored.text.digest: stored for stored in named if isinstance(stored, StoredText)
        }
        library = self.library
        opened = library.search_catalogue() if library else Library().catalogue(keep=False)
        with opened as catalogue:
            changes = FileIndexing(catalogue).update(list(paths), progress)
            refused = first_names([self.id(paths[record.path]) for record in changes.refused])
            if refused:
                count = f"{len(changes.refused):,} files that cannot be read"
                left_out.append(f"left out: {count} ({refused})")
            for record in changes.readable:
                texts.setdefault(record.digest, paths[record.path])
            if self.has_stored:
                catalogue.add_stored_texts()
            order = [text.digest for text in catalogue.texts.ranked(question)]
        return [texts[digest] for digest in dict.fromkeys([*order, *texts]) if digest in texts]

    def document(self, name: str) -> Document:
        """The text of one document, without the model. May be called by several threads. Raises
        ApiError 403, 404. DocumentError."""
        named = self._find(name, cache(self.stored_texts))
        if isinstance(named, int):
            document: Document = self.fixed[named].document
            return document
        try:
            return self._texts.read(str(named), self._load(named))
        except LibraryError:
            raise
        except DocumentError as error:
            raise self._with_short_name(error, named) from error

    def _load(self, document: NamedDocument) -> Callable[[str], Document]:
        """Reads a document that is not of the command line."""
        library = self.library
        if not isinstance(document, StoredText) or library is None:
            return read_document
        text = document.text
        if text.entries:
            return lambda _: stored_document(library, text.entries[0])
        return lambda _: read_document(text.path)

    def id(self, document: NamedDocument) -> str:
        """The name that a request can use for it."""
        if isinstance(document, int):
            return f"{COMMAND_LINE}{document + 1}"
        if isinstance(document, StoredText):
            return document.id
        names = [name.as_posix() for name in self._inside(document)]
        return next((name for name in names if self._file(name) == document), str(document))

    def _inside(self, path: Path) -> list[Path]:
        """The path from each allowed folder that has it."""
        return [path.relative_to(root) for root in self.allowed if path.is_relative_to(root)]

    def _with_short_name(self, error: DocumentError, document: NamedDocument) -> DocumentError:
        """The error with the path from its folder on: where the folders are is not told."""
        if not isinstance(document, Path):
            return error
        short = min(self._inside(document), key=lambda name: len(name.parts), default=document)
        texts = (error.message, error.hint)
        return DocumentError(*(text.replace(str(document), str(short)) for text in texts))

    def files(self, left_out: list[str]) -> Iterator[Path]:
        """The readable files below the allowed folders, each where its links lead to."""
        for folder in self.allowed:
            checked, files = self._files.get(folder, (-LISTED_FOR_S, FoundFiles()))
            if time.monotonic() - checked > LISTED_FOR_S:
                try:
                    files = find_any(str(folder))
                except DocumentError as error:
                    line = f"{error.message}; {error.hint}"
                    left_out.append(line.replace(str(folder), folder.name))
                    continue
                self._files[folder] = time.monotonic(), files
            lines = [rest.line for rest in files.rest(str(folder))]
            left_out += [line.replace(str(folder), folder.name) for line in lines]
            yield from (Path(path).resolve() for path in files.files)


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
    data = [
        _listed(documents.id(number), book.document.name, book.document.bytes, "given")
        for number, book in enumerate(documents.fixed)
    ]
    listed = {Path(b.document.source).resolve() for b in documents.fixed if b.document.stamp}
    refused = Counter[str]()
    for path in documents.files(left_out):
        if path in listed or not path.is_file():
            continue
        if has_lone_surrogate(str(path)):
            refused["files whose names are not UTF-8"] += 1
        elif len(listed) >= MOST_LISTED:
            refused[f"files beyond the first {MOST_LISTED:,}, which can be named all the same"] += 1
        elif os.path.isabs(id := documents.id(path)):
            refused["files of a name that another allowed folder has"] += 1
        else:
            listed.add(path)
            data.append(_listed(id, path.name, path.stat().st_size, "file"))
    try:
        for stored in documents.stored_texts().values():
            text = stored.text
            if not text.path or Path(text.path).resolve() not in listed:
                kind = "stored" if text.entries else "synced"
                data.append(_listed(stored.id, text.name, text.bytes, kind))
    except (LibraryError, DiskError):
        left_out.append("the library cannot be used")
    left_out += [f"{why}: {count:,}" for why, count in refused.items()]
    return {"object": "list", "data": data, "left_out": left_out}


def _listed(id: str, name: str, nbytes: int, kind: str) -> dict[str, Any]:
    return {"id": id, "object": "document", "name": name, "bytes": nbytes, "kind": kind}


def stored_document(library: Library, entry: Entry) -> Document:
    """A document of the library, as it was stored. Raises LibraryError: it is damaged."""
    known = entry.provenance
    source = known.get("path") or known["source"]
    return restored(library.text(entry), entry.marks, {**known, "source": source})
