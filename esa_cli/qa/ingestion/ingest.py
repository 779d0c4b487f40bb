"""Opens stored documents from the library, or ingests documents with a model."""

from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor

from esa_cli.documents.document import Document, read_document
from esa_cli.errors import DiskError, LibraryError, ResourceError, UsageError
from esa_cli.qa.finding.finder import CONTEXT_TOKENS, PIECE, SEGMENT_TOKENS, Finder, ReducedKeys
from esa_cli.qa.finding.passage_finder import Book, TokenisedDocument
from esa_cli.qa.finding.words import SentenceWords, make_sentence_words
from esa_cli.qa.ingestion.library_texts import INDEX, rebuild_document, record_document_file
from esa_cli.storage.library import Layout, Library, LibraryEntry
from esa_cli.storage.library.library import DocumentWriter
from esa_cli.system.files import resolve_links_of_folders
from esa_cli.system.progress import OnWaitCallback, Progress, combine_progress_callbacks
from esa_cli.version import __version__

if TYPE_CHECKING:
    from esa_cli.qa.planning.plan import IngestPlanner

Source = str | Document | TokenisedDocument
"""A path, - for standard input, a document, or a tokenised document."""
FORMAT = 1
"""The version of the index format, increased when newly computed indexes would differ."""


class IngestEvents:
    """Observes the ingest of documents; an exception raised in a method here ends the ingest."""

    def found(self, book: Book) -> None:
        """Called when the document is in the library, so that nothing is computed."""

    def unread(self, document: Document, tokens: int) -> None:
        """Called when a document is not indexed, so that answers come from its text alone."""

    def started(self, document: Document, tokens: int, stored_bytes: int | None) -> None:
        """Called before a document is processed; `stored_bytes` is None if it stays in memory."""

    def progress(self, done: int, total: int) -> None:
        """Called when the model has processed `done` of `total` tokens."""

    def unstored(self, document: Document, error: DiskError) -> bool:
        """Called when the disk is full. Returns whether to keep the document in memory."""
        return False

    def waiting(self) -> None:
        """Called when this process waits because another process stores the same document."""

    def finished(self) -> None:
        """Called when an ingest has ended, with a book or with an exception."""


