"""Makes books: documents read by a model, or found in the library.

What is read of a document, on its own, are KV rows (`row_ingest`) or a token index
(`index_ingest`); each is computed once and stored as a document of the library.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import ref

import torch

from esa_cli.documents.document import Document, read_document
from esa_cli.errors import DiskError, LibraryError, ResourceError, UsageError
from esa_cli.qa.finding.books import Book, TokenisedDocument
from esa_cli.qa.ingestion.library_texts import record_document, restored
from esa_cli.qa.presets.preset import Preset
from esa_cli.storage.library import Entry, Layout, Library
from esa_cli.storage.library.stored_document import Writer
from esa_cli.system.files import resolved_path
from esa_cli.system.progress import Progress, WaitNotice, combined
from esa_cli.version import __version__

if TYPE_CHECKING:
    from esa_cli.attention.method import Method
    from esa_cli.qa.answering.session import Session
    from esa_cli.qa.planning.plan import Planner
    from esa_cli.qa.presets.preset import Preset

Source = str | Document | TokenisedDocument
"""A path, - for standard input, a document, or one that is tokenised already."""


class IngestEvents:
    """Called while books are made. A subclass overrides what it wants to see; an exception raised
    in a method ends the ingest and propagates."""

    def found(self, book: Book) -> None:
        """The book is in the library: nothing is read."""

    def unread(self, document: Document, tokens: int) -> None:
        """The document is not read: answers come from its text alone, and nothing is stored."""

    def started(self, document: Document, tokens: int, stored_bytes: int | None) -> None:
        """The document will be read.

        Args:
            tokens: of the document and of the prompt before it.
            stored_bytes: about what it will take in the library; None: it stays in memory.
        """

    def progress(self, done: int, total: int) -> None:
        """So many tokens have been read, of so many."""

    def unstored(self, document: Document, error: DiskError) -> bool:
        """The library's disk has no room for the document. Returns whether it is
        then read into memory; else the error is raised."""
        return False

    def waiting(self) -> None:
        """Another process reads the same document into the library, and this one waits for it."""

    def finished(self) -> None:
        """Reading or waiting has ended, with a book or with an exception."""


class ProgressEvents(IngestEvents):
    """Hands the progress of all ingests to a function."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress

    def progress(self, done: int, total: int) -> None:
        if self._progress:
            self._progress(done, total)


class StoredForm(NamedTuple):
    """How a document is stored in the library: all its token ids, the layout, the device of its
    rows (None: the CPU), and the bytes of its states."""

    identity: str
    ids: Sequence[int]
    layout: Layout
    device: torch.device | None = None
    states: int = 0


class IngestHost(Protocol):
    """What an ingest needs of `api.Esa`."""

    preset: Preset
    tokenizer: Any

    @property
    def method(self) -> Method: ...
    @property
    def session(self) -> Session: ...
    @property
    def attaches(self) -> bool: ...
    @property
    def facts(self) -> dict[str, Any]: ...
    def suspended(self) -> AbstractContextManager[None]: ...


