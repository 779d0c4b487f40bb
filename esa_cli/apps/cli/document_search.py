"""Opens the documents of a question: of many, those whose words fit the question best.

Candidates are the files of folders and patterns, and with `--library` its documents and the files
of `esa ingest --words`. Documents that are named one by one are always asked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from esa_cli.apps.cli.inputs import read_files
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.output.terminal import Reporter, count_text
from esa_cli.documents.document import Document, read_document
from esa_cli.documents.readers.text_builder import first_names
from esa_cli.documents.sources import SourceFiles
from esa_cli.errors import DiskError, DocumentError, UsageError
from esa_cli.qa.finding.books import Book, distinct, place_books
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.finding.passage_finder import PassageSearch
from esa_cli.qa.ingestion import library_texts
from esa_cli.qa.ingestion.library_texts import LibraryText, LibraryTexts
from esa_cli.qa.presets.preset import Preset
from esa_cli.storage.library import Catalogue, Entry, Library
from esa_cli.system import machine
from esa_cli.system.text import text_digest

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa


class QuestionBooks:
    """The named documents, and for each question the best of the candidates.

    Args:
        stack: closes the catalogue. limit: candidates that a question opens; None: all.
        in_library: the documents of the library are candidates, too.
        keep: False: words of files are not stored; True: a full disk is a DiskError.

    Raises DocumentError: nothing can be read. UsageError: there is no document. LibraryError."""

    def __init__(
        self,
        files: SourceFiles,
        library: Library,
        reporter: Reporter,
        stack: ExitStack,
        *,
        limit: int | None,
        in_library: bool = False,
        keep: bool | None = None,
    ) -> None:
        self._reporter, self._limit, self._in_library = reporter, limit, in_library
        self._catalogue: Catalogue | None = None
        """The words of all candidates, where not all candidates are opened."""
        self._candidates: dict[str, LibraryText] = {}  # by the digests of their texts
        self.searched = 0
        """Documents whose words were searched for the last question, if fewer were opened."""
        named = SourceFiles(tuple(one for one in files.sources if not one.of), files.left_out)
        several = [path for path in files.paths if path not in set(named.paths)]
        asks_library = in_library and library.exists
        if asks_library or (limit is not None and len(several) > limit):
            stores = asks_library or keep is not False
            catalogue = library.search_catalogue() if stores else library.catalogue(False)
            try:
                self._find_candidates(catalogue, several, stack)
            except DiskError as error:
                if keep:
                    raise
                reporter.settle()
                reporter.warn(f"esa: words of files are not kept: {error.message}")
                self._find_candidates(library.search_catalogue(copy=True), several, stack)
        if not files.sources and not self._candidates:
            raise UsageError("the library has no documents", "`esa ingest` reads one")
        self.gathered = read_files(files if self._catalogue is None else named, reporter)
        """The documents that every question is asked about."""

    def set_openers(
        self,
        books: Sequence[Book],
        open_entry: Callable[[Entry], Book],
        open_path: Callable[[str], Book] | None,
    ) -> None:
        """Takes the books of `gathered`, and how candidates are opened: `open_entry` raises
        UsageError where another model read the document; `open_path` None: no file is opened."""
        self._books, self._open_entry, self._open_path = list(books), open_entry, open_path
        self._reporter.is_brief = bool(self._candidates)

    def open_books(self, question: str, *, having_words: bool = False) -> list[Book]:
        """Returns the books of a question: the named ones, and the best candidates, or all with a
        word of the question (`having_words`). Raises UsageError: no document can be opened."""
        candidates, limit = self._candidates, self._limit
        order, is_searched = list(candidates), self._catalogue is not None
        if self._catalogue is None or limit is None:
            limit = len(order)
        else:
            ranked = [text.digest for text in self._catalogue.texts.ranked(question)]
            ranked = [digest for digest in ranked if digest in candidates]
            order = list(dict.fromkeys([*ranked, *order]))
            limit = max(1, len(ranked)) if having_words else limit
        books, skipped = list[Book](), 0
        for digest in order:
            if len(books) == limit:
                break
            book = self._open_candidate(candidates[digest])
            books += [] if book is None else [book]
            skipped += book is None
        if not books and not self._books:
            raise UsageError("no document can be asked with this preset", "`esa ingest` reads one")
        self.searched = len(candidates) if is_searched and len(books) < len(candidates) else 0
        if is_searched:
            self._reporter.note(
                f"esa: searched {len(candidates):,} documents by their words, opened the best "
                f"{len(books)}"
            )
        if skipped:
            self._reporter.left_out(
                f"{count_text(skipped, 'document')} that cannot be read, or that another model read"
            )
        return distinct([*self._books, *books])

    def _open_candidate(self, candidate: LibraryText) -> Book | None:
        """Opens a candidate from the library, or else from its file."""
        for entry in candidate.entries:
            try:
                return self._open_entry(entry)
            except (UsageError, DocumentError) as error:
                if not isinstance(error, UsageError) or self._catalogue is None:
                    self._reporter.left_out(error.message)
        try:
            if self._open_path is not None and candidate.path:
                return self._open_path(candidate.path)
        except DocumentError as error:
            self._reporter.left_out(error.message)
        return None

    def _find_candidates(
        self, opened: AbstractContextManager[Catalogue], several: Sequence[str], stack: ExitStack
    ) -> None:
        """Takes the documents of the library, and the files where there are more than `limit`."""
        reporter = self._reporter
        with ExitStack() as own_stack:
            catalogue = own_stack.enter_context(opened)
            stored = LibraryTexts()
            if self._in_library:
                stored = library_texts.texts_of(
                    catalogue, reporter.token_progress("words of the files", "files")
                )
                reporter.settle()
                self._report_unreadable([record.path for record in stored.refused])
                if stored.damaged:
                    damaged = count_text(len(stored.damaged), "damaged document")
                    reporter.left_out(damaged, "`esa library list` says which")
            self._candidates = {text.digest: text for text in stored.texts}
            has_entries = [bool(text.entries) for text in stored.texts]
            count = len(several) + len(has_entries)
            if self._limit is None or (count <= self._limit and all(has_entries)):
                return
            if several:
                self._candidates = self._index_files(catalogue, several) | self._candidates
            if any(has_entries):
                progress = reporter.token_progress("words of the library", "documents")
                for error in catalogue.add_stored_texts(progress):
                    reporter.left_out(error.message)
                reporter.settle()
            self._catalogue = catalogue
            stack.push(own_stack.pop_all())

    def _index_files(self, catalogue: Catalogue, several: Sequence[str]) -> dict[str, LibraryText]:
        """Indexes the words of files, and returns the files by the digests of their texts."""
        names = {os.path.abspath(path): path for path in several}
        progress = self._reporter.token_progress("words of the files", "files")
        changes = library_texts.FileIndexing(catalogue).update(list(names), progress)
        self._reporter.settle()
        if changes.refused and not changes.readable:
            raise DocumentError(changes.refused[0].why, changes.refused[0].hint)
        self._report_unreadable([names[record.path] for record in changes.refused])
        candidates: dict[str, LibraryText] = {}
        for record in changes.readable:
            candidates.setdefault(record.digest, LibraryText(record.digest, names[record.path]))
        return candidates

    def _report_unreadable(self, paths: Sequence[str]) -> None:
        if paths:
            files = f"{count_text(len(paths), 'file')} that cannot be read ({first_names(paths)})"
            self._reporter.left_out(files)


class PassageBooks:
    """Documents to be searched for passages. The model is loaded for the first document with a
    token index in the library, or that is to be read; other documents are searched by their words.

    Args:
        preset: of `adapter_files.for_finding`. load: returns the `Esa` that finds.
        read: whether a document without a token index is read first.
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
        # Now: an error of the model's options later would look like one of each document.
        _ = model.place, machine.memory_limit()
        self._preset, self._library, self._reporter = preset, library, reporter
        self._load, self._read = load, read
        self.is_loaded = False
        """Whether the model is loaded."""

    def open(self, source: str | Document) -> Book:
        """Returns the book of a path or document. Raises DocumentError, and errors of loading."""
        document = read_document(source) if isinstance(source, str) else source
        book = None
        if self._preset.answer.has_index:
            if self._read:
                book = self._esa.ingest(document)
            elif text_digest(document.text) in self._indexed:
                book = self._esa.find(document)
        if book is not None:
            return book
        for text in () if self._reporter.is_brief else document.missing:
            self._reporter.warn(f"esa: {document.name}: {text}")
        return Book(document, None, torch.zeros(0, 2))

    def stored(self, entry: Entry) -> Book:
        """Returns the book of a document of the library. Raises LibraryError: it is damaged."""
        known = entry.provenance
        source = known.get("path") or known["source"]
        return self.open(
            library_texts.restored(
                self._library.text(entry), entry.marks, {**known, "source": source}
            )
        )

    def passages(
        self, question: str, books: list[Book], count: int | None, minimum: float | None
    ) -> list[Passage]:
        """Finds passages, as `PassageSearch.passages` does."""
        if self.is_loaded:
            return self._esa.find_passages(question, books, count, minimum)
        return PassageSearch().passages(question, place_books(distinct(books)), count, minimum)

    @cached_property
    def _indexed(self) -> set[str]:
        """Digests of the texts of which the library has a token index of any model."""
        entries = self._library.entries() if self._library.exists else []
        return {entry.text_sha256 for entry in entries if entry.rows == library_texts.INDEX}

    @cached_property
    def _esa(self) -> Esa:
        esa = self._load()
        self.is_loaded = True
        return esa
