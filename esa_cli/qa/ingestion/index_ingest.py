"""Makes the token indexes of books, piece by piece, with the encoder of the preset's finder."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from torch import Tensor

from esa_cli.documents.document import Document
from esa_cli.qa.books import Book, TokenisedDocument
from esa_cli.qa.finding.finder import Finder
from esa_cli.qa.finding.late_interaction import CONTEXT_TOKENS, PIECE, SEGMENT_TOKENS, ReducedKeys
from esa_cli.qa.finding.words import SentenceWords, sentence_words
from esa_cli.qa.ingestion.archive import INDEX, provenance
from esa_cli.qa.ingestion.ingest import Ingest, StoredForm
from esa_cli.storage.library import Entry
from esa_cli.storage.library.entry_writer import Writer
from esa_cli.storage.memory_store import split_rows
from esa_cli.system.progress import Progress

FORMAT = 1
"""Raised when indexes computed by an older version would differ."""


def index_identity(model: Mapping[str, Any], digest: str) -> str:
    """What an index depends on, beside its text, as JSON.

    Args:
        model: of `cache_key.model_facts`. digest: the encoder's.
    """
    facts = {
        "index": FORMAT,
        "model": model,
        "encoder": digest,
        "segment_tokens": SEGMENT_TOKENS,
        "context_tokens": CONTEXT_TOKENS,
    }
    return json.dumps(facts, sort_keys=True)


class IndexIngest(Ingest):
    """Makes books with token indexes; `given`: the arguments of `Ingest`."""

    def __init__(self, encoder: Finder, *given: Any) -> None:
        super().__init__(*given)
        self.encoder = encoder

    @cached_property
    def identity(self) -> str:
        """What its indexes depend on, beside the text; see `index_identity`."""
        return index_identity(self.lazy.facts, self.encoder.digest)

    def keys(self, text: str) -> list[str]:
        assert self.library is not None
        return [self.library.key(self.identity, text)]

    def owns(self, entry: Entry) -> bool:
        return entry.identity == self.identity

    def opened(self, document: Document, entry: Entry, read_s: float = 0.0) -> Book:
        assert self.library is not None
        stored = self.library.open(entry)
        [store] = stored.layers()
        keys = ReducedKeys.empty(len(store), self.encoder.layout)
        for start, records in store.records():
            keys.records[start : start + records.shape[0]] = records
        words = self._words(entry, document.text)
        return self.held(Book(document, None, stored.offsets, entry, read_s, keys, words))

    def _words(self, entry: Entry, text: str) -> SentenceWords:
        """The text's words, from the library; put there where it lacks them or this esa would
        divide the text otherwise."""
        assert self.library is not None
        payload = self.library.words(entry)
        found = None if payload is None else SentenceWords.of_bytes(payload)
        if found is None:
            found = sentence_words(text)
            if self.keep:
                self.library.keep_words(entry, found.as_bytes())
        return found

    def make(
        self, text: TokenisedDocument, hear: Progress, more: Progress | None, started: float
    ) -> Book:
        if not text.ids:  # nothing to store
            return self.compute(text, hear, started)
        return super().make(text, hear, more, started)

    def form(self, text: TokenisedDocument) -> StoredForm:
        return self.identity, text.ids, self.encoder.layout, (), 0

    def store(self, writer: Writer, text: TokenisedDocument, hear: Progress) -> Entry:
        document, [store] = text.document, writer.layers
        for start in range(writer.done, len(text.ids), PIECE):
            stop = min(start + PIECE, len(text.ids))
            keys = self._encoded(text.ids, start, stop)
            store.append(*split_rows(keys, store.heads, store.shared))
            writer.flush()
            hear(stop, len(text.ids))
        return writer.finish(
            text=document.text,
            offsets=text.offsets,
            marks=[list(mark) for mark in document.marks],
            provenance=provenance(document, self.lazy.preset, INDEX),
        )

    def compute(self, text: TokenisedDocument, hear: Progress, started: float) -> Book:
        ids = text.ids
        self.check_memory(len(ids))
        self.events.started(text.document, len(ids), None)
        layout = self.encoder.layout
        keys = ReducedKeys.empty(len(ids), layout)
        for start in range(0, len(ids), PIECE):
            stop = min(start + PIECE, len(ids))
            found = self._encoded(ids, start, stop)
            keys.records[start:stop] = ReducedKeys.of(found, layout).records
            hear(stop, len(ids))
        spent = time.perf_counter() - started
        return self.held(Book(text.document, None, text.offsets, None, spent, index=keys))

    def _encoded(self, ids: Sequence[int], start: int, stop: int) -> Tensor:
        """Keys (stop - start, R)."""
        with self.lazy.suspended():
            return self.encoder.encode(ids, start, stop)
