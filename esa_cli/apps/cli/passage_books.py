"""Books to be searched for passages; the model is loaded when the first of them needs it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.documents.document import Document, read_document
from esa_cli.qa.finding.books import Book, distinct, place_books
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.finding.passage_finder import PassageSearch
from esa_cli.qa.ingestion.library_texts import INDEX, restored
from esa_cli.qa.presets.preset import Preset
from esa_cli.storage.library import Entry, Library
from esa_cli.system import machine
from esa_cli.system.text import text_digest

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa


class PassageBooks:
    """Opens documents, and finds their passages. A document whose token index is in the library, or
    that is to be read, needs the model; the others are searched by their words without one.

    Args:
        preset: of `adapter_files.for_finding`. load: gives an `Esa`, or what finds as one. read:
            whether a document that has not been read for the preset's finder is read.

    Raises:
        UsageError: there is no such device or dtype, or $ESA_MEMORY_LIMIT is not a size.
    """

    def __init__(
        self,
        preset: Preset,
        model: ModelOptions,
        library: Library,
        reporter: Reporter,
        load: Callable[[], Esa],
        *,
        read: bool = False,
    ) -> None:
        # At once: later it would look as if each document was of another model.
        _ = model.place, machine.memory_limit()
        self.preset, self._library, self._reporter = preset, library, reporter
        self._load, self._read = load, read
        self.loaded = False
        """Whether the model is."""

    def open(self, source: str | Document) -> Book:
        """The book of a path or document. Raises DocumentError, and what loading the model does."""
        document = read_document(source) if isinstance(source, str) else source
        book = None
        if self.preset.answer.has_index:
            if self._read:
                book = self._asker.ingest(document)
            elif text_digest(document.text) in self._indexed:
                book = self._asker.find(document)
        if book is not None:
            return book
        for text in () if self._reporter.is_brief else document.missing:
            self._reporter.warn(f"esa: {document.name}: {text}")
        return Book(document, None, torch.zeros(0, 2))

    def stored(self, entry: Entry) -> Book:
        """The book of a document of the library. Raises LibraryError: it is damaged."""
        text, known = self._library.text(entry), entry.provenance
        source = known.get("path") or known["source"]
        return self.open(restored(text, entry.marks, {**known, "source": source}))

    def passages(
        self, question: str, books: list[Book], count: int | None, minimum: float | None
    ) -> list[Passage]:
        """As `PassageSearch.passages`."""
        if self.loaded:
            return self._asker.find_passages(question, books, count, minimum)
        return PassageSearch().passages(question, place_books(distinct(books)), count, minimum)

    @cached_property
    def _indexed(self) -> set[str]:
        """Digests of the texts of which the library has an index of any model."""
        entries = self._library.entries() if self._library.exists else []
        return {entry.text_sha256 for entry in entries if entry.rows == INDEX}

    @cached_property
    def _asker(self) -> Esa:
        asker = self._load()
        self.loaded = True
        return asker
