"""`esa ingest`: reads documents into the library, to be asked about ever after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from . import options
from .options import DEFAULT_PRESET

if TYPE_CHECKING:
    from ..book import Book

Documents = Annotated[
    list[str], typer.Argument(metavar="DOC...", help="Files, folders or patterns, or -.")
]
Rows = Annotated[
    Literal["int8", "native"],
    typer.Option("--rows", help="How keys and values are kept: in 8 bits, or bit for bit."),
]


def ingest(
    documents: Documents,
    rows: Rows = "int8",
    preset: options.Preset = DEFAULT_PRESET,
    model: options.Model = None,
    settings: options.Set = None,
    plugins: options.Plugin = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Read documents once into the library; `esa ask` then finds them there by their text.

    Stopped in the middle, the same command goes on where it was.
    """
    from ..document import read_documents
    from ..machine import size_text, time_text
    from .open import opened
    from .render import Reporter, print_json, print_table

    options.load_plugins(plugins)
    given = options.overrides({"model": model}, settings)
    reporter = Reporter(quiet)
    try:
        found = read_documents(documents, say=reporter.note)
        with opened(preset, given, device, dtype, reporter, keep=True, rows=rows) as esa:
            books = []
            for document in found:
                books.append(esa.ingest(document))
                entry = books[-1].entry
                if entry is not None and entry.layout.kind != rows:
                    reporter.note(
                        f"esa: {document.name} is kept with {entry.layout.kind} rows; to keep "
                        f"{rows} ones, `esa library rm {entry.id}` first",
                        dim=False,
                    )
                reporter.settle()
    finally:
        reporter.settle()
    if as_json:
        print_json({"documents": [_as_dict(book) for book in books]})
        return
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
        "read_s": round(book.read_s, 3),
        "missing": list(book.document.missing),
    }
