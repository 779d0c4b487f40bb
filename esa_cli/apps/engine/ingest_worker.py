"""Documents read into the library, here or by the workers of an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.options.options import ModelOptions, load_plugins
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.apps.engine.engine import Engine
from esa_cli.documents.document import Document
from esa_cli.qa.presets.preset import Preset

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
    """Reads documents into one library, whose folder all machines share."""

    preset: Preset
    model: ModelOptions
    rows: str
    library: Path

    @contextmanager
    def open(
        self, reporter: Reporter
    ) -> Iterator[Callable[[tuple[int, Document]], tuple[int, IngestReport]]]:
        from esa_cli.apps.cli.open_esa import opened
        from esa_cli.storage.library import Library

        load_plugins(self.model.plugins)
        with opened(
            self.preset, self.model, reporter, keep=True, rows=self.rows,
            library=Library(self.library),
        ) as esa:  # fmt: skip

            def work(task: tuple[int, Document]) -> tuple[int, IngestReport]:
                return task[0], ingest_document(esa, task[1], self.rows, reporter)

            yield work


def ingest_by(
    engine: Engine, worker: IngestWorker, documents: Sequence[Document], reporter: Reporter
) -> list[IngestReport]:
    """Reads the documents in an engine's processes, long ones first; reports in their order."""
    show = reporter.waiting if reporter.live else reporter.throttled()
    reports = dict[int, IngestReport]()
    tasks = sorted(enumerate(documents), key=lambda task: -len(task[1].text))
    for number, report in engine.run(worker, tasks):
        reports[number] = report
        show(f"{len(reports)} of {len(documents)} documents")
    return [reports[number] for number in range(len(documents))]
