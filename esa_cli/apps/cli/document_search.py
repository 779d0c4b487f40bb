"""Documents of a question where there are many: their words are searched, and the best are opened.

Candidates are the files of folders and patterns, and with `--library` its documents and the files
of `esa ingest --words`. Documents that are named one by one are asked in any case.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

from esa_cli.apps.cli.output.progress_display import token_progress
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.documents.sources import SourceFiles
from esa_cli.documents.text_builder import first_names
from esa_cli.errors import DiskError, DocumentError
from esa_cli.qa.ingestion.library_texts import FileIndexing, LibraryText, LibraryTexts, texts_of
from esa_cli.storage.library import Catalogue, FileRecord, Library


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
        found = {one.digest for one in self._catalogue.texts.ranked(question)}
        self.most = max(1, len(found & self._candidates.keys()))

    def ranked(self, question: str) -> list[LibraryText]:
        """The candidates, best first; those without a word of the question last, as they come."""
        found = self._catalogue.texts.ranked(question)
        order = dict.fromkeys([*(one.digest for one in found), *self._candidates])
        return [self._candidates[digest] for digest in order if digest in self._candidates]


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
    kept = in_library or keep is not False
    with ExitStack() as stack:
        try:
            opened = library.search_catalogue() if kept else library.catalogue(False)
            found = _entered(stack, opened, search)
        except DiskError as error:
            if keep:
                raise
            reporter.settle()
            reporter.warn(f"esa: words of files are not kept: {error.message}")
            found = _entered(stack, library.search_catalogue(copy=True), search)
        yield found


def _entered(
    stack: ExitStack,
    opened: AbstractContextManager[Catalogue],
    search: Callable[[Catalogue], DocumentSearch | None],
) -> DocumentSearch | None:
    """The search in the catalogue, which the stack closes. Raises what the catalogue makes of
    errors of writing it."""
    with ExitStack() as own:
        found = search(own.enter_context(opened))
        stack.push(own.pop_all())
    return found


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
            reporter.warn(f"esa: left out: {error.message}")
        reporter.settle()
    candidates |= {one.digest: one for one in library.texts}
    return DocumentSearch(catalogue, candidates, most)


def asked_texts(catalogue: Catalogue, reporter: Reporter) -> LibraryTexts:
    """The texts of the library; reports, in a line each, what is left out. Raises LibraryError,
    DiskError."""
    library = _library_texts(catalogue, reporter)
    _report_left_out(library, reporter)
    return library


def _library_texts(catalogue: Catalogue, reporter: Reporter) -> LibraryTexts:
    library = texts_of(catalogue, token_progress(reporter, "words of the files", unit="files"))
    reporter.settle()
    return library


def _report_left_out(library: LibraryTexts, reporter: Reporter) -> None:
    _report_refused(library.refused, {}, reporter)
    damaged = library.damaged
    if len(damaged) == 1:
        reporter.warn(f"esa: left out: {damaged[0].damage}")
    elif damaged:
        reporter.warn(
            f"esa: left out: {len(damaged):,} documents of the library that cannot be used; "
            "`esa library list` says why"
        )


def _file_candidates(
    catalogue: Catalogue, several: Sequence[str], reporter: Reporter
) -> dict[str, LibraryText]:
    """The files by the digests of their texts, each text once; reports those that cannot be read.

    Raises:
        DocumentError: none can.
    """
    given = {os.path.abspath(path): path for path in several}
    if not given:
        return {}
    progress = token_progress(reporter, "words of the files", unit="files")
    changes = FileIndexing(catalogue).update(list(given), progress)
    reporter.settle()
    refused = changes.refused
    if refused and not changes.readable:
        raise DocumentError(refused[0].why, refused[0].hint)
    _report_refused(refused, given, reporter)
    found: dict[str, LibraryText] = {}
    for record in changes.readable:
        found.setdefault(record.digest, LibraryText(record.digest, given[record.path]))
    return found


def _report_refused(
    refused: Sequence[FileRecord], given: Mapping[str, str], reporter: Reporter
) -> None:
    """Names files that cannot be read, as they were `given`."""
    if refused:
        names = first_names([given.get(one.path, one.path) for one in refused])
        count = f"{len(refused):,} {'file' if len(refused) == 1 else 'files'}"
        reporter.warn(f"esa: left out: {count} that cannot be read ({names})")
