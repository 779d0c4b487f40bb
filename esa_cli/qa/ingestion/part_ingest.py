"""Base class of what makes a part of books: KV rows (`row_ingest`) or token indexes
(`index_ingest`), each computed once and stored as a document of the library."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple
from weakref import ref

import torch

from esa_cli.documents.document import Document
from esa_cli.errors import DiskError, LibraryError
from esa_cli.qa.answering.lazy_session import LazySession
from esa_cli.qa.books import Book
from esa_cli.qa.ingestion.ingest_events import IngestEvents
from esa_cli.qa.ingestion.tokenised_document import TokenisedDocument
from esa_cli.qa.planning.plan import Planner
from esa_cli.storage.library import Entry, Layout, Library
from esa_cli.storage.library.entry_writer import Writer
from esa_cli.system.progress import Progress, WaitNotice


class StoredForm(NamedTuple):
    """How a document's part is stored: its `identity`, all token `ids`, the `layout`, each layer's
    device ((): all on the processor), and the bytes of its states."""

    identity: str
    ids: Sequence[int]
    layout: Layout
    devices: Sequence[torch.device] = ()
    states: int = 0


class PartIngest(ABC):
    """Makes one part of books, or finds it in the library.

    Args:
        library: where it is looked for; None: nowhere. keep: whether what is not there is stored.
        planner: what is read must fit its memory; None: nobody looks.
    """

    def __init__(
        self,
        lazy: LazySession,
        library: Library | None,
        keep: bool,
        events: IngestEvents,
        planner: Planner | None,
    ) -> None:
        self.lazy, self.library, self.keep = lazy, library, keep
        self.events, self.planner = events, planner
        self.stored_tokens: int | None = None
        """Tokens on disk of the document that was made last; None: it is not stored there."""
        self._alive: list[ref[Book]] = []

    @abstractmethod
    def keys(self, text: str) -> list[str]:
        """The keys under which a text serves, the best first; there is a library."""

    @abstractmethod
    def owns(self, entry: Entry) -> bool:
        """Whether a stored document is of this part, model and settings."""

    @abstractmethod
    def open(self, document: Document, entry: Entry, read_s: float = 0.0) -> Book:
        """The book of a stored document. Raises LibraryError: it is damaged."""

    @abstractmethod
    def form(self, text: TokenisedDocument) -> StoredForm:
        """How the document will be stored."""

    @abstractmethod
    def store(self, writer: Writer, text: TokenisedDocument, hear: Progress) -> Entry:
        """Computes what is not on disk yet, and stores it."""

    @abstractmethod
    def compute(self, text: TokenisedDocument, hear: Progress, started: float) -> Book:
        """Computes the part in memory."""

    @property
    def stores(self) -> bool:
        """Whether what is computed is stored."""
        return self.library is not None and self.keep

    @property
    def in_memory(self) -> int:
        """Tokens of the books made here whose part is in memory."""
        self._alive = [one for one in self._alive if one() is not None]
        return sum(book.tokens for one in self._alive if (book := one()) is not None)

    def held(self, book: Book) -> Book:
        """The book, counted in `in_memory` while it is used."""
        self._alive.append(ref(book))
        return book

    def find(self, document: Document) -> Book | None:
        """The document's part, if it is in the library. Raises LibraryError: it is damaged."""
        if self.library is None:
            return None
        for key in self.keys(document.text):
            entry = self.library.find(key)
            book = self._if_there(document, entry) if entry else None
            if book is not None:
                return book
        return None

    def _if_there(self, document: Document, entry: Entry) -> Book | None:
        """The book, or None if somebody has removed it since it was found."""
        assert self.library is not None
        try:
            return self.open(document, entry)
        except LibraryError:
            if self.library.find(entry.key) is not None:
                raise
            return None

    def make(
        self, text: TokenisedDocument, hear: Progress, more: Progress | None, started: float
    ) -> Book:
        """Computes the part, in the library from where an earlier process stopped; in memory where
        its disk is full and `IngestEvents.unstored` says so.

        Args:
            hear: told what is done. more: told, too, while another process has the document.
            started: when the ingest began.
        """
        self.stored_tokens = None
        if self.stores:
            try:
                return self._make_stored(text, hear, more, started)
            except DiskError as error:
                if not self.events.unstored(text.document, error):
                    raise
            self.stored_tokens = None
            self.events.finished()
        return self.compute(text, hear, started)

    def _make_stored(
        self, text: TokenisedDocument, hear: Progress, more: Progress | None, started: float
    ) -> Book:
        library, document, form = self.library, text.document, self.form(text)
        assert library is not None
        key = library.key(form.identity, document.text)
        tokens = len(form.ids)
        waiting = WaitNotice(self.events.waiting, more, tokens)
        with library.write(
            key, form.identity, form.ids, form.layout, waiting, form.devices, form.states
        ) as writer:
            if isinstance(writer, Entry):
                there = self._if_there(document, writer)
                return there or self.make(text, hear, more, started)
            self.check_memory(tokens)
            size = library.size_of(tokens, form.layout, form.states)
            self.events.started(document, tokens, size)
            try:
                entry = self.store(writer, text, hear)
            finally:
                self.stored_tokens = writer.done
        return self.open(document, entry, time.perf_counter() - started)

    def check_memory(self, tokens: int) -> None:
        """Raises ResourceError where so many more tokens do not fit into memory."""
        if self.planner:
            self.planner.check(self.in_memory + tokens)
