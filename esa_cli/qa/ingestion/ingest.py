"""Opens stored documents from the library, or computes token indexes of new documents."""

from __future__ import annotations

import json
import os
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor

from esa_cli.documents.document import Document, read_document
from esa_cli.errors import DiskError, LibraryError, ResourceError, UsageError
from esa_cli.qa.finding.finder import (
    CONTEXT_TOKENS,
    SEGMENT_TOKENS,
    Finder,
    ReducedKeys,
    TokenisedDocument,
)
from esa_cli.qa.finding.passage_finder import Book
from esa_cli.qa.finding.words import SentenceWords, list_sentence_words
from esa_cli.qa.ingestion.library_texts import INDEX, rebuild_document, record_file_of_document
from esa_cli.qa.planning.plan import IngestPlanner
from esa_cli.qa.presets.cache_key import digest_model
from esa_cli.storage.library import Layout, Library, LibraryEntry
from esa_cli.storage.library.library import DocumentWriter
from esa_cli.system.files import resolve_folder_links
from esa_cli.system.progress import Progress, combine_progress_callbacks
from esa_cli.version import __version__

Source = str | os.PathLike[str] | Document
"""A path, - for standard input, or a document."""
FORMAT = 1
"""The version of the index format, increased when newly computed indexes would differ."""


class IngestEvents:
    """Observes how documents are ingested; an exception in a method ends the ingest."""

    def report_stored_document(self, book: Book) -> None:
        """Called when a document is in the library, so that nothing need be computed."""

    def report_unread_document(self, document: Document, tokens: int) -> None:
        """Called when a document is not indexed, so that only its words can be searched."""

    def announce_ingest(self, document: Document, tokens: int, stored_bytes: int | None) -> None:
        """Called before a document is read; `stored_bytes` is None if it will not be stored."""

    def report_ingest_progress(self, done_tokens: int, all_tokens: int) -> None:
        """Called when the model has read `done_tokens` of `all_tokens` tokens of a document."""

    def handle_full_disk(self, document: Document, error: DiskError) -> bool:
        """Called when the disk is full; returns whether to keep the document in memory."""
        return False

    def report_wait_for_process(self) -> None:
        """Called when this process waits for another process to store the same document."""

    def report_ingest_end(self) -> None:
        """Called when a document has been indexed or prefilled, or an exception was raised."""


class IngestProgressRelay(IngestEvents):
    """Calls a progress function; if the disk is full, documents may stay in memory."""

    def __init__(self, progress: Progress | None, must_store: bool = True) -> None:
        self._progress, self._must_store = progress, must_store

    def handle_full_disk(self, document: Document, error: DiskError) -> bool:
        if not self._must_store:
            warnings.warn(f"{document.name} is not stored: {error.message}", stacklevel=2)
        return not self._must_store

    def report_ingest_progress(self, done_tokens: int, all_tokens: int) -> None:
        if self._progress:
            self._progress(done_tokens, all_tokens)


class StoragePlan(NamedTuple):
    """How a document will be stored: its identity of model and settings, token ids, file layout."""

    identity: str
    ids: Sequence[int]
    layout: Layout
    make_writer: Callable[..., DocumentWriter] = DocumentWriter
    state_bytes: int = 0