class Ingest(ABC):
    """Makes books with one model and preset.

    Args:
        esa: of `api.Esa`.
        library: where documents are looked for; None: nowhere. keep: whether documents that are
            not there are stored there. events: the observer.
        planner: a document must fit its memory; None: there is no check.
    """

    def __init__(
        self,
        esa: IngestHost,
        library: Library | None = None,
        keep: bool = True,
        events: IngestEvents | None = None,
        planner: Planner | None = None,
    ) -> None:
        self.esa, self.library, self.keep = esa, library, keep
        self.events, self.planner = events or IngestEvents(), planner
        self.stored_tokens: int | None = None
        """Tokens on disk of the document that was read last; None: it is not stored there."""
        self._alive: list[ref[Book]] = []

    @abstractmethod
    def identities(self) -> list[str]:
        """What stored documents that serve depend on, beside their text; the best first."""

    @abstractmethod
    def owns(self, entry: Entry) -> bool:
        """Whether a stored document is of this kind, model and settings."""

    @abstractmethod
    def opened(self, document: Document, entry: Entry, read_s: float = 0.0) -> Book:
        """The book of a stored document. Raises LibraryError: it is damaged."""

    @abstractmethod
    def form(self, text: TokenisedDocument) -> StoredForm:
        """How the document will be stored."""

    @abstractmethod
    def store(self, writer: Writer, text: TokenisedDocument, hear: Progress) -> Entry:
        """Computes what is not on disk yet, and stores it."""

    @abstractmethod
    def compute(self, text: TokenisedDocument, hear: Progress, started: float) -> Book:
        """Computes the book in memory, of an ingest that began at `started`."""

    @property
    def reads(self) -> bool:
        """Whether anything is read of a document."""
        return True

    @property
    def needs_rows(self) -> bool:
        """Whether the preset answers from rows."""
        return self.esa.preset.answer.needs_rows

    @property
    def stores(self) -> bool:
        """Whether what is computed is stored."""
        return self.library is not None and self.keep

    @property
    def in_memory(self) -> int:
        """Tokens of the books made here that are in memory."""
        self._alive = [one for one in self._alive if one() is not None]
        return sum(book.tokens for one in self._alive if (book := one()) is not None)

    def held(self, book: Book) -> Book:
        """The book, counted in `in_memory` while it is used."""
        self._alive.append(ref(book))
        return book

    def find(self, document: Document) -> Book | None:
        """The document's book, if it is in the library. Raises LibraryError: it is damaged."""
        if self.library is None:
            return None
        for identity in self.identities():
            entry = self.library.find(self.library.key(identity, document.text))
            book = self._if_there(document, entry) if entry else None
            if book is not None:
                self.events.found(book)
                return book
        return None

    def _if_there(self, document: Document, entry: Entry) -> Book | None:
        """The book, or None if another process has removed it since it was found."""
        assert self.library is not None
        try:
            return self.opened(document, entry)
        except LibraryError:
            if self.library.find(entry.key) is not None:
                raise
            return None

    def stored(self, entry: Entry) -> Book:
        """A book of the library, whatever became of its file. Raises UsageError: it was read by
        another model or method. LibraryError: it is damaged."""
        assert self.library is not None
        if not self.owns(entry):
            raise UsageError(
                f"{entry.name} ({entry.id}) was read by another model or other settings",
                "ask with the preset it was ingested with, or ingest it with this one",
            )
        document = restored(self.library.text(entry), entry.marks, entry.provenance)
        book = self.opened(document, entry)
        self.events.found(book)
        return book

    def open(self, source: Source) -> Book:
        """See `api.Esa.open`."""
        return self._ingest(source, None, self.needs_rows)

    def ingest(self, source: Source, progress: Progress | None = None) -> Book:
        """See `api.Esa.ingest`."""
        return self._ingest(source, progress, self.reads)

    def _ingest(self, source: Source, progress: Progress | None, reads: bool) -> Book:
        started = time.perf_counter()
        text = source if isinstance(source, TokenisedDocument) else None
        if isinstance(source, TokenisedDocument):
            document = source.document
        else:
            document = read_document(source) if isinstance(source, str) else source
        if (stored := self.find(document)) is not None:
            return self._recorded(stored)
        text = text or TokenisedDocument.of(document, self.esa.tokenizer)
        if not reads:
            self.events.unread(document, len(text.ids))
            return Book(document, None, text.offsets)
        try:
            return self._recorded(self._made(text, progress, started))
        finally:
            self.events.finished()

    def _made(self, text: TokenisedDocument, more: Progress | None, started: float) -> Book:
        """Computes a book, in the library from where an earlier process stopped; in memory where
        its disk is full and `IngestEvents.unstored` says so.

        Args:
            more: called with what is done, and while another process reads the document.
        """
        self.stored_tokens = None
        hear = combined(self.events.progress, more)
        form = self.form(text) if self.stores else None
        if form is None or not form.ids:
            return self.compute(text, hear, started)
        waiting = WaitNotice(self.events.waiting, more, len(form.ids))
        try:
            book = self._stored(text, form, hear, waiting, started)
        except DiskError as error:
            if not self.events.unstored(text.document, error):
                raise
            self.stored_tokens = None
            self.events.finished()
            return self.compute(text, hear, started)
        # Another process has read it, and a third one has removed it since.
        return book or self._made(text, more, started)

    def _stored(
        self, text: TokenisedDocument, form: StoredForm, hear: Progress, waiting: WaitNotice,
        started: float,
    ) -> Book | None:  # fmt: skip
        library, document, tokens = self.library, text.document, len(form.ids)
        assert library is not None
        devices = [] if form.device is None else [form.device] * form.layout.layers
        with library.write(
            library.key(form.identity, document.text), form.identity, form.ids, form.layout,
            waiting, devices, form.states,
        ) as writer:  # fmt: skip
            if isinstance(writer, Entry):  # another process has read it
                return self._if_there(document, writer)
            self.check_memory(tokens)
            size = library.size_of(tokens, form.layout, form.states)
            self.events.started(document, tokens, size)
            try:
                entry = self.store(writer, text, hear)
            finally:
                self.stored_tokens = writer.done
        return self.opened(document, entry, time.perf_counter() - started)

    def check_memory(self, tokens: int) -> None:
        """Raises ResourceError where so many more tokens do not fit into memory."""
        if self.planner:
            self.planner.check(self.in_memory + tokens)

    def _recorded(self, book: Book) -> Book:
        """The book; the library learns which text its file has now."""
        library, document = self.library, book.document
        if library and book.entry and document.stamp is not None:
            with suppress(LibraryError, ResourceError), library.catalogue() as catalogue:
                record_document(catalogue, document)
        return book


def provenance(document: Document, preset: Preset, rows: str) -> dict[str, Any]:
    """A document's source, preset and model as JSON data for people; no part of its key."""
    return {
        "name": document.name,
        "source": document.source,
        "path": resolved_path(document.source) if os.path.isfile(document.source) else "",
        "bytes": document.bytes,
        "missing": list(document.missing),
        "model": preset.model,
        "preset": preset.name,
        "esa": __version__,
        "rows": rows,
    }
