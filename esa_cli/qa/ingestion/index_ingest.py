"""Makes the token indexes of books, piece by piece, with the encoder of the preset's finder."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from torch import Tensor

from esa_cli.documents.document import Document
from esa_cli.qa.finding.books import Book, TokenisedDocument
from esa_cli.qa.finding.finder import Finder
from esa_cli.qa.finding.late_interaction import CONTEXT_TOKENS, PIECE, SEGMENT_TOKENS, ReducedKeys
from esa_cli.qa.finding.words import SentenceWords, sentence_words
from esa_cli.qa.ingestion.ingest import Ingest, StoredForm, provenance
from esa_cli.qa.ingestion.library_texts import INDEX
from esa_cli.storage.library import Entry
from esa_cli.storage.library.stored_document import Writer
from esa_cli.storage.memory_store import split_rows
from esa_cli.system.progress import Progress

FORMAT = 1
"""Raised when indexes computed by an older version would differ."""


def index_identity(model: Mapping[str, Any], digest: str) -> str:
    """What an index depends on, beside its text, as JSON: the facts of the model (`model_facts`)
    and the encoder's digest."""
    facts = {
        "index": FORMAT,
        "model": model,
        "encoder": digest,
        "segment_tokens": SEGMENT_TOKENS,
        "context_tokens": CONTEXT_TOKENS,
    }
    return json.dumps(facts, sort_keys=True)


class IndexIngest(Ingest):
    """Makes books with token indexes; `options`: the arguments of `Ingest`."""

    def __init__(self, encoder: Finder, *options: Any) -> None:
        super().__init__(*options)
        self.encoder = encoder

    @cached_property
    def identity(self) -> str:
        """What its indexes depend on, beside the text; see `index_identity`."""
        return index_identity(self.esa.facts, self.encoder.digest)

    def identities(self) -> list[str]:
        return [self.identity]

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

    def form(self, text: TokenisedDocument) -> StoredForm:
        return StoredForm(self.identity, text.ids, self.encoder.layout)

    def store(self, writer: Writer, text: TokenisedDocument, hear: Progress) -> Entry:
        document, [store] = text.document, writer.layers
        for _, _, keys in self._pieces(text, writer.done, hear):
            store.append(*split_rows(keys, store.heads, store.shared))
            writer.flush()
        return writer.finish(
            text=document.text,
            offsets=text.offsets,
            marks=[list(mark) for mark in document.marks],
            provenance=provenance(document, self.esa.preset, INDEX),
        )

    def compute(self, text: TokenisedDocument, hear: Progress, started: float) -> Book:
        tokens, layout = len(text.ids), self.encoder.layout
        self.check_memory(tokens)
        self.events.started(text.document, tokens, None)
        index = ReducedKeys.empty(tokens, layout)
        for start, stop, keys in self._pieces(text, 0, hear):
            index.records[start:stop] = ReducedKeys.of(keys, layout).records
        spent = time.perf_counter() - started
        return self.held(Book(text.document, None, text.offsets, None, spent, index=index))

    def _pieces(
        self, text: TokenisedDocument, first: int, hear: Progress
    ) -> Iterator[tuple[int, int, Tensor]]:
        """First token, end and keys (end - first, R) of each piece from `first` on; `hear` is
        called when the piece has been used."""
        for start in range(first, len(text.ids), PIECE):
            stop = min(start + PIECE, len(text.ids))
            with self.esa.suspended():
                keys = self.encoder.encode(text.ids, start, stop)
            yield start, stop, keys
            hear(stop, len(text.ids))
