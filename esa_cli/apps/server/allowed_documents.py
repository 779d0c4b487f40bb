"""The documents that a request may name: those of the command line, files below the allowed
folders, and what the library has stored.

Links are followed before the check: neither `..` nor a symbolic link leads out. The answer does not
say whether a file outside exists.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from esa_cli.apps.open_books import FileStamp, OpenBooks, file_stamp
from esa_cli.apps.server.wire import ApiError
from esa_cli.documents.document import Document, read_document
from esa_cli.documents.sources import find_any
from esa_cli.documents.text_builder import first_names
from esa_cli.errors import DiskError, DocumentError, LibraryError
from esa_cli.qa.api import Esa
from esa_cli.qa.ingestion.library_texts import FileIndexing, LibraryText, library_texts, restored
from esa_cli.storage.library import Library
from esa_cli.system.files import file_stamp as text_stamp
from esa_cli.system.progress import Progress
from esa_cli.system.text import has_lone_surrogate, text_bytes

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


MOST_CHARACTERS = 50_000_000
"""Characters that are kept, unless one document alone has more."""


class _KeptText(NamedTuple):
    stamp: FileStamp
    document: Document


class DocumentTexts:
    """The documents used last, by path. Several threads may use it; they read each path once."""

    def __init__(self) -> None:
        self._kept: dict[str, _KeptText] = {}
        self._lock = threading.Lock()
        self._reading = defaultdict[str, threading.Lock](threading.Lock)

    def keep(self, path: str, document: Document, stamp: FileStamp) -> None:
        """Keeps a document of the file; `stamp` is from before it was read."""
        with self._lock:
            self._kept.pop(path, None)
            self._kept[path] = _KeptText(stamp, document)
            while self._characters() > MOST_CHARACTERS and len(self._kept) > 1:
                del self._kept[next(iter(self._kept))]

    def read(self, path: str, load: Callable[[str], Document]) -> Document:
        """The document; it is loaded if the file has changed. Raises: as `load`."""
        with self._lock:
            reading = self._reading[path]
        with reading:
            stamp = file_stamp(path)
            with self._lock:
                kept = self._kept.get(path)
            document = kept.document if kept and kept.stamp == stamp else load(path)
            self.keep(path, document, stamp)
            return document

    def _characters(self) -> int:
        return sum(len(one.document.text) for one in self._kept.values())


FIXED = "esa:"
"""Begins the ids of the documents of the command line; their numbers follow, from 1."""
NamedDocument = Path | int | StoredText
"""A file, the number of a document of the command line, or a text of the library."""


_NOT_FOUND = "document_not_found"


class OpenDocument(NamedTuple):
    """The book of a document, and the id by which requests may name it."""

    id: str
    book: Any


class AllowedDocuments:
    """The documents of one server, and their books.

    Args:
        fixed: books for requests that name no documents. texts: theirs.
        allowed: folders whose files requests may name. stored: the library's documents; None:
            requests may not name these. words: has the words of files where many are named; None:
            nobody keeps them. most: how many documents of a request are opened; None: all.
    """

    def __init__(
        self,
        asker: Esa,
        fixed: Sequence[Any],
        allowed: Sequence[Path],
        texts: Sequence[str] = (),
        stored: StoredDocuments | None = None,
        words: Library | None = None,
        most: int | None = None,
    ) -> None:
        self.asker, self.fixed = asker, list(fixed)
        self._stamps: dict[int, str | None] = {}
        self._words, self._most = words, most
        self.allowed = [folder.resolve(strict=True) for folder in allowed]
        self.stored = stored
        self._books = OpenBooks(asker, dict(zip(texts, fixed, strict=False)))
        self._texts = DocumentTexts()

    def find(self, names: Sequence[str] | None) -> list[NamedDocument] | None:
        """The documents, or None for all of the command line; where it has none, the library's.
        Raises ApiError 400, 403, 404. LibraryError, DiskError."""
        if names is None and self.fixed:
            return None
        if names is not None:
            return self._named(names)
        texts = self.stored.texts() if self.stored else {}
        if not texts:
            raise ApiError(
                400, 'no document: name some, as {"documents": ["book.txt"]}', "documents"
            )
        return list(texts.values())

    def _named(self, names: Sequence[str]) -> list[NamedDocument]:
        in_library = any(name.startswith(STORED) for name in names)
        texts = self.stored.texts() if self.stored and in_library else {}
        return [self._find(name, texts) for name in names]

    def _find(self, name: str, texts: Mapping[str, StoredText]) -> NamedDocument:
        number = name.removeprefix(FIXED)
        is_number = number != name and number.isdecimal() and len(number) < 10
        if is_number and 0 < int(number) <= len(self.fixed):
            return int(number) - 1
        if self.stored is not None and name.startswith(STORED):
            if name not in texts:
                raise ApiError(404, f"there is no document {name}", "documents", _NOT_FOUND)
            return texts[name]
        if not self.allowed:
            raise ApiError(403, "requests may not name documents here", "documents")
        inside = False
        for folder in self.allowed:
            try:
                path = (folder / name).resolve()
                if path.is_relative_to(folder):
                    inside = True
                    if path.is_file():
                        return path
            except (OSError, ValueError, RuntimeError):  # a loop of links, a zero byte, too long
                continue
        if inside:
            raise ApiError(404, f"there is no document {name}", "documents", _NOT_FOUND)
        raise ApiError(403, f"{name} is not in a folder that requests may read", "documents")

    def open(
        self,
        found: Sequence[NamedDocument] | None,
        progress: Progress | None = None,
        question: str = "",
        left_out: list[str] | None = None,
    ) -> list[OpenDocument]:
        """Each document once, as a book; of many those whose words fit the question best, which are
        then asked as they are, read or unread. Called by the worker only.

        Args:
            progress: called during ingestion; what it raises ends that and passes through.
            left_out: gets a line on each of several documents that cannot be read.

        Raises:
            DocumentError: none can be read. ResourceError.
        """
        named = list(range(len(self.fixed)) if found is None else found)
        fixed = [one for one in named if isinstance(one, int)]
        others: list[NamedDocument] = [one for one in named if not isinstance(one, int)]
        lines: list[str] = [] if left_out is None else left_out
        is_searched = self._most is not None and len(others) > self._most
        most = self._most if is_searched else None
        if is_searched:
            others = self._ranked(question, others, progress, lines)
        self._books.need([str(one) for one in (fixed if is_searched else named)])
        once: dict[int, OpenDocument] = {}
        refusal: DocumentError | None = None
        try:
            for one in [*fixed, *others] if is_searched else named:
                if most is not None and len(once) >= len(fixed) + most:
                    break
                try:
                    with self._with_short_names([one] if isinstance(one, Path) else []):
                        book = self._open(one, progress, read=not is_searched)
                except LibraryError:
                    raise
                except DocumentError as error:
                    refusal = refusal or error
                    lines.append(f"left out: {error.message}")
                    continue
                once.setdefault(id(book), OpenDocument(self.id(one), book))
        finally:
            self._books.need(())
        if refusal and not once:
            raise refusal
        return list(once.values())

    def _open(self, one: NamedDocument, progress: Progress | None, read: bool) -> Any:
        if isinstance(one, int):
            return self._given(one, progress)
        stamp = file_stamp(str(one))  # it may change while it is read
        document = self._books.read(str(one), self._load(one))
        book = self._books.book(document, progress, read=read)
        self._texts.keep(str(one), document, stamp)
        return book

    def _given(self, number: int, progress: Progress | None) -> Any:
        """The book of a document of the command line; one whose file has another text now is read
        again. One whose file is gone stays as it is."""
        document = self.fixed[number].document
        before = self._stamps.get(number, document.stamp)
        if before is not None:
            with suppress(OSError, DocumentError):
                stamp = text_stamp(document.source)
                if not stamp or stamp != before:
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
        """Those that can be read, each text once, the best by their words first."""
        library = self._words or Library()
        paths = {str(one): one for one in named if isinstance(one, Path)}
        texts: dict[str, NamedDocument] = {
            one.text.digest: one for one in named if isinstance(one, StoredText)
        }
        opened = library.search_catalogue() if self._words else library.catalogue(keep=False)
        with opened as catalogue:
            changes = FileIndexing(catalogue).update(list(paths), progress)
            refused = first_names([self.id(paths[one.path]) for one in changes.refused])
            if refused:
                count = f"{len(changes.refused):,} files that cannot be read"
                left_out.append(f"left out: {count} ({refused})")
            for record in changes.readable:
                texts.setdefault(record.digest, paths[record.path])
            if self.stored is not None:
                catalogue.add_stored_texts()
            order = [one.digest for one in catalogue.texts.ranked(question)]
        return [texts[digest] for digest in dict.fromkeys([*order, *texts]) if digest in texts]

    def document(self, name: str) -> Document:
        """The text of one document, without the model. May be called by several threads. Raises
        ApiError 403, 404. DocumentError."""
        (found,) = self._named([name])
        if isinstance(found, int):
            document: Document = self.fixed[found].document
            return document
        with self._with_short_names([found] if isinstance(found, Path) else []):
            return self._texts.read(str(found), self._load(found))

    def _load(self, one: NamedDocument) -> Callable[[str], Document]:
        """What reads a document that is not of the command line."""
        stored = self.stored
        if isinstance(one, StoredText) and stored is not None:
            return lambda _: stored.document(one)
        return read_document

    def id(self, one: NamedDocument) -> str:
        """What `find` finds it by."""
        if isinstance(one, int):
            return f"{FIXED}{one + 1}"
        if isinstance(one, StoredText):
            return one.id
        inside = [one.relative_to(f) for f in self.allowed if one.is_relative_to(f)]
        names = (name.as_posix() for name in inside if self._find(str(name), {}) == one)
        return next(names, str(one))

    @contextmanager
    def _with_short_names(self, paths: Sequence[Path]) -> Iterator[None]:
        """Errors of documents get paths relative to their folders: where those are is not told."""
        try:
            yield
        except LibraryError:
            raise
        except DocumentError as error:
            texts = [self._shortened(text, paths) for text in (error.message, error.hint)]
            raise DocumentError(*texts) from error

    def _shortened(self, text: str, paths: Sequence[Path]) -> str:
        for path in sorted(paths, key=lambda one: -len(str(one))):
            inside = [path.relative_to(f) for f in self.allowed if path.is_relative_to(f)]
            short = min(inside, key=lambda one: len(one.parts), default=path)
            text = text.replace(str(path), str(short))
        return text


MOST_LISTED = 2000
"""Files of the allowed folders that are listed."""


def list_documents(documents: AllowedDocuments) -> dict[str, Any]:
    """The body of the list: `data`, the documents of the command line first; `left_out`, in words.

    Reads the beginning of every file in the allowed folders. A file is listed once, however it may
    be named.
    """
    left_out: list[str] = []
    data = [
        _listed(documents.id(number), book.document.name, book.document.bytes, "given")
        for number, book in enumerate(documents.fixed)
    ]
    listed = {Path(b.document.source).resolve() for b in documents.fixed if b.document.stamp}
    refused = Counter[str]()
    for path in allowed_files(documents, left_out):
        if (why := _refuse(documents, path, listed)) is not None:
            refused[why] += 1
            continue
        listed.add(path)
        data.append(_listed(documents.id(path), path.name, path.stat().st_size, "file"))
    data += _stored(documents, listed, left_out)
    left_out += [f"{why}: {count:,}" for why, count in refused.items() if why]
    return {"object": "list", "data": data, "left_out": left_out}


def _listed(id: str, name: str, nbytes: int, kind: str) -> dict[str, Any]:
    return {"id": id, "object": "document", "name": name, "bytes": nbytes, "kind": kind}


def _stored(
    documents: AllowedDocuments, listed: Container[Path], left_out: list[str]
) -> list[dict[str, Any]]:
    """Those of the library, if requests may name them: `stored`, or `synced` where only their words
    are."""
    if documents.stored is None:
        return []
    try:
        texts = documents.stored.texts()
    except (LibraryError, DiskError):
        left_out.append("the library cannot be used")
        return []
    return [
        _listed(id, one.text.name, one.text.bytes, "stored" if one.text.entries else "synced")
        for id, one in texts.items()
        if not one.text.path or Path(one.text.path).resolve() not in listed
    ]


def allowed_files(documents: AllowedDocuments, left_out: list[str]) -> Iterator[Path]:
    """The readable files below the allowed folders, each where its links lead to."""
    for folder in documents.allowed:
        try:
            found = find_any(str(folder))
        except DocumentError as error:
            left_out.append(f"{error.message}; {error.hint}".replace(str(folder), folder.name))
            continue
        left_out += [one.line.replace(str(folder), folder.name) for one in found.rest(str(folder))]
        yield from (Path(path).resolve() for path in found.files)


_COPY = ""
_NOT_UTF8 = "files whose names are not UTF-8"
_SAME_NAME = "files of a name that another allowed folder has"


def _refuse(documents: AllowedDocuments, path: Path, listed: set[Path]) -> str | None:
    """Why a file is not listed, in words; None: it is. A copy needs none."""
    if path in listed or not path.is_file():
        return _COPY
    if has_lone_surrogate(str(path)):
        return _NOT_UTF8
    if len(listed) >= MOST_LISTED:
        return f"files beyond the first {MOST_LISTED:,}, which can be named all the same"
    return None if not Path(documents.id(path)).is_absolute() else _SAME_NAME
