"""Opens what a command needs for a question: the model, and the documents to search."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, cached_property
from typing import Any

import torch

from esa_cli.apps.cli.inputs import read_input_files
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.output.terminal import Reporter, pluralize
from esa_cli.documents.document import Document, read_document
from esa_cli.documents.readers.text_builder import shorten_name_list
from esa_cli.documents.sources import InputFiles
from esa_cli.errors import DiskError, DocumentError, UsageError
from esa_cli.methods.registry import LAID
from esa_cli.models.files.quiet_transformers import quiet_transformers
from esa_cli.qa.api import Esa
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.finding.passage_finder import (
    Book,
    PassageSearch,
    add_token_ranges,
    drop_duplicate_books,
)
from esa_cli.qa.ingestion import library_texts
from esa_cli.qa.ingestion.ingest import IngestEvents
from esa_cli.qa.ingestion.library_texts import LibraryText, LibraryTexts
from esa_cli.qa.opening import CheckedPreset, check_before_loading
from esa_cli.qa.planning.plan import IngestPlanner
from esa_cli.qa.presets.preset import Preset
from esa_cli.qa.reading.reader_choice import ReaderChoice
from esa_cli.storage.library import Catalogue, Library, LibraryEntry
from esa_cli.system.machine import format_size, get_memory_limit
from esa_cli.system.text import digest_text

MIN_MEASURED_TOKENS = 2048
"""The minimum tokens of a document whose ingestion speed is remembered for later estimates."""


class IngestProgressDisplay(IngestEvents):
    """Shows the progress of ingesting documents, and remembers the speed for later estimates. If
    `must_store` is set, a full disk is an error instead of a warning."""

    def __init__(self, planner: IngestPlanner, reporter: Reporter, must_store: bool = True) -> None:
        self.planner, self.reporter, self.must_store = planner, reporter, must_store
        self._show: Any = None
        self._started, self._resumed_at = 0.0, 0
        self._warn_once = cache(reporter.warn)

    def report_stored_document(self, book: Book) -> None:
        self._warn_of_missing_contents(book.document)

    def report_unread_document(self, document: Document, tokens: int) -> None:
        self._warn_of_missing_contents(document)

    def handle_full_disk(self, document: Document, error: DiskError) -> bool:
        self.reporter.clear_spinner()
        if not self.must_store:
            self._warn_once(f"esa: documents are not stored: {error.message}")
        return not self.must_store

    def announce_ingest(self, document: Document, tokens: int, stored_bytes: int | None) -> None:
        stored = "" if stored_bytes is None else f", {format_size(stored_bytes)} in the library"
        self.reporter.show_note(f"esa: {document.name}: {tokens:,} tokens{stored}")
        self._warn_of_missing_contents(document)
        seconds = self.planner.plan_ingest(tokens).estimated_seconds
        self._show = self.reporter.start_ingest_progress(tokens, seconds)
        self._started, self._resumed_at = time.perf_counter(), 0

    def report_ingest_progress(self, done_tokens: int, all_tokens: int) -> None:
        self._resumed_at = self._resumed_at or done_tokens
        self._show(done_tokens, all_tokens)
        if done_tokens == all_tokens:
            seconds = time.perf_counter() - self._started
            self.reporter.clear_spinner()
            if all_tokens >= MIN_MEASURED_TOKENS >= self._resumed_at:
                self.planner.save_ingest_time(all_tokens, seconds)

    def report_wait_for_process(self) -> None:
        self.reporter.show_note(
            "esa: waiting for another esa process that ingests the same document", dim=False
        )

    def report_ingest_end(self) -> None:
        self.reporter.clear_spinner()

    def _warn_of_missing_contents(self, document: Document) -> None:
        """Warns, once for each document, of contents that could not be extracted."""
        for text in () if self.reporter.is_brief else document.missing:
            self._warn_once(f"esa: {document.name}: {text}")


@contextmanager
def open_model(
    preset: Preset | CheckedPreset, model_options: ModelOptions, reporter: Reporter, *,
    keep: bool | None = None, kv_dtype: str = "int8", library: Library | None = None,
    reader: ReaderChoice | None = None,
) -> Iterator[Esa]:  # fmt: skip
    """A context manager that loads the model of a preset, and closes the model at the end.

    Args:
        keep: whether documents are stored in the library; None: only their token indexes are.
        kv_dtype: precision of stored KV caches, `int8` or `native`.
        reader: the model that writes the answers; None: the reader of the preset.

    Raises PresetError, ModelError, ResourceError. UsageError: documents cannot be stored."""
    if model_options.cache == "disk":
        if keep is False:
            wrong = "--cache disk stores documents in the library"
            raise UsageError(wrong, "leave out either --no-keep or --cache")
        keep = True
    ready = preset
    if not isinstance(ready, CheckedPreset):
        place = model_options.choose_device_and_dtype()
        ready = check_before_loading(ready, place, reporter, keep=keep)
    library = library or Library()
    stores = ready.choose_storing(library, keep)
    if keep is None and ready.index is not None and not stores:
        reporter.warn(f"esa: documents are not stored: {library.root} cannot be written")
    settings = model_options.settings or ()
    unused = [one for one in settings if one.partition("=")[0].partition(".")[0] in LAID]
    if unused and not ready.prefills:
        why = "have no effect, as answers come from passages; answer.from=rows uses them"
        reporter.warn(f"esa: the settings {', '.join(unused)} {why}")
    display = IngestProgressDisplay(ready.ingest_planner, reporter, must_store=keep is not None)
    with (
        quiet_transformers(import_if_needed=False),
        Esa.from_checked_preset(
            ready, library=library, keep=stores, rows=kv_dtype, reader=reader, events=display,
            observer=reporter,
        ) as esa,
    ):  # fmt: skip
        reporter.clear_spinner()
        try:
            yield esa
        finally:
            reporter.clear_spinner()


class DocumentOpener:
    """Opens the documents named on the command line, and those files of folders and patterns, and
    with `--library` documents of the library, whose words fit a question best.

    Args:
        limit: how many candidates are opened; None means all.
        in_library: whether the documents of the library are candidates, too.
        keep: whether the words of files are stored. If True, a full disk raises DiskError.
        all_that_match: whether all candidates with a word of the question are opened.

    Raises LibraryError. DocumentError: no file can be read. UsageError: there is no document."""

    def __init__(
        self, files: InputFiles, library: Library, reporter: Reporter, question: str, *,
        limit: int | None = None, in_library: bool = False, keep: bool | None = None,
        all_that_match: bool = False,
    ) -> None:  # fmt: skip
        self._reporter, self._limit, self._in_library = reporter, limit, in_library
        self._question, self._all_that_match = question, all_that_match
        self._candidates: list[LibraryText] = []
        """Documents that may be opened, the best first if only some of them are opened."""
        self._is_ranked = False
        self.searched = 0
        """How many documents were searched for the question; 0 if all of them were opened."""
        named = InputFiles(tuple(one for one in files.sources if not one.pattern), files.left_out)
        file_paths = [path for path in files.paths if path not in set(named.paths)]
        asks_library = in_library and library.exists
        if asks_library or (limit is not None and len(file_paths) > limit):
            stores = asks_library or keep is not False
            catalogue = library.open_search_catalogue() if stores else library.open_catalogue(False)
            try:
                self._find_candidate_documents(catalogue, file_paths)
            except DiskError as error:
                if keep:
                    raise
                reporter.clear_spinner()
                reporter.warn(f"esa: words of files are not stored: {error.message}")
                catalogue = library.open_search_catalogue(always_copy=True)
                self._find_candidate_documents(catalogue, file_paths)
        if not files.sources and not self._candidates:
            hint = "name a document before the question, or add documents with `esa ingest`"
            raise UsageError("the library has no documents", hint)
        self.gathered = read_input_files(named if self._is_ranked else files, reporter)
        """The named documents, which the question is asked about in any case."""

    def open_documents(
        self, named_books: Sequence[Book], open_stored_document: Callable[[LibraryEntry], Book],
        open_file: Callable[[str], Book] | None,
    ) -> list[Book]:  # fmt: skip
        """Returns the named documents and the candidates that are opened for the question. Raises
        UsageError: no document can be used."""
        self._open_stored_document, self._open_file = open_stored_document, open_file
        self._reporter.is_brief = bool(self._candidates)
        books, skipped = list[Book](), 0
        for candidate in self._candidates:
            if len(books) == self._limit:
                break
            book = self._open_candidate_document(candidate)
            books += [] if book is None else [book]
            skipped += book is None
        if not books and not named_books:
            wrong = "none of the documents can be used with this preset"
            raise UsageError(wrong, "run `esa ingest` with this preset")
        if self._is_ranked and len(books) < len(self._candidates):
            self.searched = len(self._candidates)
            count = pluralize(self.searched, "document")
            self._reporter.show_note(
                f"esa: searched the words of {count}, opened the best {len(books)}"
            )
        if skipped:
            self._reporter.warn_document_left_out(
                f"{pluralize(skipped, 'document')} that cannot be read, or that another model read"
            )
        return drop_duplicate_books([*named_books, *books])

    def _open_candidate_document(self, candidate: LibraryText) -> Book | None:
        """Opens a candidate document from the library or its file; returns None after an error."""
        for entry in candidate.entries:
            try:
                return self._open_stored_document(entry)
            except (UsageError, DocumentError) as error:
                if not isinstance(error, UsageError) or not self._is_ranked:
                    self._reporter.warn_document_left_out(error.message)
        try:
            if self._open_file is not None and candidate.path:
                return self._open_file(candidate.path)
        except DocumentError as error:
            self._reporter.warn_document_left_out(error.message)
        return None

    def _find_candidate_documents(
        self, catalogue_context: AbstractContextManager[Catalogue], file_paths: Sequence[str]
    ) -> None:
        """Lists the candidates, and ranks them by their words if they are too many."""
        reporter = self._reporter
        with catalogue_context as catalogue:
            stored = LibraryTexts()
            if self._in_library:
                stored = library_texts.list_current_texts(
                    catalogue, reporter.start_progress("words of the files", "files")
                )
                reporter.clear_spinner()
                self._warn_of_unreadable_files([record.path for record in stored.refused])
                if stored.damaged:
                    damaged = pluralize(len(stored.damaged), "damaged document")
                    reporter.warn_document_left_out(damaged, "`esa library list` says which")
            self._candidates = list(stored.texts)
            has_entries = [bool(text.entries) for text in stored.texts]
            count = len(file_paths) + len(has_entries)
            if self._limit is None or (count <= self._limit and all(has_entries)):
                return
            texts = {text.digest: text for text in stored.texts}
            if file_paths:
                texts = self._index_file_words(catalogue, file_paths) | texts
            if any(has_entries):
                progress = reporter.start_progress("words of the library", "documents")
                for error in catalogue.index_stored_texts(progress):
                    reporter.warn_document_left_out(error.message)
                reporter.clear_spinner()
            ranked = [one for one in catalogue.texts.rank_texts(self._question) if one in texts]
            self._candidates = [texts[digest] for digest in dict.fromkeys([*ranked, *texts])]
            self._is_ranked = True
            if self._all_that_match:
                self._limit = max(1, len(ranked))

    def _index_file_words(
        self, catalogue: Catalogue, file_paths: Sequence[str]
    ) -> dict[str, LibraryText]:
        names = {os.path.abspath(path): path for path in file_paths}
        progress = self._reporter.start_progress("words of the files", "files")
        changes = library_texts.index_files(catalogue, list(names), progress)
        self._reporter.clear_spinner()
        if changes.refused_records and not changes.readable_records:
            raise DocumentError(changes.refused_records[0].why, changes.refused_records[0].hint)
        self._warn_of_unreadable_files([names[record.path] for record in changes.refused_records])
        candidates: dict[str, LibraryText] = {}
        for record in changes.readable_records:
            candidates.setdefault(record.digest, LibraryText(record.digest, names[record.path]))
        return candidates

    def _warn_of_unreadable_files(self, paths: Sequence[str]) -> None:
        if paths:
            count, names = pluralize(len(paths), "file"), shorten_name_list(paths)
            self._reporter.warn_document_left_out(f"{count} that cannot be read ({names})")


class LazyPassageFinder:
    """Finds passages with BM25 alone until a document has a token index or, with `ingests_new`,
    must get one, and the model is loaded. The preset is from `make_preset_for_finding`."""

    def __init__(
        self, preset: Preset, model: ModelOptions, library: Library, reporter: Reporter,
        load_model: Callable[[], Esa], *, ingests_new: bool = False,
    ) -> None:  # fmt: skip
        # Checked now, because later an error of the options would be reported for each document.
        _ = model.choose_device_and_dtype(), get_memory_limit()
        self._preset, self._library, self._reporter = preset, library, reporter
        self._load, self._read = load_model, ingests_new
        self.is_loaded = False

    def open_document(self, source: str | Document) -> Book:
        """Opens a document, or a path, for a search of passages. Raises EsaError."""
        document = read_document(source) if isinstance(source, str) else source
        if self._preset.answer.makes_token_index:
            if self._read:
                return self._lazily_loaded_esa.ingest(document)
            is_indexed = digest_text(document.text) in self._indexed_text_digests
            if is_indexed and (book := self._lazily_loaded_esa.find(document)):
                return book
        for text in () if self._reporter.is_brief else document.missing:
            self._reporter.warn(f"esa: {document.name}: {text}")
        return Book(document, None, torch.zeros(0, 2))

    def open_stored_document(self, entry: LibraryEntry) -> Book:
        """Opens a document of the library for a search. Raises LibraryError: a file is damaged."""
        return self.open_document(library_texts.rebuild_stored_document(self._library, entry))

    def find_passages(
        self, question: str, books: list[Book], max_count: int | None, minimum: float | None
    ) -> list[Passage]:
        """Returns the passages that fit a question best, of at least a minimum probability."""
        if self.is_loaded:
            return self._lazily_loaded_esa.find_passages(question, books, max_count, minimum)
        ranged = add_token_ranges(books)
        return PassageSearch().search_passages(question, ranged, max_count, minimum)

    @property
    def search(self) -> PassageSearch:
        """The search of the loaded model, or by words."""
        return self._lazily_loaded_esa.search if self.is_loaded else PassageSearch()

    @cached_property
    def _indexed_text_digests(self) -> set[str]:
        """The digests of the texts that have a token index of any model in the library."""
        entries = self._library.entries() if self._library.exists else []
        return {entry.text_sha256 for entry in entries if entry.kv_format == library_texts.INDEX}

    @cached_property
    def _lazily_loaded_esa(self) -> Esa:
        esa = self._load()
        self.is_loaded = True
        return esa
