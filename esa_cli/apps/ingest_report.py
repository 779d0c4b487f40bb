"""One document read into the library, and what `esa ingest` reports of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.documents.document import Document

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa


@dataclass(frozen=True)
class IngestReport:
    """A document in the library; `id`, `bytes` and `rows` are None where it is not stored, `read_s`
    is 0 where the library had it, and `missing` says what could not be extracted."""

    id: str | None
    name: str
    source: str
    tokens: int
    bytes: int | None
    rows: str | None
    read_s: float
    missing: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "read_s": round(self.read_s, 3), "missing": list(self.missing)}


def ingest_document(esa: Esa, document: Document, rows: str, reporter: Reporter) -> IngestReport:
    """Reads one document into the library; reports where it has it with other rows."""
    book = esa.ingest(document)
    entry = book.entry
    if entry is not None and entry.rows not in (rows, "index"):
        reporter.warn(
            f"esa: {document.name} is kept with {entry.rows} rows; to keep {rows} ones, "
            f"`esa library rm {entry.id}` first"
        )
    reporter.settle()
    id, nbytes, kept = (entry.id, entry.nbytes, entry.rows) if entry else (None, None, None)
    return IngestReport(
        id, document.name, document.source, book.tokens, nbytes, kept, book.read_s,
        tuple(document.missing),
    )  # fmt: skip
