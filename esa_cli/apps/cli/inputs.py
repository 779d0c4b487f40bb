"""The documents of a command line: read, told what is left out, handed to an asker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.terminal import Reporter
from esa_cli.errors import UsageError
from esa_cli.qa.reply import Asker

if TYPE_CHECKING:
    from esa_cli.documents.document import Document, Gathered


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


def read(names: Sequence[str], reporter: Reporter) -> Gathered:
    """The documents that names, folders and patterns mean, each text once; says what is left out.

    Raises:
        UsageError, DocumentError: as `document.gather`.
    """
    from esa_cli.documents.document import gather, meant

    found = gather(meant(names)).once()
    for left_out in found.left_out:
        reporter.warn(f"esa: {left_out.line}")
    return found


def ingest(asker: Asker, documents: Sequence[Document]) -> list[Any]:
    """A book for each document. Raises DocumentError, ResourceError."""
    return [asker.ingest(document) for document in documents]