class ProgressEvents(IngestEvents):
    """Passes the progress of all ingests to a function."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress

    def progress(self, done: int, total: int) -> None:
        if self._progress:
            self._progress(done, total)


class StoredForm(NamedTuple):
    """How an ingested document is stored: the identity of model and settings, the token ids, and
    the layout. `states` is the number of bytes of recurrent states."""

    identity: str
    ids: Sequence[int]
    layout: Layout
    make_writer: Callable[..., DocumentWriter] = DocumentWriter
    states: int = 0


class Ingest(ABC):
    """Ingests documents for an `api.Esa` object, and stores the results if `keep` is set."""

    def __init__(
        self, esa: Any, library: Library | None = None, keep: bool = True,
        events: IngestEvents | None = None, planner: IngestPlanner | None = None,
    ) -> None:  # fmt: skip
        self.esa, self.library, self.keep = esa, library, keep
        self.events, self.planner = events or IngestEvents(), planner
        self._alive: list[ref[Book]] = []

    @abstractmethod
    def list_usable_identities(self) -> list[str]:
        """Returns the identities (model and settings) of documents that can be opened."""

    @abstractmethod
    def has_made_entry(self, entry: LibraryEntry) -> bool:
        """Whether a library entry was ingested with the same model and the same settings."""

    @abstractmethod
    def open_entry(self, document: Document, entry: LibraryEntry) -> Book:
        """Opens a library entry for questions. Raises LibraryError: the entry is damaged."""

    @abstractmethod
    def make_stored_form(self, text: TokenisedDocument) -> StoredForm:
        """Returns the identity, token ids and layout with which a document will be stored."""

    @abstractmethod
    def store_document(
        self, writer: DocumentWriter, text: TokenisedDocument, on_progress: Progress
    ) -> LibraryEntry:
        """Computes and stores the KV cache or token index for tokens that are not stored yet."""

    @abstractmethod
    def compute_book_in_memory(self, text: TokenisedDocument, on_progress: Progress) -> Book:
        """Computes a KV cache or token index that stays in memory, and is not stored."""

    @property
    def reads_documents(self) -> bool:
        """Whether an ingest runs the model on documents."""
        return True

    @property
    def stores_documents(self) -> bool:
        """Whether new documents are stored in the library."""
        return self.library is not None and self.keep

    @property
    def tokens_in_memory(self) -> int:
        """The number of tokens of all ingested documents that are still in memory."""
        self._alive = [one for one in self._alive if one() is not None]
        return sum(book.tokens for one in self._alive if (book := one()) is not None)

    def check_memory(self, tokens: int) -> None:
        """Raises ResourceError if `tokens` more tokens do not fit into memory."""
        if self.planner:
            self.planner.check_memory_suffices(self.tokens_in_memory + tokens)

    def find(self, document: Document) -> Book | None:
        """Opens a document if the library has it. Raises LibraryError: its entry is damaged."""
        for identity in self.list_usable_identities() if self.library else ():
            assert self.library is not None
            entry = self.library.find_entry(self.library.compute_key(identity, document.text))
            book = self._open_if_present(document, entry) if entry else None
            if book is not None:
                self.events.found(book)
                return book
        return None

    def stored(self, entry: LibraryEntry) -> Book:
        """Opens a library entry for questions; see `api.Esa.stored`."""
        assert self.library is not None
        if not self.has_made_entry(entry):
            raise UsageError(
                f"{entry.name} ({entry.id}) was ingested with another model or other settings",
                "use the preset of the first ingest, or ingest the document with this preset",
            )
        document = rebuild_document(self.library.text(entry), entry.marks, entry.provenance)
        book = self._track_book_in_memory(self.open_entry(document, entry))
        self.events.found(book)
        return book

    def open(self, source: Source) -> Book:
        """Opens a document or path for questions; see `api.Esa.open`."""
        return self._ingest_source(source, None, self.esa.preset.answer.needs_kv_cache)

    def ingest(self, source: Source, progress: Progress | None = None) -> Book:
        """Ingests a document or path; see `api.Esa.ingest`."""
        return self._ingest_source(source, progress, self.reads_documents)

    def _ingest_source(self, source: Source, progress: Progress | None, computes: bool) -> Book:
        started, text = time.perf_counter(), None
        if isinstance(source, TokenisedDocument):
            text, document = source, source.document
        else:
            document = read_document(source) if isinstance(source, str) else source
        if (book := self.find(document)) is not None:
            return self._record_file_text(book)
        text = text or TokenisedDocument.tokenise(document, self.esa.tokenizer)
        if not computes:
            self.events.unread(document, len(text.ids))
            return Book(document, None, text.offsets)
        try:
            return self._record_file_text(self._make_book(text, progress, started))
        finally:
            self.events.finished()

    def _make_book(
        self, text: TokenisedDocument, progress: Progress | None, started: float
    ) -> Book:
        """Ingests a document in the library, where an ingest can continue, or in memory."""
        on_progress = combine_progress_callbacks(self.events.progress, progress)
        form = self.make_stored_form(text) if self.stores_documents else None
        while form is not None and form.ids:
            notice = OnWaitCallback(self.events.waiting, progress, len(form.ids))
            try:
                book = self._store_book(text, form, on_progress, notice, started)
            except DiskError as error:
                if not self.events.unstored(text.document, error):
                    raise
                self.events.finished()
                break
            if book is not None:
                return book
            # Another process stored the document, and a third one has removed it since.
        book = self.compute_book_in_memory(text, on_progress)
        return self._track_book_in_memory(replace(book, read_s=time.perf_counter() - started))

    def _store_book(
        self, text: TokenisedDocument, form: StoredForm, on_progress: Progress,
        notice: OnWaitCallback, started: float,
    ) -> Book | None:  # fmt: skip
        library, document, tokens = self.library, text.document, len(form.ids)
        assert library is not None
        key = library.compute_key(form.identity, document.text)
        with library.open_writer(
            form.make_writer, key, form.identity, form.ids, form.layout, notice, form.states
        ) as writer:
            if isinstance(writer, LibraryEntry):  # another process has stored it
                return self._open_if_present(document, writer)
            self.check_memory(tokens)
            size = library.estimate_document_size(tokens, form.layout, form.states)
            self.events.started(document, tokens, size)
            entry = self.store_document(writer, text, on_progress)
        book = self.open_entry(document, entry)
        return self._track_book_in_memory(replace(book, read_s=time.perf_counter() - started))

    def _open_if_present(self, document: Document, entry: LibraryEntry) -> Book | None:
        """Opens a library entry; returns None if another process has just removed the entry."""
        assert self.library is not None
        try:
            return self._track_book_in_memory(self.open_entry(document, entry))
        except LibraryError:
            if self.library.find_entry(entry.key) is not None:
                raise
            return None

    def _track_book_in_memory(self, book: Book) -> Book:
        """Counts a document in `tokens_in_memory` while in use, unless the KV cache is on disk."""
        if book.entry is None or book.index is not None:
            self._alive.append(ref(book))
        return book

    def _record_file_text(self, book: Book) -> Book:
        """Records in the library which text the file of a document has now."""
        library, document = self.library, book.document
        if library and book.entry and document.stamp is not None:
            with suppress(LibraryError, ResourceError), library.open_catalogue() as catalogue:
                record_document_file(catalogue, document)
        return book

    def make_provenance(self, document: Document, rows: str) -> dict[str, Any]:
        """Returns facts about a document; `rows` is the KV cache's format, or `INDEX`."""
        is_file = os.path.isfile(document.source)
        return {
            "name": document.name,
            "source": document.source,
            "path": resolve_links_of_folders(document.source) if is_file else "",
            "bytes": document.bytes,
            "missing": list(document.missing),
            "model": self.esa.preset.model,
            "preset": self.esa.preset.name,
            "esa": __version__,
            "rows": rows,
        }


