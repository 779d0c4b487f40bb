"""Loads the model of a command, and shows the progress of ingesting its documents."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.documents.document import Document
from esa_cli.errors import DiskError, UsageError
from esa_cli.qa.ingestion.ingest import IndexPlanner, IngestEvents
from esa_cli.qa.opening import Preflight, prepare
from esa_cli.qa.presets.preset import Preset
from esa_cli.system.machine import size_text

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa
    from esa_cli.qa.finding.passage_finder import Book
    from esa_cli.qa.planning.plan import Planner
    from esa_cli.qa.reading.reader_choice import ReaderChoice
    from esa_cli.storage.library import Library

MIN_MEASURED_TOKENS = 2048
"""The minimum tokens of a document whose ingestion speed is remembered for later estimates."""


class PrefillDisplay(IngestEvents):
    """Shows the progress of ingesting documents, and remembers the speed for later estimates.

    Args:
        must_store: whether a full disk is an error, not only a warning."""

    def __init__(
        self, planner: Planner | IndexPlanner, reporter: Reporter, must_store: bool = True
    ) -> None:
        self.planner, self.reporter, self.must_store = planner, reporter, must_store
        self._show: Any = None
        self._plan: Any = None
        self._started, self._resumed_at = 0.0, 0
        self._warned = set[str]()

    def found(self, book: Book) -> None:
        self._warn_missing(book.document)

    def unread(self, document: Document, tokens: int) -> None:
        self._warn_missing(document)

    def unstored(self, document: Document, error: DiskError) -> bool:
        self.reporter.clear_spinner()
        if not self.must_store:
            self._warn_once(f"esa: documents are not stored: {error.message}")
        return not self.must_store

    def started(self, document: Document, tokens: int, stored_bytes: int | None) -> None:
        self._plan = self.planner.plan(tokens)
        stored = "" if stored_bytes is None else f", {size_text(stored_bytes)} in the library"
        self.reporter.note(f"esa: {document.name}: {tokens:,} tokens{stored}")
        self._warn_missing(document)
        self._show = self.reporter.make_prefill_progress(tokens, self._plan.seconds)
        self._started, self._resumed_at = time.perf_counter(), 0

    def progress(self, done: int, total: int) -> None:
        self._resumed_at = self._resumed_at or done
        self._show(done, total)
        if done == total:
            seconds = time.perf_counter() - self._started
            self.reporter.clear_spinner()
            if total >= MIN_MEASURED_TOKENS >= self._resumed_at:
                self.planner.remember(self._plan, seconds)

    def waiting(self) -> None:
        self.reporter.note(
            "esa: waiting for another esa process that ingests the same document", dim=False
        )

    def finished(self) -> None:
        self.reporter.clear_spinner()

    def _warn_missing(self, document: Document) -> None:
        """Warns, once for each document, of contents that could not be extracted."""
        for text in () if self.reporter.is_brief else document.missing:
            self._warn_once(f"esa: {document.name}: {text}")

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self.reporter.warn(text)


@contextmanager
def open_esa(
    chosen: Preset | Preflight,
    options: ModelOptions,
    reporter: Reporter,
    *,
    keep: bool | None = None,
    rows: str = "int8",
    library: Library | None = None,
    reader: ReaderChoice | None = None,
) -> Iterator[Esa]:
    """A context that loads the model of a preset, and closes the model at the end of the block.

    Args:
        keep: whether documents are stored in the library. None means that only token indexes are
            stored, which are small and take long to make.
        rows: precision of stored KV caches. library: None means the user's library.
        reader: the model that writes the answers; None means the reader of the preset.

    Raises PresetError, ModelError, ResourceError. UsageError: documents cannot be stored.
    ReaderError: the reader's server cannot be used."""
    if options.cache == "disk":
        if keep is False:
            wrong = "--cache disk stores documents in the library"
            raise UsageError(wrong, "leave out --no-keep or --cache")
        keep = True
    ready = chosen
    if not isinstance(ready, Preflight):
        ready = prepare(ready, options.model_place, reporter, keep=keep)
    from esa_cli.models.files.quiet_transformers import quiet_transformers
    from esa_cli.qa.api import Esa
    from esa_cli.storage.library import Library

    library, stores = library or Library(), ready.index is not None if keep is None else keep
    if stores and keep is None and not library.writable:
        reporter.warn(f"esa: documents are not stored: {library.root} cannot be written")
        stores = False
    display = PrefillDisplay(ready.ingest_planner, reporter, must_store=keep is not None)
    with (
        quiet_transformers(imported=False),
        Esa.from_preflight(
            ready, library=library, keep=stores, rows=rows, reader=reader, events=display,
            notices=reporter,
        ) as esa,
    ):  # fmt: skip
        reporter.clear_spinner()
        try:
            yield esa
        finally:
            reporter.clear_spinner()
