"""Which documents a request may name, and the books that stay open.

A name must lead to a file below one of the allowed folders, links followed: neither `..` nor a
symbolic link leads out. Whether a file outside exists is not told. `open` runs in the worker only.
Books that stay open are a convenience: they go, oldest first, where memory is short. A text that
stands in several files is one book.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from esa_cli.apps.server.wire import ApiError
from esa_cli.documents.document import Document, read_document
from esa_cli.errors import DocumentError, ResourceError
from esa_cli.qa.reply import Asker
from esa_cli.storage.library import LibraryError

KEPT = 16
"""Books that stay open after they were asked about."""
Stamp = tuple[int, int]
"""A file's time of change and length: what is read again when it changes."""
Progress = Callable[[int, int], None]


class _Open(NamedTuple):
    stamp: Stamp
    text: str
    book: Any


class Shelf:
    """The documents of one server.

    Args:
        fixed: books that requests without documents are about. allowed: folders whose files
            requests may name. texts: those of the fixed books.
    """

    def __init__(
        self,
        asker: Asker,
        fixed: Sequence[Any],
        allowed: Sequence[Path],
        texts: Sequence[str] = (),
    ) -> None:
        self.asker, self.fixed = asker, list(fixed)
        self._fixed = dict(zip(texts, fixed, strict=False))
        self.allowed = [folder.resolve(strict=True) for folder in allowed]
        self._open: OrderedDict[str, _Open] = OrderedDict()

    def find(self, names: Sequence[str] | None) -> list[Path] | None:
        """The files, or None for the fixed documents. Raises ApiError 400, 403, 404."""
        if names is None:
            if not self.fixed:
                raise ApiError(
                    400, 'no document: name some, as {"documents": ["book.txt"]}', "documents"
                )
            return None
        if not self.allowed:
            raise ApiError(403, "requests may not name documents here", "documents")
        return [self._find(name) for name in names]

    def _find(self, name: str) -> Path:
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

    def open(self, paths: Sequence[Path] | None, progress: Progress | None = None) -> list[Any]:
        """Their books, read where that has not been done.

        Args:
            progress: called while one is read; what it raises ends that and passes through.

        Raises:
            DocumentError, ResourceError.
        """
        if paths is None:
            return self.fixed
        wanted = {str(path) for path in paths}
        try:
            books = _distinct([self._book(path, wanted, progress) for path in paths])
        except LibraryError:
            raise
        except DocumentError as error:
            told = [self._outward(text, paths) for text in (error.message, error.hint)]
            raise DocumentError(*told) from error
        while len(self._open) > KEPT:
            self._open.popitem(last=False)
        return books

    def _book(self, path: Path, wanted: Container[str], progress: Progress | None) -> Any:
        name = str(path)
        try:
            facts = path.stat()
        except OSError:
            read_document(name)  # which says what is wrong with it
            raise
        stamp = facts.st_mtime_ns, facts.st_size
        if name in self._open and self._open[name].stamp != stamp:
            del self._open[name]
        if name not in self._open:
            document = read_document(name)
            book = self._known(document.text)
            if book is None:
                while len(self._open) >= KEPT and self._drop(wanted):
                    pass
                book = self._read(document, wanted, progress)
            self._open[name] = _Open(stamp, document.text, book)
        self._open.move_to_end(name)
        return self._open[name].book

    def _outward(self, text: str, paths: Sequence[Path]) -> str:
        """A message with the files' names below the folders: what stands above is not told."""
        for path in sorted(paths, key=lambda one: -len(str(one))):
            inside = [path.relative_to(f) for f in self.allowed if path.is_relative_to(f)]
            short = min(inside, key=lambda one: len(one.parts), default=path)
            text = text.replace(str(path), str(short))
        return text

    def _known(self, text: str) -> Any:
        """The book of this text, if there is one."""
        if text in self._fixed:
            return self._fixed[text]
        return next((one.book for one in self._open.values() if one.text == text), None)

    def _read(self, document: Document, wanted: Container[str], progress: Progress | None) -> Any:
        while True:
            try:
                return self.asker.ingest(document, progress)
            except ResourceError:
                if not self._drop(wanted):
                    raise

    def _drop(self, wanted: Container[str]) -> bool:
        """Lets go of the book longest unused that is not wanted now; whether there was one."""
        oldest = next((name for name in self._open if name not in wanted), None)
        if oldest is not None:
            del self._open[oldest]
        return oldest is not None


def _distinct(books: Sequence[Any]) -> list[Any]:
    """Each book once, by what it is: askers' books may not be comparable."""
    return list({id(book): book for book in books}.values())
