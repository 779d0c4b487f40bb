"""Books: documents as a model read them, found in the library or read now.

A book is read on its own, whatever it is asked together with later. Reading goes through a session;
what was read is then held apart from it. Knows nothing about questions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from esa_cli.documents.document import Document, read_document
from esa_cli.errors import LibraryError, UsageError
from esa_cli.models.inspection import kv_dtype, layer_devices
from esa_cli.qa.archive import layout, maps, provenance, restored, storable
from esa_cli.qa.cache_key import identity, model_facts
from esa_cli.qa.session import Session
from esa_cli.storage.library import SEGMENT, Entry, Layout, Library
from esa_cli.storage.prefilled_document import PrefilledDocument
from esa_cli.system.progress import Progress, WaitNotice, combined

SERVES = {"int8": ("int8", "native"), "native": ("native",)}
"""How rows are wanted -> how those may be kept that serve: who wants every bit gets no other."""
STORED_AT_ONCE = 8192
"""Tokens whose rows are in memory at most while a document is read into the library."""


@dataclass(frozen=True)
class Book:
    """One document as a model read it.

    Args:
        document: its text, and where it came from. held: its memory.
        spans: (n, 2) first and last character of each token of its text.
        entry: where it is in the library, if it is. read_s: seconds of reading; 0: it was found.
    """

    document: Document
    held: PrefilledDocument
    spans: Tensor
    entry: Entry | None = None
    read_s: float = 0.0

    @property
    def tokens(self) -> int:
        """Its tokens, the prompt's head included."""
        return len(self.held.ids)


@dataclass
class Books:
    """Makes books with one session.

    Args:
        library: where documents are looked for; None: nowhere.
        keep: whether documents that are not there are put there.
        rows: how: `int8`, or `native` bit for bit.
        begin: called with (document, its tokens, whether it will be kept) before it is read; what
            it raises passes through. progress: called while it is read.
        waiting: called once where another process reads the same document into the library, and
            this one waits for it. found: called with a book that was read before.
        room: called before `begin` with the tokens that will be in memory at most, those of other
            books included; what it raises passes through. ended: called after a reading, whether
            it came to its end or not.
    """

    session: Session
    library: Library | None = None
    keep: bool = True
    rows: str = "int8"
    begin: Callable[[Document, int, bool], None] | None = None
    progress: Progress | None = None
    waiting: Callable[[], None] | None = None
    found: Callable[[Book], None] | None = None
    room: Callable[[int], None] | None = None
    ended: Callable[[], None] | None = None
    _alive: list[ref[Book]] = field(default_factory=list, init=False)

    @property
    def in_memory(self) -> int:
        """Tokens of the books made here that are in memory and not on disk."""
        self._alive = [one for one in self._alive if one() is not None]
        return sum(book.tokens for one in self._alive if (book := one()) is not None)

    def on_disk(self, tokens: int) -> int:
        """About how many bytes a document of so many tokens takes in the library."""
        return self.library.size_of(tokens, self.layout(self.rows)) if self.library else 0

    def layout(self, rows: str) -> Layout:
        """How this model's rows would be stored, `int8` or `native`.

        Raises:
            ModelError: its layers compute in different types.
        """
        dtype = str(kv_dtype(self.session.model)).removeprefix("torch.")
        shape = self._model_facts["fingerprint"]
        return layout(self.session.attachment.method, shape, dtype, rows)

    @cached_property
    def _model_facts(self) -> dict[str, Any]:
        return model_facts(self.session.model, self.session.tokenizer)

    def _key(self, text: str, rows: str) -> tuple[str, str]:
        assert self.library is not None
        method = self.session.attachment.method
        session = self.session
        head, layout = session.prompt.head(), self.layout(rows)
        known = identity(self._model_facts, head, session.preset, method, layout)
        return known, self.library.key(known, text)

    def find(self, document: Document) -> Book | None:
        """The document as it was read before, if it is in the library.

        Raises:
            LibraryError: it is there, and damaged.
        """
        if self.library is None or not storable(self.session.attachment.method):
            return None
        for rows in SERVES.get(self.rows, (self.rows,)):
            entry = self.library.find(self._key(document.text, rows)[1])
            book = self._if_there(document, entry) if entry else None
            if book is not None:
                return self._told(book)
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

    def _told(self, book: Book) -> Book:
        if self.found:
            self.found(book)
        return book

    def _book(self, document: Document, entry: Entry, read_s: float = 0.0) -> Book:
        assert self.library is not None
        stored = self.library.open(entry)
        layers = stored.layers(layer_devices(self.session.model))
        projections = stored.projections or [None] * len(layers)
        held = PrefilledDocument(stored.ids, layers, projections, entry.head)
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
        return self._told(self._book(document, entry))

    def ingest(self, source: str | Document, progress: Progress | None = None) -> Book:
        """See `api.Esa.ingest`."""
        document = source if isinstance(source, Document) else read_document(source)
        found = self.find(document)
        if found is not None:
            return found
        hear, session = combined(self.progress, progress), self.session
        try:
            if self.library is None or not self.keep or not storable(session.attachment.method):
                return self._read(document, hear)
            return self._store(document, self.library, hear, progress)
        finally:
            if self.ended:
                self.ended()

    def _begin(self, document: Document, tokens: int, kept: bool) -> None:
        if self.room:
            self.room(min(tokens, STORED_AT_ONCE) if kept else self.in_memory + tokens)
        if self.begin:
            self.begin(document, tokens, kept)

    def _read(self, document: Document, hear: Progress) -> Book:
        started, session = time.perf_counter(), self.session
        ids = session.prompt.document(document.text)
        self._begin(document, len(ids), False)
        try:
            session.begin(ids)
            session.resume(hear)
        except BaseException:
            session.forget()
            raise
        spans = torch.tensor(session.prompt.offsets(document.text)).reshape(-1, 2)
        book = Book(document, session.held(), spans, None, time.perf_counter() - started)
        self._alive.append(ref(book))
        return book

    def _store(
        self, document: Document, library: Library, hear: Progress, more: Progress | None
    ) -> Book:
        started, session = time.perf_counter(), self.session
        known, key = self._key(document.text, self.rows)
        ids, head = session.prompt.document(document.text), len(session.prompt.head())
        spans = [(0, 0)] * head + session.prompt.offsets(document.text)
        places = layer_devices(self.session.model)
        waiting, layout = WaitNotice(self.waiting, more, len(ids)), self.layout(self.rows)
        with library.write(key, known, ids, layout, waiting, places) as writer:
            if isinstance(writer, Entry):
                there = self._if_there(document, writer)
                return there or self._store(document, library, hear, more)
            self._begin(document, len(ids), True)
            try:
                session.begin(
                    ids,
                    PrefilledDocument(ids[: writer.done], writer.layers, writer.projections or []),
                )

                def settle(done: int) -> None:
                    if done % SEGMENT == 0:
                        writer.settle(maps(session.project()))

                session.resume(hear, settle)
                entry = writer.finish(
                    text=document.text,
                    offsets=spans,
                    marks=[list(mark) for mark in document.marks],
                    head=head,
                    provenance=provenance(document, session.preset, self.rows),
                    projections=maps(session.project()),
                )
            finally:
                session.forget()
        return self._book(document, entry, time.perf_counter() - started)
