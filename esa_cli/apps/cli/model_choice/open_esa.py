"""A loaded `Esa` for commands that ask; it shows what is read, and refuses what does not fit."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.model_choice.known_model import KnownModel, ModelPlace, inspect_model
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.output.progress_display import prefill_bar
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.documents.document import Document
from esa_cli.errors import DiskError, UsageError
from esa_cli.qa.ingestion.ingest import IngestEvents
from esa_cli.qa.presets.preset import Preset
from esa_cli.system.machine import size_text

if TYPE_CHECKING:
    from esa_cli.models import DeferredModel, LoadedModel
    from esa_cli.qa.api import Esa
    from esa_cli.qa.books import Book, TokenisedDocument
    from esa_cli.qa.finding.load_encoder import FinderSizes
    from esa_cli.qa.planning.plan import Planner
    from esa_cli.qa.presets.resolved_preset import ResolvedPreset
    from esa_cli.qa.second_model.answer_reader import AnswerReader
    from esa_cli.qa.second_model.reader_choice import ReaderChoice
    from esa_cli.storage.library import Library


@dataclass(frozen=True)
class Preflight:
    """The preset, method, model files and plan of a command, before the model is loaded."""

    resolved: ResolvedPreset
    model: KnownModel
    planner: Planner
    index: FinderSizes | None = None
    """Of the token index for which documents are read; None: their rows are, or nothing is."""
    texts: Sequence[TokenisedDocument] = ()
    """The documents, where the method is made for their length."""

    def keeps(self, asked: bool | None) -> bool:
        """Whether what is read is stored: as asked, else what is read for an index, which is
        small and takes long to read."""
        return self.index is not None if asked is None else asked


def prepare(
    chosen: Preset,
    options: ModelOptions,
    reporter: Reporter,
    *,
    method: str | None = None,
    documents: Sequence[Document] = (),
    keep: bool | None = None,
    attaches: bool = False,
) -> Preflight:
    """Builds the method, fetches the model's small files, and holds the preset to them.

    Args:
        method: a whole method over the preset; it may be made for the length of `documents`.
        keep: whether what is read will be stored in the library; see `Preflight.keeps`.
        attaches: whether ESA's methods must be able to run in the model, whatever the preset is.

    Raises:
        UsageError: what is read cannot be stored, a kernel cannot run here, or no such method.
        PresetError, PluginError.
        ModelError: the model is missing or not supported.
    """
    reporter.stage("import", 0, None)
    from esa_cli.qa.finding.load_encoder import index_sizes
    from esa_cli.qa.presets.adapter_files import check_adapter
    from esa_cli.qa.presets.resolved_preset import apply, resolve, stretches

    model, texts = None, list[Any]()
    if method is not None and documents and stretches(method, chosen):
        model = inspect_model(apply(method, chosen), ModelPlace.of(options), reporter)
        texts = model.tokenise(documents)
    resolved = resolve(chosen, method=method, length=sum(len(text.ids) for text in texts))
    check_adapter(resolved.preset.answer)
    index = index_sizes(resolved.preset)
    answer = resolved.preset.answer
    runs = attaches or answer.needs_rows or (index is None and bool(keep))
    attaches = runs or not answer.by_words
    model = model or inspect_model(resolved.preset, ModelPlace.of(options), reporter, attaches)
    if runs:
        model.check_kernels(resolved)
    if index is None and (keep or (options.cache == "disk" and not answer.by_words)):
        _check_storable(resolved)
    planner = model.planner(resolved, index, by_words=index is None and not runs)
    return Preflight(resolved, model, planner, index, texts)


def _check_storable(resolved: ResolvedPreset) -> None:
    from esa_cli.qa.ingestion.archive import hindrance

    if why := hindrance(resolved.method):
        refused = f"what is read cannot be kept in the library: {why}"
        raise UsageError(refused, "ask without keeping, or with another method")


WORTH_REMEMBERING = 2048
"""Tokens that an ingest must have for its speed to say something about the next."""


class PrefillDisplay(IngestEvents):
    """Shows what is read, with a bar; keeps the speed for the next estimate.

    Args:
        reads_later: what is opened unread is read after a first answer, which then says so.
        must_store: what is read must be stored; else a full disk is said, and it is read anyway.
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
        self._bar: Any = None
        self._show: Any = None
        self._plan: Any = None
        self._unstored = ""
        self._since = 0.0
        self._first = 0
        self._lacking: set[str] = set()

    def found(self, book: Book) -> None:
        entry = book.entry
        was = f"{book.document.name} was read before ({entry.id if entry else ''})"
        if not self.reporter.is_brief:
            self.reporter.note(f"esa: {was}")
        self._missing(book.document)

    def unread(self, document: Document, tokens: int) -> None:
        if not self.reads_later and not self.reporter.is_brief:
            self.reporter.note(f"esa: {document.name}: {tokens:,} tokens, asked without being read")
        self._missing(document)

    def unstored(self, document: Document, error: DiskError) -> bool:
        self.reporter.settle()
        if not self.must_store and error.message != self._unstored:
            self._unstored = error.message  # of many documents it is mostly the same
            self.reporter.warn(f"esa: what is read is not kept: {error.message}")
        return not self.must_store

    def started(self, document: Document, tokens: int, stored_bytes: int | None) -> None:
        self._plan = self.planner.plan(tokens)
        where = "" if stored_bytes is None else f", {size_text(stored_bytes)} in the library"
        self.reporter.note(f"esa: {document.name}: {tokens:,} tokens{where}")
        self._missing(document)
        self._bar = prefill_bar(self.reporter, tokens, self._plan.seconds)
        self._show = self._bar.__enter__()
        self._since, self._first = time.perf_counter(), 0

    def _missing(self, document: Document) -> None:
        """Says what the document lacks, once: it may be asked first and read then."""
        if self.reporter.is_brief:
            return
        for text in document.missing if document.source not in self._lacking else ():
            self.reporter.warn(f"esa: {document.name}: {text}")
        self._lacking.add(document.source)

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
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar = None


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
        keep: whether what is not there is stored there; see `Preflight.keeps`. rows: how; see
            `api.Esa`.
        library: another than the user's. reader: another model that words the answers; None: the
            preset's, if it has one.
        reads_later: see `PrefillDisplay`.

    Raises:
        UsageError: what is read cannot be stored. PresetError, ModelError, ResourceError.
        ReaderError: the reader's server cannot be used.
    """
    keep, ready = _stored(options.cache, keep), chosen
    if not isinstance(ready, Preflight):
        ready = prepare(ready, options, reporter, keep=keep)
    from esa_cli.qa.second_model.reader_choice import reader_of
    from esa_cli.storage.library import Library

    loaded, other = _load(ready, options, reader or reader_of(ready.resolved.preset), reporter)
    from esa_cli.models.loading.quiet_transformers import quiet_transformers
    from esa_cli.qa.api import Esa

    library, display = (
        library or Library(),
        PrefillDisplay(ready.planner, reporter, reads_later, must_store=keep is not None),
    )
    with (
        quiet_transformers(imported=False),
        Esa(
            loaded,
            ready.resolved,
            library=library,
            keep=_keeps(ready, keep, library, reporter),
            rows=rows,
            events=display,
            planner=ready.planner,
            reader=other,
        ) as esa,
    ):
        reporter.settle()
        try:
            yield esa
        finally:
            display.finished()


def _load(
    ready: Preflight, options: ModelOptions, reader: ReaderChoice | None, reporter: Reporter
) -> tuple[LoadedModel | DeferredModel, AnswerReader | None]:
    """The model, and the one that words answers, whose memory is taken from the plan."""
    ready.planner.check(1)
    other = None if reader is None else _connect(reader, reporter)
    of_text = ready.index is not None
    loaded = (ready.model.load_for_text if of_text else ready.model.load)(reporter)
    if reader is not None and other is None:
        other = reader.open(options.device, options.dtype, reporter.stage)
        ready.planner.memory -= other.nbytes
    return loaded, other


def _stored(cache: str, keep: bool | None) -> bool | None:
    """Whether what is read is stored, as asked and as its rows' place demands."""
    if cache == "disk" and keep is False:
        raise UsageError(
            "--cache disk stores what is read in the library", "leave --no-keep or --cache out"
        )
    return True if cache == "disk" else keep


def _keeps(ready: Preflight, keep: bool | None, library: Library, reporter: Reporter) -> bool:
    """Whether what is read is stored; a library that cannot be written is said, once."""
    kept = ready.keeps(keep)
    if kept and keep is None and not library.writable:
        reporter.warn(f"esa: what is read is not kept: {library.root} cannot be written")
        return False
    return kept


def _connect(reader: ReaderChoice, reporter: Reporter) -> AnswerReader | None:
    """The reader on a server, with a note of what is sent there. Raises ReaderError."""
    found = reader.connect()
    if found is not None and reader.address is not None:
        where = f"{found.name} at {reader.address.url}"
        reporter.note(f"esa: questions and the passages found are sent to {where}", dim=False)
    return found