class DocumentIngester(ABC):
    """Computes KV caches or token indexes of documents, and stores them if `keep` is true."""

    def __init__(
        self, esa: Any, library: Library | None = None, keep: bool = True,
        events: IngestEvents | None = None, planner: IngestPlanner | None = None,
    ) -> None:  # fmt: skip
        self.esa, self.library, self.keep = esa, library, keep
        self.events, self.planner = events or IngestEvents(), planner
        self._alive: list[ref[Book]] = []

    @cached_property
    def model_digest(self) -> dict[str, Any]:
        """The properties of the model on which stored documents depend; see `digest_model`."""
        return digest_model(self.esa.loaded.text_model, self.esa.tokenizer)

    @abstractmethod
    def list_model_and_settings_identities(self) -> list[str]:
        """Returns the model and settings, as JSON, whose stored documents can be opened."""

    def matches_entry_settings(self, entry: LibraryEntry) -> bool:
        return entry.identity in self.list_model_and_settings_identities()

    @abstractmethod
    def open_library_entry(self, library: Library, document: Document, entry: LibraryEntry) -> Book:
        """Opens a document's library entry for questions. Raises LibraryError: it is damaged."""

    @abstractmethod
    def plan_storage(self, text: TokenisedDocument) -> StoragePlan:
        """Chooses the identity, token ids and file layout with which a document will be stored."""

    @abstractmethod
    def store_document(
        self, writer: DocumentWriter, text: TokenisedDocument, on_progress: Progress
    ) -> LibraryEntry:
        """Computes and stores the KV cache or token index of the tokens that are not stored yet."""

    @abstractmethod
    def ingest_into_memory(self, text: TokenisedDocument, on_progress: Progress) -> Book:
        """Computes a document's KV cache or token index without storing it on disk."""

    def tokenise(self, document: Document) -> TokenisedDocument:
        """Divides a document into the tokens that are indexed or prefilled."""
        return TokenisedDocument.tokenise(document, self.esa.tokenizer)

    @property
    def stores_documents(self) -> bool:
        return self.library is not None and self.keep

    def count_tokens_in_memory(self) -> int:
        """Counts the tokens of all documents whose KV cache or token index is still in memory."""
        self._alive = [one for one in self._alive if one() is not None]
        return sum(book.tokens for one in self._alive if (book := one()) is not None)

    def check_tokens_fit_memory(self, new_tokens: int) -> None:
        """Raises ResourceError if `new_tokens` more tokens do not fit into memory."""
        if self.planner:
            self.planner.check_memory_suffices(self.count_tokens_in_memory() + new_tokens)

    def open_document_if_stored(self, document: Document) -> Book | None:
        """Opens a document if the library has it. Raises LibraryError: its entry is damaged."""
        for identity in self.list_model_and_settings_identities() if self.library else ():
            assert self.library is not None
            entry = self.library.find_entry(self.library.compute_key(identity, document.text))
            book = self._try_open_library_entry(document, entry) if entry else None
            if book is not None:
                self.events.report_stored_document(book)
                return book
        return None

    def open_stored_entry(self, entry: LibraryEntry) -> Book:
        """Opens a library entry for questions; see `api.Esa.stored`."""
        assert self.library is not None
        if not self.matches_entry_settings(entry):
            wrong = f"{entry.name} ({entry.id}) was ingested with another model or other settings"
            hint = "use the preset that ingested the document, or ingest it with this preset"
            raise UsageError(wrong, hint)
        document = rebuild_document(self.library.text(entry), entry.marks, entry.provenance)
        book = self._remember_book_in_memory(self.open_library_entry(self.library, document, entry))
        self.events.report_stored_document(book)
        return book

    def open_for_questions(self, source: Source) -> Book:
        """Opens a document, or the document at a path, for questions; see `api.Esa.open`."""
        return self._open_or_ingest(source, None, self.esa.preset.answer.needs_kv_cache)

    def ingest(
        self, source: Source, progress: Progress | None = None, keep: bool | None = None
    ) -> Book:
        """Indexes or prefills a document, or the document at a path; see `api.Esa.ingest`."""
        before, self.keep = self.keep, self.keep if keep is None else keep
        try:
            by_words = self.esa.preset.answer.finds_by_bm25_only and not self.stores_documents
            return self._open_or_ingest(source, progress, may_ingest=not by_words)
        finally:
            self.keep = before

    def _open_or_ingest(self, source: Source, progress: Progress | None, may_ingest: bool) -> Book:
        started = time.perf_counter()
        document = read_document(source) if isinstance(source, str | os.PathLike) else source
        if not isinstance(document, Document):
            wrong = f"a document must be a path or a Document, got {type(source).__name__}"
            hint = "only `ask`, `find_passages` and `collect` take several documents"
            raise UsageError(wrong, hint)
        if (book := self.open_document_if_stored(document)) is not None:
            return self._record_file_in_catalogue(book)
        text = self.tokenise(document)
        if not may_ingest:
            self.events.report_unread_document(document, len(text.ids))
            return Book(document, None, text.offsets)
        try:
            return self._record_file_in_catalogue(self._ingest_document(text, progress, started))
        finally:
            self.events.report_ingest_end()

    def _ingest_document(
        self, text: TokenisedDocument, progress: Progress | None, start_time: float
    ) -> Book:
        """Indexes or prefills a document, and stores the result if new documents are stored."""
        on_progress = combine_progress_callbacks(self.events.report_ingest_progress, progress)
        plan = self.plan_storage(text) if self.stores_documents else None
        report_wait_once = cache(self.events.report_wait_for_process)

        def report_wait() -> None:  # while another process ingests the document
            report_wait_once()
            if progress and plan is not None:
                progress(0, len(plan.ids))

        while plan is not None and plan.ids:
            try:
                book = self._ingest_into_library(text, plan, on_progress, report_wait, start_time)
            except DiskError as error:
                if not self.events.handle_full_disk(text.document, error):
                    raise
                self.events.report_ingest_end()
                break
            if book is not None:
                return book
            # Another process stored the document, and a third one has removed it since.
        book = self.ingest_into_memory(text, on_progress)
        return self._remember_book_in_memory(replace(book, read_s=time.perf_counter() - start_time))

    def _ingest_into_library(
        self, text: TokenisedDocument, plan: StoragePlan, on_progress: Progress,
        on_wait: Callable[[], None], start_time: float,
    ) -> Book | None:  # fmt: skip
        library, document, tokens = self.library, text.document, len(plan.ids)
        assert library is not None
        key = library.compute_key(plan.identity, document.text)
        with library.open_writer(
            plan.make_writer, key, plan.identity, plan.ids, plan.layout, on_wait, plan.state_bytes
        ) as writer:
            if isinstance(writer, LibraryEntry):  # another process has stored it
                return self._try_open_library_entry(document, writer)
            self.check_tokens_fit_memory(tokens)
            size = library.estimate_document_size(tokens, plan.layout, plan.state_bytes)
            self.events.announce_ingest(document, tokens, size)
            entry = self.store_document(writer, text, on_progress)
        book = self.open_library_entry(library, document, entry)
        return self._remember_book_in_memory(replace(book, read_s=time.perf_counter() - start_time))

    def _try_open_library_entry(self, document: Document, entry: LibraryEntry) -> Book | None:
        """Opens a document's library entry; None if another process has just removed the entry."""
        assert self.library is not None
        try:
            book = self.open_library_entry(self.library, document, entry)
            return self._remember_book_in_memory(book)
        except LibraryError:
            if self.library.find_entry(entry.key) is not None:
                raise
            return None

    def _remember_book_in_memory(self, book: Book) -> Book:
        """Includes a document in `count_tokens_in_memory`, unless its KV cache is on disk."""
        if book.entry is None or book.index is not None:
            self._alive.append(ref(book))
        return book

    def _record_file_in_catalogue(self, book: Book) -> Book:
        """Records in the library that the file of a document has the document's text now."""
        library, document = self.library, book.document
        if library and book.entry and document.stamp is not None:
            with suppress(LibraryError, ResourceError), library.open_catalogue() as catalogue:
                record_file_of_document(catalogue, document)
        return book

    def make_provenance(self, document: Document, stored_format: str) -> dict[str, Any]:
        """Returns what the library stores about a document, such as name, file and model."""
        is_file = os.path.isfile(document.source)
        return {
            "name": document.name,
            "source": document.source,
            "path": resolve_folder_links(document.source) if is_file else "",
            "bytes": document.bytes,
            "missing": list(document.missing),
            "model": self.esa.preset.model,
            "preset": self.esa.preset.name,
            "esa": __version__,
            "rows": stored_format,
        }


