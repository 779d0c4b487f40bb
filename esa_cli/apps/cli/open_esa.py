"""A loaded `Esa` for commands that ask; it shows progress and refuses documents that do not fit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.output.progress_display import prefill_bar
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.documents.document import Document
from esa_cli.errors import DiskError, UsageError
from esa_cli.qa.ingestion.ingest import IngestEvents
from esa_cli.qa.opening import Preflight, prepare
from esa_cli.qa.presets.preset import Preset
from esa_cli.system.machine import size_text

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa
    from esa_cli.qa.finding.books import Book
    from esa_cli.qa.planning.plan import Planner
    from esa_cli.qa.reading.reader_choice import ReaderChoice
    from esa_cli.storage.library import Library

WORTH_REMEMBERING = 2048
"""Tokens that an ingest must have for its speed to say something about the next."""


class PrefillDisplay(IngestEvents):
    """Shows documents being read, with their rate; keeps the speed for the next estimate.

    Args:
        reads_later: what is opened unread is read after a first answer, which then says so.
        must_store: a full disk is an error; else a warning, and the document is held in memory.
    """

    def __init__(
        self,
        planner: Planner,
        reporter: Reporter,
        reads_later: bool = False,
        must_store: bool = True,
    ) -> None:
        self.planner, self.reporter, self.reads_later = planner, reporter, reads_later
        self.must_store = must_store
        self._bar = ExitStack()
        self._show: Any = None
        self._plan: Any = None
        self._since, self._first = 0.0, 0
        self._said = set[str]()

    def found(self, book: Book) -> None:
        if not self.reporter.is_brief and book.entry is not None:
            self.reporter.note(f"esa: {book.document.name} was read before ({book.entry.id})")
        self._say_missing(book.document)

    def unread(self, document: Document, tokens: int) -> None:
        if not self.reads_later and not self.reporter.is_brief:
            self.reporter.note(f"esa: {document.name}: {tokens:,} tokens, asked without being read")
        self._say_missing(document)

    def unstored(self, document: Document, error: DiskError) -> bool:
        self.reporter.settle()
        if not self.must_store:
            self._warn_once(f"esa: documents are not stored: {error.message}")
        return not self.must_store

    def started(self, document: Document, tokens: int, stored_bytes: int | None) -> None:
        self._plan = self.planner.plan(tokens)
        where = "" if stored_bytes is None else f", {size_text(stored_bytes)} in the library"
        self.reporter.note(f"esa: {document.name}: {tokens:,} tokens{where}")
        self._say_missing(document)
        bar = prefill_bar(self.reporter, tokens, self._plan.seconds)
        self._show = self._bar.enter_context(bar)
        self._since, self._first = time.perf_counter(), 0

    def progress(self, done: int, total: int) -> None:
        self._first = self._first or done
        self._show(done, total)
        if done == total:
            spent = time.perf_counter() - self._since
            self.finished()
            if total >= WORTH_REMEMBERING >= self._first:  # not resumed: one piece at most
                self.planner.remember(self._plan, spent)

    def waiting(self) -> None:
        self.reporter.note("esa: waiting for another esa that reads the same document", dim=False)

    def finished(self) -> None:
        self._bar.close()

    def _say_missing(self, document: Document) -> None:
        """Says what the document lacks; it may be asked first and read then."""
        if not self.reporter.is_brief:
            for text in document.missing:
                self._warn_once(f"esa: {document.name}: {text}")

    def _warn_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.reporter.warn(text)


@contextmanager
def opened(
    chosen: Preset | Preflight,
    options: ModelOptions,
    reporter: Reporter,
    *,
    keep: bool | None = None,
    rows: str = "int8",
    library: Library | None = None,
    reader: ReaderChoice | None = None,
    reads_later: bool = False,
) -> Iterator[Esa]:
    """A loaded model that finds documents in the user's library.

    Args:
        keep: whether what is not there is stored there; None: what is read for an index is, which
            is small and takes long to read. rows: how; see `api.Esa`.
        library: another than the user's. reader: another model that words the answers; None: the
            preset's, if it has one. reads_later: see `PrefillDisplay`.

    Raises UsageError: documents cannot be stored. PresetError, ModelError, ResourceError.
    ReaderError: the reader's server cannot be used."""
    if options.cache == "disk":
        if keep is False:
            wrong = "--cache disk stores documents in the library"
            raise UsageError(wrong, "leave --no-keep or --cache out")
        keep = True
    ready = chosen
    if not isinstance(ready, Preflight):
        ready = prepare(ready, options.place, reporter, keep=keep)
    from esa_cli.models.files.quiet_transformers import quiet_transformers
    from esa_cli.qa.api import Esa
    from esa_cli.storage.library import Library

    library, stores = library or Library(), ready.index is not None if keep is None else keep
    if stores and keep is None and not library.writable:
        reporter.warn(f"esa: documents are not stored: {library.root} cannot be written")
        stores = False
    display = PrefillDisplay(ready.planner, reporter, reads_later, must_store=keep is not None)
    with (
        quiet_transformers(imported=False),
        Esa.of(
            ready, library=library, keep=stores, rows=rows, reader=reader, events=display,
            notices=reporter,
        ) as esa,
    ):  # fmt: skip
        reporter.settle()
        try:
            yield esa
        finally:
            display.finished()
