"""Makes books: documents read by a model, or found in the library.

What is read of each, on its own, are KV rows, a token index, or both: see `parts`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from esa_cli.documents.document import Document, read_document
from esa_cli.errors import LibraryError, ResourceError, UsageError
from esa_cli.qa.answering.lazy_session import LazySession
from esa_cli.qa.books import Book
from esa_cli.qa.finding.token_encoder import TokenEncoder
from esa_cli.qa.ingestion.archive import restored
from esa_cli.qa.ingestion.file_indexing import record_document
from esa_cli.qa.ingestion.index_ingest import IndexIngest
from esa_cli.qa.ingestion.ingest_events import IngestEvents
from esa_cli.qa.ingestion.part_ingest import PartIngest
from esa_cli.qa.ingestion.row_ingest import RowIngest
from esa_cli.qa.ingestion.tokenised_document import TokenisedDocument
from esa_cli.qa.planning.plan import Planner
from esa_cli.storage.library import Entry, Library
from esa_cli.system.progress import Progress, combined

Source = str | Document | TokenisedDocument
"""A path, - for standard input, a document, or one that is tokenised already."""


class DocumentIngest:
    """Makes books with one model and preset.

    Args:
        library: where documents are looked for; None: nowhere.
        keep: whether documents that are not in the library are stored there.
        rows: how: `int8`, or `native` bit for bit.
        events: the observer. planner: what is read must fit its memory; None: nobody looks.
        encoder: of the preset's token indexes; None: it has none, or answers from rows.
    """

    def __init__(
        self,
        lazy: LazySession,
        library: Library | None = None,
        keep: bool = True,
        rows: str = "int8",
        events: IngestEvents | None = None,
        planner: Planner | None = None,
        encoder: TokenEncoder | None = None,
    ) -> None:
        self.lazy, self.library = lazy, library
        self.events = events or IngestEvents()
        given = lazy, library, keep, self.events, planner
        self._rows = RowIngest(rows, *given)
        self.index = None if encoder is None else IndexIngest(encoder, *given)
        """Makes token indexes; None: the preset has none, or answers from rows."""

    @property
    def parts(self) -> list[PartIngest]:
        """What is read of a document: its token index, where the preset has one. Without one rows
        are stored, too, for presets that answer from these."""
        return [self._rows if self.index is None else self.index]

    @property
    def stored_tokens(self) -> int | None:
        """Tokens in the library of the document that was read last; None: it is not stored."""
        counts = [part.stored_tokens for part in self.parts]
        return max((count for count in counts if count is not None), default=None)

    @property
    def needs_rows(self) -> bool:
        """Whether the preset answers from rows."""
        return self.lazy.preset.answer.needs_rows

    @property
    def in_memory(self) -> int:
        """Tokens of the books made here that are in memory."""
        return max(part.in_memory for part in self.parts)

    def find(self, document: Document) -> Book | None:
        """The document as it was read before, if it is in the library.

        Raises:
            LibraryError: it is there, and damaged.
        """
        return self._found(joined(part.find(document) for part in self.parts))

    def _recorded(self, book: Book) -> Book:
        """The book; the library learns which text its file has now."""
        library, document = self.library, book.document
        if library and book.entry and document.stamp is not None:
            with suppress(LibraryError, ResourceError), library.catalogue() as catalogue:
                record_document(catalogue, document)
        return book

    def _found(self, book: Book | None) -> Book | None:
        if book is not None:
            self.events.found(book)
        return book

    def stored(self, entry: Entry) -> Book:
        """A book of the library, whatever became of its file.

        Raises:
            UsageError: it was read by another model or method. LibraryError: it is damaged.
        """
        assert self.library is not None
        own, book = [part for part in self.parts if part.owns(entry)], None
        if own:
            document = restored(self.library.text(entry), entry.marks, entry.provenance)
            book = joined(
                part.open(document, entry) if part in own else part.find(document)
                for part in self.parts
            )
        if self._found(book) is None:
            raise UsageError(
                f"{entry.name} ({entry.id}) was read by another model or other settings",
                "ask with the preset it was ingested with, or ingest it with this one",
            )
        assert book is not None
        return book

    def open(self, source: Source) -> Book:
        """See `api.Esa.open`."""
        if self.needs_rows:
            return self.ingest(source)
        document, text = _opened(source)
        found = self.find(document)
        return self._recorded(found) if found else self._unread(text or self._tokenised(document))

    def _unread(self, text: TokenisedDocument) -> Book:
        self.events.unread(text.document, len(text.ids))
        return Book(text.document, None, text.offsets)

    def _tokenised(self, document: Document) -> TokenisedDocument:
        return TokenisedDocument.of(document, self.lazy.tokenizer)

    def ingest(self, source: Source, progress: Progress | None = None) -> Book:
        """See `api.Esa.ingest`."""
        started = time.perf_counter()
        document, text = _opened(source)
        found = self.find(document)
        if found is not None:
            return self._recorded(found)
        text = text or self._tokenised(document)
        if not self.needs_rows and self.index is None and not self._rows.stores:
            return self._unread(text)
        hear, parts = combined(self.events.progress, progress), self.parts
        try:
            book = joined(
                (part.find(document) if len(parts) > 1 else None)
                or part.make(text, hear, progress, started)
                for part in parts
            )
        finally:
            self.events.finished()
        assert book is not None
        return self._recorded(book)


def _opened(source: Source) -> tuple[Document, TokenisedDocument | None]:
    """The document, and its tokens where they are known. Raises DocumentError."""
    if isinstance(source, TokenisedDocument):
        return source.document, source
    return (read_document(source) if isinstance(source, str) else source), None


def joined(books: Iterable[Book | None]) -> Book | None:
    """One book of its parts, the rows first; None where one is missing."""
    whole = None
    for book in books:
        if book is None:
            return None
        spent = max(book.read_s, whole.read_s if whole else 0.0)
        if whole:
            book = replace(whole, index=book.index, words=book.words, read_s=spent)
        whole = book
    return whole
