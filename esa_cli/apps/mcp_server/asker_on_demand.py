"""The asker behind the tools: its model is loaded when it is first needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from esa_cli.qa.answering.reply import Asker, HeatMap, Reply, Turn
from esa_cli.system.progress import Progress

if TYPE_CHECKING:
    from esa_cli.documents.document import Document
    from esa_cli.qa.books import Book
    from esa_cli.qa.finding.passage_finder import Passage
    from esa_cli.storage.library import Entry


class DocumentAsker(Asker, Protocol):
    """An asker that finds passages, too, and opens documents of the library; `api.Esa` is one."""

    def find(self, document: Document) -> Book | None:
        """The document's book, if it was read before. Raises LibraryError."""
        ...

    def stored(self, entry: Entry) -> Book:
        """A book of the library. Raises UsageError: it was read by another model. LibraryError."""
        ...

    def find_passages(
        self,
        question: str,
        books: Sequence[Book],
        count: int | None = ...,
        minimum: float | None = ...,
    ) -> list[Passage]:
        """As `PassageSearch.passages`."""
        ...


class AskerOnDemand:
    """A `DocumentAsker` whose methods load the model, the first time.

    Args:
        load: raises UsageError, PresetError, ModelError or ResourceError; it is then called again
            the next time.
    """

    def __init__(self, load: Callable[[], DocumentAsker]) -> None:
        self._load = load
        self._asker: DocumentAsker | None = None

    @property
    def asker(self) -> DocumentAsker:
        if self._asker is None:
            self._asker = self._load()
        return self._asker

    @property
    def name(self) -> str:
        return self.asker.name

    @property
    def answers_unread(self) -> bool:
        return self.asker.answers_unread

    def interruptible(self, on_step: Callable[[], None]) -> AbstractContextManager[None]:
        return self.asker.interruptible(on_step)

    def question_tokens(self, question: str, history: Sequence[Turn] = ()) -> int:
        return self.asker.question_tokens(question, history)

    def open(self, source: str | Document) -> Any:
        return self.asker.open(source)

    def ingest(self, source: str | Document, progress: Progress | None = None) -> Any:
        return self.asker.ingest(source, progress)

    def ask(self, question: str, books: Sequence[Any], **more: Any) -> Reply:
        return self.asker.ask(question, books, **more)

    def heat_maps(self, books: Sequence[Any]) -> list[HeatMap]:
        return self.asker.heat_maps(books)

    def find(self, document: Document) -> Book | None:
        return self.asker.find(document)

    def stored(self, entry: Entry) -> Book:
        return self.asker.stored(entry)

    def find_passages(
        self,
        question: str,
        books: Sequence[Book],
        count: int | None = None,
        minimum: float | None = None,
    ) -> list[Passage]:
        return self.asker.find_passages(question, books, count, minimum)
