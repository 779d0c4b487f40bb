"""Documents of a question where there are many: their words are searched, and the best are opened.

Candidates are the files of folders and patterns, and with `--library` its documents and the files
of `esa ingest --words`. Documents that are named one by one are asked in any case.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import islice

from esa_cli.apps.cli.output.progress_display import token_progress
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.documents.sources import SourceFiles
from esa_cli.documents.text_builder import first_names
from esa_cli.errors import DiskError, DocumentError, EsaError, UsageError
from esa_cli.qa.books import Book
from esa_cli.qa.ingestion.library_texts import FileIndexing, LibraryText, LibraryTexts, texts_of
from esa_cli.storage.library import Catalogue, Entry, Library

KEPT = 3
"""Times as many books stay open as a question is asked about, for the next questions."""
OpenEntry = Callable[[Entry], Book]
"""Makes a book of an entry of the library. Raises UsageError: of another model. DocumentError."""
OpenPath = Callable[[str], Book]
"""Makes a book of a file. Raises DocumentError."""


class DocumentSearch:
    """Candidates of a catalogue that has the words of all of them.

    Args:
        candidates: by the digest of their text. most: how many are asked.
    """

    def __init__(self, catalogue: Catalogue, candidates: dict[str, LibraryText], most: int) -> None:
        self._catalogue, self._candidates, self.most = catalogue, candidates, most

    def __len__(self) -> int:
        return len(self._candidates)

    def open_all_with_words(self, question: str) -> None:
        """Has every candidate with a word of the question opened, instead of the best."""
        digests = {text.digest for text in self._catalogue.texts.ranked(question)}
        self.most = max(1, len(digests & self._candidates.keys()))

    def ranked(self, question: str) -> list[LibraryText]:
        """The candidates, best first; those without a word of the question last, as they come."""
        ranked = self._catalogue.texts.ranked(question)
        order = dict.fromkeys([*(text.digest for text in ranked), *self._candidates])
        return [self._candidates[digest] for digest in order if digest in self._candidates]


class BestBooks:
    """Opens the best documents of a search, and keeps them open for the next question."""

    def __init__(
        self, search: DocumentSearch, stored: OpenEntry, make: OpenPath, reporter: Reporter
    ) -> None:
        self._search, self._stored, self._make = search, stored, make
        self._reporter = reporter
        self._open: dict[LibraryText, Book] = {}
        """The last used last."""
        self.searched = 0
        """Documents whose words were searched for the last question, if fewer were opened."""

    def books(self, question: str) -> list[Book]:
        """The best documents that can be opened. Raises UsageError: there is none."""
        search, reporter, most = self._search, self._reporter, self._search.most
        books, left_out = list[Book](), 0
        for candidate in search.ranked(question):
            if len(books) == most:
                break
            with reporter.brief():
                book = self._open.pop(candidate, None) or self._book(candidate)
            if book is None:
                left_out += 1
            else:
                books.append(book)
                self._open[candidate] = book
        for candidate in list(islice(self._open, max(0, len(self._open) - KEPT * most))):
            del self._open[candidate]
        if not books:
            raise UsageError("no document can be asked with this preset", "`esa ingest` reads one")
        self.searched = len(search) if len(books) < len(search) else 0
        line = f"esa: searched {len(search):,} documents by their words, "
        line += f"opened the best {len(books)}"
        if left_out:
            line += f"; left out: {left_out:,} that cannot be read, or were read otherwise"
        (reporter.warn if left_out else reporter.note)(line)
        return books

    def _book(self, candidate: LibraryText) -> Book | None:
        book, errors = _open_text(candidate, self._stored, self._make)
        for error in errors:
            if not isinstance(error, UsageError):  # else it was read by another model
                self._reporter.left_out(error.message)
        return book


def library_books(
    stored: OpenEntry, library: Library, reporter: Reporter, make: OpenPath | None = None
) -> list[Book]:
    """A book of every text of the library that this model and method can be asked about, in the
    order in which they were ingested. Reports what is left out.

    Args:
        make: makes a book of a file, where no stored document has its text; None: such files are
            left out.

    Raises:
        UsageError: there is none.
    """
    texts = LibraryTexts()
    if library.exists:
        with library.search_catalogue() as catalogue:
            texts = _library_texts(catalogue, reporter)
            _report_left_out(texts, reporter)
    books, unread = list[Book](), 0
    with reporter.brief():
        for text in texts.texts:
            book, errors = _open_text(text, stored, make)
            if book is not None:
                books.append(book)
                continue
            unread += not errors
            for error in errors:
                reporter.left_out(error.message)
    if unread:
        reporter.left_out(f"{unread:,} files that were not read with this preset")
    if not books:
        raise UsageError("the library has no document for this preset", "`esa ingest` reads one")
    return books


def _open_text(
    text: LibraryText, stored: OpenEntry, make: OpenPath | None
) -> tuple[Book | None, list[EsaError]]:
    """The book of a text, and the errors of what could not be opened."""
    errors = list[EsaError]()
    for entry in text.entries:
        try:
            return stored(entry), errors
        except (UsageError, DocumentError) as error:
            errors.append(error)
    try:
        return (make(text.path) if make and text.path else None), errors
    except DocumentError as error:
        return None, [*errors, error]


def named_alone(files: SourceFiles) -> SourceFiles:
    """Without the files of folders and patterns."""
    named = tuple(source for source in files.sources if not source.of)
    return SourceFiles(named, files.left_out)


@contextmanager
def document_search(
    files: SourceFiles,
    library: Library,
    reporter: Reporter,
    *,
    most: int,
    in_library: bool = False,
    keep: bool | None = None,
) -> Iterator[DocumentSearch | None]:
    """The search over files of folders and patterns and, if `in_library`, over the library; None
    where there are at most `most` candidates, or this Python's sqlite3 cannot search: all of them
    are then to be asked.

    Args:
        keep: False: words of files are not kept, unless the library is asked, too.

    Raises:
        DocumentError: there is no candidate that can be read. LibraryError. DiskError: `keep`, and
            there is no room for the words.
    """
    named = set(named_alone(files).paths)
    several = [path for path in files.paths if path not in named]
    if len(several) <= most and not (in_library and library.exists):
        yield None
        return
    search = partial(_search, several, in_library, most, reporter)
    stores = in_library or keep is not False
    with ExitStack() as stack:
        try:
            opened = library.search_catalogue() if stores else library.catalogue(False)
            result = _entered(stack, opened, search)
        except DiskError as error:
            if keep:
                raise
            reporter.settle()
            reporter.warn(f"esa: words of files are not kept: {error.message}")
            result = _entered(stack, library.search_catalogue(copy=True), search)
        yield result


def _entered(
    stack: ExitStack,
    opened: AbstractContextManager[Catalogue],
    search: Callable[[Catalogue], DocumentSearch | None],
) -> DocumentSearch | None:
    """The search in the catalogue, which the stack closes."""
    with ExitStack() as own:
        result = search(own.enter_context(opened))
        stack.push(own.pop_all())
    return result


def _search(
    several: Sequence[str], in_library: bool, most: int, reporter: Reporter, catalogue: Catalogue
) -> DocumentSearch | None:
    """The search, with the words of all candidates in the catalogue; else as `document_search`."""
    library = _library_texts(catalogue, reporter) if in_library else LibraryTexts()
    if len(several) + len(library.texts) <= most and all(one.entries for one in library.texts):
        return None
    if not catalogue.texts.searchable:
        reporter.warn("esa: all documents are opened: this Python's sqlite3 has no FTS5")
        return None
    _report_left_out(library, reporter)
    candidates = _file_candidates(catalogue, several, reporter)
    if any(one.entries for one in library.texts):
        progress = token_progress(reporter, "words of the library", unit="documents")
        for error in catalogue.add_stored_texts(progress):
            reporter.left_out(error.message)
        reporter.settle()
    candidates |= {one.digest: one for one in library.texts}
    return DocumentSearch(catalogue, candidates, most)


def _library_texts(catalogue: Catalogue, reporter: Reporter) -> LibraryTexts:
    texts = texts_of(catalogue, token_progress(reporter, "words of the files", unit="files"))
    reporter.settle()
    return texts


def _report_left_out(library: LibraryTexts, reporter: Reporter) -> None:
    _report_refused([one.path for one in library.refused], reporter)
    errors = [entry.error for entry in library.damaged]
    if len(errors) == 1:
        reporter.left_out(errors[0].message)
    elif errors:
        reporter.left_out(
            f"{len(errors):,} documents of the library that cannot be used",
            "`esa library list` says why",
        )


def _file_candidates(
    catalogue: Catalogue, several: Sequence[str], reporter: Reporter
) -> dict[str, LibraryText]:
    """The files by the digests of their texts, each text once; reports those that cannot be
    read."""
    names = {os.path.abspath(path): path for path in several}
    if not names:
        return {}
    progress = token_progress(reporter, "words of the files", unit="files")
    changes = FileIndexing(catalogue).update(list(names), progress)
    reporter.settle()
    refused = changes.refused
    if refused and not changes.readable:
        raise DocumentError(refused[0].why, refused[0].hint)
    _report_refused([names[one.path] for one in refused], reporter)
    candidates: dict[str, LibraryText] = {}
    for record in changes.readable:
        candidates.setdefault(record.digest, LibraryText(record.digest, names[record.path]))
    return candidates


def _report_refused(paths: Sequence[str], reporter: Reporter) -> None:
    """Reports files that cannot be read."""
    if paths:
        count = f"{len(paths):,} {'file' if len(paths) == 1 else 'files'}"
        reporter.left_out(f"{count} that cannot be read ({first_names(paths)})")
