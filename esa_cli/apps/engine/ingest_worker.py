"""Documents prefilled into the library, here or by the workers of an engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.options import ModelOptions, load_plugins
from esa_cli.apps.cli.terminal import Reporter
from esa_cli.apps.engine.task_engine import TaskEngine
from esa_cli.documents.document import Document
from esa_cli.qa.preset import Preset
from esa_cli.system.machine import time_text

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


@dataclass(frozen=True)
class IngestWorker:
    """Prefills documents into one library.

    Args:
        rows: as `esa ingest --rows`. library: its folder, which all machines share.
    """

    preset: Preset
    model: ModelOptions
    rows: str
    library: Path

    @contextmanager
    def open(self, reporter: Reporter) -> Iterator[Callable[[Document], IngestReport]]:
        from esa_cli.apps.cli.open_esa import opened
        from esa_cli.storage.library import Library

        load_plugins(self.model.plugins)
        with opened(
            self.preset, self.model, reporter, keep=True, rows=self.rows,
            library=Library(self.library),
        ) as esa:  # fmt: skip
            yield lambda document: ingest_document(esa, document, self.rows, reporter)


def ingest_by(
    engine: TaskEngine, worker: IngestWorker, documents: Sequence[Document], reporter: Reporter
) -> list[IngestReport]:
    """The documents in their order, each ingested by one of the engine's workers."""
    found: dict[int, IngestReport] = {}
    show = reporter.waiting if reporter.live else reporter.throttled()
    started, tokens = time.monotonic(), 0
    for number, one in engine.run(worker, iter(documents)):
        found[number] = one
        tokens += one.tokens if one.read_s else 0
        spent = max(time.monotonic() - started, 1e-9)
        left = time_text(spent / len(found) * (len(documents) - len(found)))
        rate = f"{tokens / spent:,.0f} tokens/s"
        show(f"{len(found)} of {len(documents)} documents, {rate}, {left} left")
    return [found[number] for number in sorted(found)]
