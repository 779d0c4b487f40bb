"""`esa ingest`: reads documents into the library, to be asked about ever after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from esa_cli.apps.cli import options
from esa_cli.apps.cli.options import ModelOptions
from esa_cli.apps.cli.shard_options import Shard

if TYPE_CHECKING:
    from esa_cli.apps.cli.terminal import Reporter
    from esa_cli.documents.document import Document
    from esa_cli.qa.api import Esa
    from esa_cli.qa.books import Book

Documents = Annotated[
    list[str], typer.Argument(metavar="DOC...", help="Files, folders or patterns, or -.")
]
Rows = Annotated[
    Literal["int8", "native"],
    typer.Option("--rows", help="How keys and values are kept: in 8 bits, or bit for bit."),
]


@options.command
def ingest(
    documents: Documents,
    rows: Rows = "int8",
    shard: Shard = None,
    model: ModelOptions = options.DEFAULTS,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Read documents once into the library; `esa ask` then finds them there by their text.

    Stopped in the middle, the same command goes on where it was.
    """
    from esa_cli.apps.cli import inputs
    from esa_cli.apps.cli.open_esa import opened
    from esa_cli.apps.cli.terminal import Reporter, print_json
    from esa_cli.system.work_shard import WorkShard

    part, reporter = WorkShard.parse(shard), Reporter(quiet)
    books: list[Book] = []
    try:
        chosen = model.load_preset()
        found = inputs.read(documents, reporter, part)
        if found.documents:
            with opened(chosen, model, reporter, keep=True, rows=rows) as esa:
                books = [_kept(esa, document, rows, reporter) for document in found.documents]
    finally:
        reporter.settle()
    if as_json:
        left_out = [one.as_dict() for one in found.left_out]
        print_json({"documents": [_as_dict(book) for book in books], "left_out": left_out})
    else:
        _print(books)


def _kept(esa: Esa, document: Document, rows: str, reporter: Reporter) -> Book:
    """Its book; says where it was kept before in another way."""
    book = esa.ingest(document)
    entry = book.entry
    if entry is not None and entry.rows not in (rows, "index"):
        reporter.warn(
            f"esa: {document.name} is kept with {entry.rows} rows; to keep {rows} ones, "
            f"`esa library rm {entry.id}` first"
        )
    reporter.settle()
    return book


def _print(books: Sequence[Book]) -> None:
    from esa_cli.apps.cli.terminal import print_table
    from esa_cli.system.machine import size_text, time_text

    print_table(
        ("id", "tokens", "size", "read in", "document"),
        [
            (
                book.entry.id if book.entry else "not kept",
                f"{book.tokens:,}",
                size_text(book.entry.nbytes) if book.entry else "",
                time_text(book.read_s) if book.read_s else "before",
                book.document.name,
            )
            for book in books
        ],
    )


def _as_dict(book: Book) -> dict[str, Any]:
    return {
        "id": book.entry.id if book.entry else None,
        "name": book.document.name,
        "source": book.document.source,
        "tokens": book.tokens,
        "bytes": book.entry.nbytes if book.entry else None,
        "rows": book.entry.rows if book.entry else None,
        "read_s": round(book.read_s, 3),
        "missing": list(book.document.missing),
    }