class TokenIndexIngester(DocumentIngester):
    """Computes token indexes of documents with a finder, and stores them in the library."""

    def __init__(self, encoder: Finder, *options: Any) -> None:
        super().__init__(*options)
        self.encoder = encoder

    @cached_property
    def token_index_identity(self) -> str:
        """JSON of everything, except a document's text, that determines a token index."""
        facts = {"index": FORMAT, "encoder": self.encoder.digest}
        if self.encoder.uses_preset_model:
            sizes = {"segment_tokens": SEGMENT_TOKENS, "context_tokens": CONTEXT_TOKENS}
            facts |= {"model": self.model_digest, **sizes}
        return json.dumps(facts, sort_keys=True)

    def tokenise(self, document: Document) -> TokenisedDocument:
        return self.encoder.tokenise(document)

    def list_model_and_settings_identities(self) -> list[str]:
        return [self.token_index_identity]

    def open_library_entry(self, library: Library, document: Document, entry: LibraryEntry) -> Book:
        stored = library.open_document(entry)
        keys = ReducedKeys(stored.read_encoded_first_layer(), self.encoder.layout)
        payload = library.read_word_index(entry)
        words = None if payload is None else SentenceWords.parse_table(payload)
        if words is None:  # they are missing, or this version would cut the text otherwise
            words = list_sentence_words(document.text)
            if self.keep:
                library.store_word_index(entry, words.serialise_table())
        return Book(document, None, stored.offsets, entry, index=keys, words=words)

    def plan_storage(self, text: TokenisedDocument) -> StoragePlan:
        return StoragePlan(self.token_index_identity, text.ids, self.encoder.layout)

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
            text=document.text, offsets=text.offsets, marks=[list(mark) for mark in document.marks],
            provenance=self.make_provenance(document, INDEX),
        )  # fmt: skip

    def ingest_into_memory(self, text: TokenisedDocument, on_progress: Progress) -> Book:
        tokens, layout = len(text.ids), self.encoder.layout
        self.check_tokens_fit_memory(tokens)
        self.events.announce_ingest(text.document, tokens, None)
        index = ReducedKeys(torch.empty((tokens, layout.row_bytes), dtype=torch.uint8), layout)
        for start, keys in self._encode_pieces(text, 0, on_progress):
            index.records[start : start + len(keys)] = ReducedKeys.encode(keys, layout).records
        return Book(text.document, None, text.offsets, index=index)

    def _encode_pieces(
        self, text: TokenisedDocument, first_token: int, on_progress: Progress
    ) -> Iterator[tuple[int, Tensor]]:
        """Yields first token's index and reduced keys (n, R) of each piece of a document."""
        for start in range(first_token, len(text.ids), self.encoder.piece):
            stop = min(start + self.encoder.piece, len(text.ids))
            with self.esa.run_without_method():
                keys = self.encoder.encode_tokens(text, start, stop)
            yield start, keys
            on_progress(stop, len(text.ids))
