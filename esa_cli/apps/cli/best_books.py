"""Books of the documents that a search ranks first for a question."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from esa_cli.apps.cli.document_search import DocumentSearch
from esa_cli.apps.cli.inputs import incomplete, without_beginnings
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.errors import DocumentError, UsageError
from esa_cli.qa.books import Book
from esa_cli.qa.ingestion.library_texts import LibraryText
from esa_cli.storage.library import Entry, Library

KEPT = 3
"""Times as many books stay open as a question is asked about, for the next questions."""


class BestBooks:
    """Opens the best documents of a search, and keeps them open for the next question.

    Args:
        stored: makes a book of an entry of the library, or raises UsageError. make: one of a path.
    """

    def __init__(
        self,
        search: DocumentSearch,
        stored: Callable[[Entry], Book],
        library: Library,
        make: Callable[[str], Book],
        reporter: Reporter,
    ) -> None:
        self._search, self._stored, self._library = search, stored, library
        self._make, self._reporter = make, reporter
        self._open: dict[LibraryText, Book] = {}
        """The last used last."""
        self.searched = 0
        """Documents whose words were searched for the last question, if fewer were opened."""

    def books(self, question: str) -> list[Book]:
        """The best documents that can be opened. Raises UsageError: there is none."""
        most, passed = self._search.most, 0
        found: list[Book] = []
        for candidate in self._search.ranked(question):
            if len(found) == most:
                break
            with self._reporter.brief():
                book = self._open.pop(candidate, None) or self._opened(candidate)
            if book is None:
                passed += 1
            else:
                found.append(book)
                self._open[candidate] = book
        for candidate in list(islice(self._open, max(0, len(self._open) - KEPT * most))):
            del self._open[candidate]
        if not found:
            raise UsageError("no document can be asked with this preset", "`esa ingest` reads one")
        self.searched = len(self._search) if len(found) < len(self._search) else 0
        line = f"esa: searched {len(self._search):,} documents by their words, "
        line += f"opened the best {len(found)}{incomplete(found)}"
        if passed:
            line += f"; left out: {passed:,} that cannot be read, or another model or settings read"
        (self._reporter.warn if passed else self._reporter.note)(line)
        return without_beginnings(found, self._reporter)

    def _opened(self, candidate: LibraryText) -> Book | None:
        for entry in candidate.entries:
            try:
                if self._library.find(entry.key) is not None:
                    return self._stored(entry)
            except UsageError:  # read by another model or other settings
                continue
            except DocumentError as error:
                self._reporter.warn(f"esa: left out: {error.message}")
        return self._from_file(candidate.path) if candidate.path else None

    def _from_file(self, path: str) -> Book | None:
        try:
            return self._make(path)
        except DocumentError as error:
            self._reporter.warn(f"esa: left out: {error.message}")
            return None
