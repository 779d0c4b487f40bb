"""Makes books: documents prefilled by a session, or found in the library.

Each document is prefilled on its own, whatever it is asked together with later.
"""

from __future__ import annotations

import time
from functools import cached_property
from typing import Any
from weakref import ref

import torch

from esa_cli.attention.interfaces import LayerState
from esa_cli.documents.document import Document, read_document
from esa_cli.errors import LibraryError, UsageError
from esa_cli.models.inspection import kv_dtype, layer_devices
from esa_cli.qa.archive import layout, maps, provenance, restored, storable
from esa_cli.qa.books import Book
from esa_cli.qa.cache_key import cache_key, model_facts
from esa_cli.qa.ingest_events import IngestEvents
from esa_cli.qa.planning.plan import Planner
from esa_cli.qa.session import Session
from esa_cli.qa.tokenised_document import TokenisedDocument
from esa_cli.storage.library import SEGMENT, Entry, Layout, Library
from esa_cli.storage.prefilled_document import PrefilledDocument
from esa_cli.system.progress import Progress, WaitNotice, combined

SERVES = {"int8": ("int8", "native"), "native": ("native",)}
"""Requested row format -> stored formats that satisfy it."""
STORED_AT_ONCE = 8192
"""Most tokens whose rows are in memory while a document is stored in the library."""