class IndexIngest(Ingest):
    """Ingests documents by computing token indexes with a finder."""

    def __init__(self, encoder: Finder, *options: Any) -> None:
        super().__init__(*options)
        self.encoder = encoder

    @cached_property
    def identity(self) -> str:
        """JSON of everything that a token index depends on, except the text of the document."""
        facts = {
            "index": FORMAT,
            "model": self.esa.model_digest,
            "encoder": self.encoder.digest,
            "segment_tokens": SEGMENT_TOKENS,
            "context_tokens": CONTEXT_TOKENS,
        }
        return json.dumps(facts, sort_keys=True)

    def list_usable_identities(self) -> list[str]:
        return [self.identity]

    def has_made_entry(self, entry: LibraryEntry) -> bool:
        return entry.identity == self.identity

    def open_entry(self, document: Document, entry: LibraryEntry) -> Book:
        assert self.library is not None
        stored = self.library.open_document(entry)
        keys = ReducedKeys(stored.read_layer_records(), self.encoder.layout)
        payload = self.library.read_word_index(entry)
        words = None if payload is None else SentenceWords.parse_table(payload)
        if words is None:  # they are missing, or this version would cut the text otherwise
            words = make_sentence_words(document.text)
            if self.keep:
                self.library.store_word_index(entry, words.serialise_table())
        return Book(document, None, stored.offsets, entry, index=keys, words=words)

    def make_stored_form(self, text: TokenisedDocument) -> StoredForm:
        return StoredForm(self.identity, text.ids, self.encoder.layout)

    def store_document(
        self, writer: DocumentWriter, text: TokenisedDocument, on_progress: Progress
    ) -> LibraryEntry:
        document, pieces = text.document, list[Tensor]()
        for start, keys in self._encode_pieces(text, writer.stored_token_count, on_progress):
            pieces.append(keys)
            stop = start + len(keys)
            if stop % writer.layout.segment == 0 or stop == len(text.ids):
                writer.write_next_segment([(torch.cat(pieces), None)])
                pieces.clear()
        return writer.finish_document(
            text=document.text,
            offsets=text.offsets,
            marks=[list(mark) for mark in document.marks],
            provenance=self.make_provenance(document, INDEX),
        )

    def compute_book_in_memory(self, text: TokenisedDocument, on_progress: Progress) -> Book:
        tokens, layout = len(text.ids), self.encoder.layout
        self.check_memory(tokens)
        self.events.started(text.document, tokens, None)
        index = ReducedKeys.allocate(tokens, layout)
        for start, keys in self._encode_pieces(text, 0, on_progress):
            index.records[start : start + len(keys)] = ReducedKeys.encode(keys, layout).records
        return Book(text.document, None, text.offsets, index=index)

    def _encode_pieces(
        self, text: TokenisedDocument, first: int, on_progress: Progress
    ) -> Iterator[tuple[int, Tensor]]:
        """Yields the first token number and the reduced keys (n, R) of each piece of a text."""
        for start in range(first, len(text.ids), PIECE):
            stop = min(start + PIECE, len(text.ids))
            with self.esa.run_without_method():
                keys = self.encoder.encode_document(text.ids, start, stop)
            yield start, keys
            on_progress(stop, len(text.ids))
