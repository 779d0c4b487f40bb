"""The documents of a command line, handed to an asker one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import UsageError
from ..reply import Asker
from .render import Reporter


def check(documents: Sequence[str], *, questions_on_stdin: bool) -> None:
    """Refuses what cannot work before a model is loaded.

    Raises:
        UsageError: no document, or standard input as a document where the questions come from it.
    """
    if not documents:
        raise UsageError("no document was given", "name one, for example: esa chat book.txt")
    if documents.count("-") > 1:
        raise UsageError("standard input (-) can be read only once")
    if "-" in documents and questions_on_stdin:
        raise UsageError(
            "standard input cannot be a document and the questions at once",
            "save the document to a file, and name that",
        )


def files(documents: Sequence[str], reporter: Reporter) -> list[str]:
    """Folders and patterns as the files they mean; says what is left out. Raises DocumentError."""
    from ..readers.sources import expand

    return expand(documents, lambda text: reporter.note(f"esa: {text}", dim=False))


def ingest(asker: Asker, documents: Sequence[str]) -> list[Any]:
    """A book for each document. Raises DocumentError, ResourceError."""
    return [asker.ingest(source) for source in documents]
