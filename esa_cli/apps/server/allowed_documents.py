"""The documents that a request may name: those of the command line, files below the allowed
folders, and what the library has stored.

Links are followed before the check: neither `..` nor a symbolic link leads out. The answer does not
say whether a file outside exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from esa_cli.apps.open_books import OpenBooks, file_stamp
from esa_cli.apps.server.document_texts import DocumentTexts
from esa_cli.apps.server.http_errors import ApiError
from esa_cli.apps.server.stored_documents import STORED, StoredDocuments
from esa_cli.documents.document import Document, read_document
from esa_cli.errors import DocumentError, LibraryError
from esa_cli.qa.answering.reply import Asker
from esa_cli.system.progress import Progress

FIXED = "esa:"
"""Begins the ids of the documents of the command line; their numbers follow, from 1."""
NamedDocument = Path | int | str
"""A file, the number of a document of the command line, or the id of one in the library."""


class OpenDocument(NamedTuple):
    """The book of a document, and the id by which requests may name it."""

    id: str
    book: Any


class AllowedDocuments:
    """The documents of one server, and their books.

    Args:
        fixed: books for requests that name no documents. texts: theirs.
        allowed: folders whose files requests may name. stored: the library's documents; None:
            requests may not name these.
    """

    def __init__(
        self,
        asker: Asker,
        fixed: Sequence[Any],
        allowed: Sequence[Path],
        texts: Sequence[str] = (),
        stored: StoredDocuments | None = None,
    ) -> None:
        self.fixed = list(fixed)
        self.allowed = [folder.resolve(strict=True) for folder in allowed]
        self.stored = stored
        self._books = OpenBooks(asker, dict(zip(texts, fixed, strict=False)))
        self._texts = DocumentTexts()

    def find(self, names: Sequence[str] | None) -> list[NamedDocument] | None:
        """The documents, or None for all of the command line. Raises ApiError 400, 403, 404."""
        if names is None:
            if not self.fixed:
                raise ApiError(
                    400, 'no document: name some, as {"documents": ["book.txt"]}', "documents"
                )
            return None
        return [self._find(name) for name in names]

    def _find(self, name: str) -> NamedDocument:
        number = name.removeprefix(FIXED)
        if number != name and number.isdecimal() and 0 < int(number[:9]) <= len(self.fixed):
            return int(number) - 1
        if self.stored is not None and name.startswith(STORED):
            return name
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
            raise ApiError(404, f"there is no document {name}", "documents", "document_not_found")
        raise ApiError(403, f"{name} is not in a folder that requests may read", "documents")

    def open(
        self, found: Sequence[NamedDocument] | None, progress: Progress | None = None
    ) -> list[OpenDocument]:
        """Each document once, as a book. Called by the worker only.

        Args:
            progress: called during ingestion; what it raises ends that and passes through.

        Raises:
            DocumentError, ResourceError.
        """
        named = range(len(self.fixed)) if found is None else found
        paths = [one for one in named if isinstance(one, Path)]
        self._books.need([str(one) for one in named])
        try:
            with self._with_short_names(paths):
                opened = [OpenDocument(self.id(one), self._open(one, progress)) for one in named]
        finally:
            self._books.need(())
        once: dict[int, OpenDocument] = {}
        for one in opened:
            once.setdefault(id(one.book), one)
        return list(once.values())

    def _open(self, one: NamedDocument, progress: Progress | None) -> Any:
        if isinstance(one, int):
            return self.fixed[one]
        stamp = file_stamp(str(one))  # it may change while it is read
        document = self._books.read(str(one), self._load(one))
        book = self._books.book(document, progress)
        self._texts.keep(str(one), document, stamp)
        return book

    def document(self, name: str) -> Document:
        """The text of one document, without the model. May be called by several threads. Raises
        ApiError 403, 404. DocumentError."""
        found = self._find(name)
        if isinstance(found, int):
            document: Document = self.fixed[found].document
            return document
        with self._with_short_names([found] if isinstance(found, Path) else []):
            return self._texts.read(str(found), self._load(found))

    def _load(self, one: NamedDocument) -> Callable[[str], Document]:
        """What reads a document that is not of the command line."""
        return self.stored.document if self.stored and isinstance(one, str) else read_document

    def id(self, one: NamedDocument) -> str:
        """What `find` finds it by."""
        if isinstance(one, int):
            return f"{FIXED}{one + 1}"
        if isinstance(one, str):
            return one
        inside = [one.relative_to(f) for f in self.allowed if one.is_relative_to(f)]
        return next((name.as_posix() for name in inside if self._find(str(name)) == one), str(one))

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
