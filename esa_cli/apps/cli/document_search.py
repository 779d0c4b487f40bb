"""The books of a question. Of many documents the words are searched, and the best are opened.

Candidates are the files of folders and patterns, and with `--library` its documents and the files
of `esa ingest --words`. Documents that are named one by one are asked in any case.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import islice

from esa_cli.apps.cli.inputs import read_files
from esa_cli.apps.cli.output.progress_display import token_progress
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.documents.readers.text_builder import first_names
from esa_cli.documents.sources import SourceFiles
from esa_cli.errors import DiskError, DocumentError, EsaError, UsageError
from esa_cli.qa.finding.books import Book, distinct
from esa_cli.qa.ingestion.library_texts import FileIndexing, LibraryText, LibraryTexts, texts_of
from esa_cli.storage.library import Catalogue, Entry, Library

KEPT = 3
"""Times as many books stay open as a question is asked about, for the next questions."""
OpenEntry = Callable[[Entry], Book]
"""Makes a book of an entry of the library. Raises UsageError: of another model. DocumentError."""
OpenPath = Callable[[str], Book]
"""Makes a book of a file. Raises DocumentError."""


class QuestionBooks:
    """The books of questions: of all named documents, and of the candidates all or the best.

    Args:
        stack: closes the catalogue. in_library: the library's documents are candidates, too.
        most: candidates that are opened for a question; None: all of them.
        keep: False: words of files are not kept, unless the library is asked, too.

    Raises:
        DocumentError: nothing can be read. LibraryError. DiskError: `keep`, and there is no room
            for the words.
    """

    def __init__(
        self,
        files: SourceFiles,
        library: Library,
        reporter: Reporter,
        stack: ExitStack,
        *,
        most: int | None,
        in_library: bool = False,
        keep: bool | None = None,
    ) -> None:
        self.library, self.reporter, self._stack = library, reporter, stack
        self.in_library, self.most = in_library, most
        self._catalogue: Catalogue | None = None
        self._candidates: dict[str, LibraryText] = {}
        """By the digest of their text."""
        self._books, self._open = list[Book](), dict[LibraryText, Book]()
        self.searched = 0
        """Documents whose words were searched for the last question, if fewer were opened."""
        named = tuple(source for source in files.sources if not source.of)
        alone = SourceFiles(named, files.left_out)
        several = [path for path in files.paths if path not in set(alone.paths)]
        if most is not None and (len(several) > most or (in_library and library.exists)):
            self._search(several, most, keep)
        self.gathered = read_files(alone if self._catalogue else files, reporter)
        """The documents that are asked in any case."""

    def open(
        self, books: Sequence[Book], stored: OpenEntry, make: OpenPath, *, files: bool = True
    ) -> None:
        """Takes the books of `gathered`, and how others are opened; opens all of the library where
        it is not searched.

        Args:
            files: whether files of the library can be asked that no stored document has.

        Raises:
            UsageError: no document of the library can be asked.
        """
        self._stored, self._make, self._books = stored, make, list(books)
        if self.in_library and self._catalogue is None:
            self._books += self._library_books(make if files else None)

    def about(self, question: str, *, having_words: bool = False) -> list[Book]:
        """The books of a question.

        Args:
            having_words: every candidate with a word of it, in place of the best.

        Raises:
            UsageError: no candidate can be opened.
        """
        best = (
            [] if self._catalogue is None else self._best(self._catalogue, question, having_words)
        )
        return distinct([*self._books, *best])

    def _best(self, catalogue: Catalogue, question: str, having_words: bool) -> list[Book]:
        reporter, candidates = self.reporter, self._candidates
        ranked = [text.digest for text in catalogue.texts.ranked(question)]
        most = self.most or 0
        if having_words:
            most = max(1, len(candidates.keys() & set(ranked)))
        books, left_out = list[Book](), 0
        for digest in dict.fromkeys([*ranked, *candidates]):
            if len(books) == most:
                break
            if digest not in candidates:
                continue
            candidate = candidates[digest]
            with reporter.brief():
                book = self._open.pop(candidate, None) or self._candidate_book(candidate)
            if book is None:
                left_out += 1
            else:
                books.append(book)
                self._open[candidate] = book  # the last used last
        for candidate in list(islice(self._open, max(0, len(self._open) - KEPT * most))):
            del self._open[candidate]
        if not books:
            raise UsageError("no document can be asked with this preset", "`esa ingest` reads one")
        self.searched = len(candidates) if len(books) < len(candidates) else 0
        line = f"esa: searched {len(candidates):,} documents by their words, "
        line += f"opened the best {len(books)}"
        if left_out:
            line += f"; left out: {left_out:,} that cannot be read, or were read otherwise"
        (reporter.warn if left_out else reporter.note)(line)
        return books

    def _candidate_book(self, candidate: LibraryText) -> Book | None:
        book, errors = self._open_text(candidate, self._make)
        for error in errors:
            if not isinstance(error, UsageError):  # else it was read by another model
                self.reporter.left_out(error.message)
        return book

    def _open_text(
        self, text: LibraryText, make: OpenPath | None
    ) -> tuple[Book | None, list[EsaError]]:
        """The book of a text, and the errors of those that could not be opened."""
        errors = list[EsaError]()
        for entry in text.entries:
            try:
                return self._stored(entry), errors
            except (UsageError, DocumentError) as error:
                errors.append(error)
        try:
            return (make(text.path) if make and text.path else None), errors
        except DocumentError as error:
            return None, [*errors, error]

    def _library_books(self, make: OpenPath | None) -> list[Book]:
        """The books of all of the library, in the order in which they were ingested; reports what
        this model and method cannot be asked about."""
        texts, reporter = LibraryTexts(), self.reporter
        if self.library.exists:
            with self.library.search_catalogue() as catalogue:
                texts = self._library_texts(catalogue)
                self._report_left_out(texts)
        books, unread = list[Book](), 0
        for text in texts.texts:
            with reporter.brief():
                book, errors = self._open_text(text, make)
            if book is not None:
                books.append(book)
                continue
            unread += not errors
            for error in errors:
                reporter.left_out(error.message)
        if unread:
            reporter.left_out(f"{unread:,} files that were not read with this preset")
        if not books:
            hint = "`esa ingest` reads one"
            raise UsageError("the library has no document for this preset", hint)
        return books

    def _search(self, several: Sequence[str], most: int, keep: bool | None) -> None:
        """Puts the words of all candidates into a catalogue, if there are more than `most`."""
        library, stores = self.library, self.in_library or keep is not False
        try:
            self._index(
                library.search_catalogue() if stores else library.catalogue(False), several, most
            )
        except DiskError as error:
            if keep:
                raise
            self.reporter.settle()
            self.reporter.warn(f"esa: words of files are not kept: {error.message}")
            self._index(library.search_catalogue(copy=True), several, most)

    def _index(
        self, opened: AbstractContextManager[Catalogue], several: Sequence[str], most: int
    ) -> None:
        reporter = self.reporter
        with ExitStack() as own:
            catalogue = own.enter_context(opened)
            library = self._library_texts(catalogue) if self.in_library else LibraryTexts()
            is_stored = [bool(text.entries) for text in library.texts]
            if len(several) + len(is_stored) <= most and all(is_stored):
                return
            self._report_left_out(library)
            candidates = self._file_candidates(catalogue, several) if several else {}
            if any(is_stored):
                progress = token_progress(reporter, "words of the library", unit="documents")
                for error in catalogue.add_stored_texts(progress):
                    reporter.left_out(error.message)
                reporter.settle()
            self._candidates = candidates | {text.digest: text for text in library.texts}
            self._catalogue = catalogue
            self._stack.push(own.pop_all())

    def _library_texts(self, catalogue: Catalogue) -> LibraryTexts:
        progress = token_progress(self.reporter, "words of the files", unit="files")
        texts = texts_of(catalogue, progress)
        self.reporter.settle()
        return texts

    def _file_candidates(
        self, catalogue: Catalogue, several: Sequence[str]
    ) -> dict[str, LibraryText]:
        """The files by the digests of their texts; reports those that cannot be read."""
        names = {os.path.abspath(path): path for path in several}
        progress = token_progress(self.reporter, "words of the files", unit="files")
        changes = FileIndexing(catalogue).update(list(names), progress)
        self.reporter.settle()
        if changes.refused and not changes.readable:
            raise DocumentError(changes.refused[0].why, changes.refused[0].hint)
        self._report_refused([names[one.path] for one in changes.refused])
        candidates: dict[str, LibraryText] = {}
        for record in changes.readable:
            candidates.setdefault(record.digest, LibraryText(record.digest, names[record.path]))
        return candidates

    def _report_left_out(self, library: LibraryTexts) -> None:
        self._report_refused([one.path for one in library.refused])
        errors = [entry.error for entry in library.damaged if entry.error is not None]
        if len(errors) == 1:
            self.reporter.left_out(errors[0].message)
        elif errors:
            count = f"{len(errors):,} documents of the library that cannot be used"
            self.reporter.left_out(count, "`esa library list` says why")

    def _report_refused(self, paths: Sequence[str]) -> None:
        if paths:
            count = f"{len(paths):,} {'file' if len(paths) == 1 else 'files'}"
            self.reporter.left_out(f"{count} that cannot be read ({first_names(paths)})")
