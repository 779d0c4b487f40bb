"""The documents that a request may name: files below the allowed folders.

Links are followed before the check: neither `..` nor a symbolic link leads out. The answer does not
say whether a file outside exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from esa_cli.apps.open_books import OpenBooks
from esa_cli.apps.server.http_errors import ApiError
from esa_cli.errors import DocumentError, LibraryError
from esa_cli.qa.reply import Asker
from esa_cli.system.progress import Progress


class AllowedDocuments:
    """The documents of one server, and their books.

    Args:
        fixed: books for requests that name no documents. texts: theirs.
        allowed: folders whose files requests may name.
    """

    def __init__(
        self,
        asker: Asker,
        fixed: Sequence[Any],
        allowed: Sequence[Path],
        texts: Sequence[str] = (),
    ) -> None:
        self.fixed = list(fixed)
        self.allowed = [folder.resolve(strict=True) for folder in allowed]
        self._books = OpenBooks(asker, dict(zip(texts, fixed, strict=False)))

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
        """Their books, each once. Called by the worker only.

        Args:
            progress: called during ingestion; what it raises ends that and passes through.

        Raises:
            DocumentError, ResourceError.
        """
        if paths is None:
            return self.fixed
        names = [str(path) for path in paths]
        self._books.need(names)
        try:
            books = [self._books.book(self._books.read(name), progress) for name in names]
        except LibraryError:
            raise
        except DocumentError as error:
            texts = [self._with_short_names(text, paths) for text in (error.message, error.hint)]
            raise DocumentError(*texts) from error
        finally:
            self._books.need(())
        return list({id(book): book for book in books}.values())

    def _with_short_names(self, text: str, paths: Sequence[Path]) -> str:
        """A message with paths relative to their folders: where those are is not told."""
        for path in sorted(paths, key=lambda one: -len(str(one))):
            inside = [path.relative_to(f) for f in self.allowed if path.is_relative_to(f)]
            short = min(inside, key=lambda one: len(one.parts), default=path)
            text = text.replace(str(path), str(short))
        return text
