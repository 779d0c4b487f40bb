"""One document read into the library, and what is reported of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.documents.document import Document

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa


@dataclass(frozen=True)
class IngestReport:
    """A document as the library has it; `id`, `bytes` and `rows` are None where it is not kept.

    Args:
        read_s: seconds of reading; 0: it was found there. missing: what could not be extracted.
    """

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
    """Prefills one document; says where it was kept before in another way."""
    book = esa.ingest(document)
    entry = book.entry
    if entry is not None and entry.rows not in (rows, "index"):
        reporter.warn(
            f"esa: {document.name} is kept with {entry.rows} rows; to keep {rows} ones, "
            f"`esa library rm {entry.id}` first"
        )
    reporter.settle()
    return IngestReport(
        id=entry.id if entry else None,
        name=document.name,
        source=document.source,
        tokens=book.tokens,
        bytes=entry.nbytes if entry else None,
        rows=entry.rows if entry else None,
        read_s=book.read_s,
        missing=tuple(document.missing),
    )