class DocumentIngest:
    """Makes books with one session.

    Args:
        library: where documents are looked for; None: nowhere.
        keep: whether documents that are not in the library are stored there.
        rows: how: `int8`, or `native` bit for bit.
        events: the observer. planner: what is read must fit its memory; None: nobody looks.
    """

    def __init__(
        self,
        session: Session,
        library: Library | None = None,
        keep: bool = True,
        rows: str = "int8",
        events: IngestEvents | None = None,
        planner: Planner | None = None,
    ) -> None:
        self.session, self.library, self.keep, self.rows = session, library, keep, rows
        self.events, self.planner = events or IngestEvents(), planner
        self._alive: list[ref[Book]] = []

    @property
    def in_memory(self) -> int:
        """Tokens of the books made here that are in memory and not on disk."""
        self._alive = [one for one in self._alive if one() is not None]
        return sum(book.tokens for one in self._alive if (book := one()) is not None)

    def layout(self, rows: str) -> Layout:
        """The layout of this model's rows in the library, `int8` or `native`.

        Raises:
            ModelError: its layers compute in different types.
        """
        dtype = str(kv_dtype(self.session.model)).removeprefix("torch.")
        shape = self._model_facts["fingerprint"]
        return layout(self.session.method, shape, dtype, rows)

    @cached_property
    def _model_facts(self) -> dict[str, Any]:
        return model_facts(self.session.model, self.session.tokenizer)

    def _key(self, text: str, rows: str) -> tuple[str, str]:
        assert self.library is not None
        method = self.session.method
        session = self.session
        head, layout = session.prompt.head(), self.layout(rows)
        known = cache_key(self._model_facts, head, session.preset, method, layout)
        return known, self.library.key(known, text)

    def find(self, document: Document) -> Book | None:
        """The document as it was read before, if it is in the library.

        Raises:
            LibraryError: it is there, and damaged.
        """
        if self.library is None or not storable(self.session.method):
            return None
        for rows in SERVES.get(self.rows, (self.rows,)):
            entry = self.library.find(self._key(document.text, rows)[1])
            book = self._if_there(document, entry) if entry else None
            if book is not None:
                return self._found(book)
        return None

    def _if_there(self, document: Document, entry: Entry) -> Book | None:
        """The book, or None if somebody has removed it since it was found."""
        assert self.library is not None
        try:
            return self._book(document, entry)
        except LibraryError:
            if self.library.find(entry.key) is not None:
                raise
            return None

    def _found(self, book: Book) -> Book:
        self.events.found(book)
        return book

    def _book(self, document: Document, entry: Entry, read_s: float = 0.0) -> Book:
        assert self.library is not None
        stored = self.library.open(entry)
        layers = stored.layers(layer_devices(self.session.model))
        projections = stored.projections or [None] * len(layers)
        states: list[dict[type, LayerState]] = [{} for _ in layers]
        held = PrefilledDocument(stored.ids, layers, projections, entry.head, states=states)
        return Book(document, held, stored.offsets[entry.head :], entry, read_s)

    def stored(self, entry: Entry) -> Book:
        """A book of the library, whatever became of its file.

        Raises:
            UsageError: it was read by another model or method. LibraryError: it is damaged.
        """
        assert self.library is not None
        stored = self.library.open(entry)
        if self._key(stored.text, entry.layout.kind)[1] != entry.key:
            raise UsageError(
                f"{entry.name} ({entry.id}) was read by another model or other settings",
                "ask with the preset it was ingested with, or ingest it with this one",
            )
        document = restored(stored.text, stored.marks, entry.provenance)
        return self._found(self._book(document, entry))

    def ingest(
        self, source: str | Document | TokenisedDocument, progress: Progress | None = None
    ) -> Book:
        """See `api.Esa.ingest`."""
        started = time.perf_counter()
        if isinstance(source, str):
            source = read_document(source)
        text = source if isinstance(source, TokenisedDocument) else None
        document = source.document if isinstance(source, TokenisedDocument) else source
        found = self.find(document)
        if found is not None:
            return found
        text = text or TokenisedDocument.of(document, self.session.tokenizer)
        stores = self.library is not None and self.keep and storable(self.session.method)
        if not stores and not self.session.preset.answer.needs_rows:
            self.events.unread(document, len(text.ids))
            return Book(document, None, text.offsets)
        hear = combined(self.events.progress, progress)
        try:
            if stores:
                return self._store(text, hear, progress, started)
            return self._read(text, hear, started)
        finally:
            self.events.finished()

    def _read(self, text: TokenisedDocument, hear: Progress, started: float) -> Book:
        """Reads the document into memory."""
        session = self.session
        ids = session.prompt.head() + text.ids
        if self.planner:
            self.planner.check(self.in_memory + len(ids))
        self.events.started(text.document, len(ids), None)
        try:
            session.begin(ids)
            session.resume(hear)
        except BaseException:
            session.clear()
            raise
        spent = time.perf_counter() - started
        book = Book(text.document, session.prefilled_document(), text.offsets, None, spent)
        self._alive.append(ref(book))
        return book

    def _store(
        self,
        text: TokenisedDocument,
        hear: Progress,
        more: Progress | None,
        started: float,
    ) -> Book:
        """Reads the document into the library, from where an earlier process stopped."""
        session, document, library = self.session, text.document, self.library
        assert library is not None
        known, key = self._key(document.text, self.rows)
        head = session.prompt.head()
        ids = head + text.ids
        places, layout = layer_devices(session.model), self.layout(self.rows)
        waiting = WaitNotice(self.events.waiting, more, len(ids))
        with library.write(key, known, ids, layout, waiting, places) as writer:
            if isinstance(writer, Entry):
                there = self._if_there(document, writer)
                return there or self._store(text, hear, more, started)
            if self.planner:
                self.planner.check(min(len(ids), STORED_AT_ONCE))
            self.events.started(document, len(ids), library.size_of(len(ids), layout))
            done = PrefilledDocument(ids[: writer.done], writer.layers, writer.projections or [])

            def settle(tokens: int) -> None:
                if tokens % SEGMENT == 0:
                    writer.flush(maps(session.project()))

            try:
                session.begin(ids, done)
                session.resume(hear, settle)
                entry = writer.finish(
                    text=document.text,
                    offsets=torch.cat((torch.zeros(len(head), 2, dtype=torch.int64), text.offsets)),
                    marks=[list(mark) for mark in document.marks],
                    head=len(head),
                    provenance=provenance(document, session.preset, self.rows),
                    projections=maps(session.project()),
                )
            finally:
                session.clear()
        return self._book(document, entry, time.perf_counter() - started)
