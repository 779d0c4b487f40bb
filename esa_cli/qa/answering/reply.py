"""An answer with the passages it rests on, and the protocol of whatever answers.

Plain data, so that chat, batch, server and tests can be written against it alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from esa_cli.documents.document import Document


class Turn(NamedTuple):
    """One earlier question and its answer."""

    question: str
    answer: str


@dataclass(frozen=True)
class Evidence:
    """A passage that an answer rests on.

    Args:
        document: the document's name. page: from 1, where the document has pages.
        line: from 1, in the document's extracted text. chapter: its heading, where there are any.
        start, end: character offsets into the document's extracted text; `text` lies between them.
        weight: from 0 to 1: the share of all attention to the documents; in answers from text, of
            the scores of all passages.
    """

    document: str
    page: int | None
    line: int
    chapter: str | None
    start: int
    end: int
    text: str
    weight: float

    @classmethod
    def of(cls, document: Document, start: int, end: int, weight: float) -> Evidence:
        """These characters of a document."""
        at, text = document.place(start), document.text[start:end]
        return cls(document.name, at.page, at.line, at.chapter, start, end, text, weight)


@dataclass(frozen=True)
class Quotation:
    """The place of an answer that is a quotation: a document's name, and its characters there."""

    document: str
    start: int
    end: int


class ShadedSpan(NamedTuple):
    """Characters [start, end) of a document with weight, and their shade, 1 to 8."""

    start: int
    end: int
    level: int


class HeatMap(NamedTuple):
    """A document of an answer, by its name in the evidence, and its characters that have weight,
    ascending; what is not among them has almost none."""

    document: str
    spans: tuple[ShadedSpan, ...]


NOT_TOLD = "Nothing found that answers."
"""The answer where no passage tells it: about the search, not about the documents."""
_NOT_TOLD = re.compile(
    r"\W*(?:nothing (?:was )?found that answers\b|"
    r"(?:the )?(?:given |provided )?(?:documents?|passages?|texts?) (?:do|does)(?: not|n['’]t) "
    r"(?:say|tell|state|mention|specify|contain|provide)\b)",
    re.IGNORECASE,
)
AnsweredFrom = Literal["rows", "text"]


def says_not_told(text: str) -> bool:
    """Whether an answer begins with `NOT_TOLD`, or with the words that the documents do not say:
    those of another model, or of a conversation with an older version."""
    return bool(_NOT_TOLD.match(text))


@dataclass(frozen=True)
class Reply:
    """One answer, what it rests on, and what it took.

    Args:
        evidence: heaviest first. found: False when nothing in the documents carries weight, so that
            they may not contain the answer.
        first_token_s, total_s: seconds from asking. cut: it reached the longest allowed.
        answered_from: rows that were selected, or passages read again as text.
        quotation: where the text stands, if it is a quotation. read: whether the model had read all
            documents; False: passages of one were found by its words alone.
    """

    text: str
    evidence: tuple[Evidence, ...]
    found: bool
    question_tokens: int
    answer_tokens: int
    first_token_s: float
    total_s: float
    cut: bool = False
    answered_from: AnsweredFrom = "rows"
    quotation: Quotation | None = None
    read: bool = True

    @property
    def doubtful(self) -> bool:
        """Whether the documents may not contain the answer, and its text does not say so itself."""
        return not self.found and not says_not_told(self.text)


class IngestedDocument(Protocol):
    """A result of `Asker.ingest`: anything that has the document it was made of."""

    @property
    def document(self) -> Document: ...


def lacking(books: Sequence[IngestedDocument]) -> list[str]:
    """Parts of the documents that are missing in their texts, each as `NAME: what`."""
    documents = [book.document for book in books]
    return [f"{document.name}: {what}" for document in documents for what in document.missing]


class Asker(Protocol):
    """Reads documents and answers questions about them; `api.Esa` is one. Not thread-safe."""

    @property
    def name(self) -> str:
        """The model's name, as a person knows it."""
        ...

    @property
    def answers_unread(self) -> bool:
        """Whether a document can be asked before it is read, by its words alone."""
        ...

    def question_tokens(self, question: str, history: Sequence[Turn] = ()) -> int:
        """Tokens of a question with its earlier turns, which the model does not read for that.

        Raises:
            UsageError: the question is empty, or too long whatever the documents are.
        """
        ...

    def interruptible(self, on_step: Callable[[], None]) -> AbstractContextManager[None]:
        """Within it, `on_step` is called often while the model reads or answers; an exception
        raised in it ends that and passes through, and the asker stays usable."""
        ...

    def open(self, source: str | Document) -> IngestedDocument:
        """A book that can be asked at once: found among those read before, or not read where
        answers can do without. Raises: as `ingest`."""
        ...

    def ingest(
        self, source: str | Document, progress: Callable[[int, int], None] | None = None
    ) -> IngestedDocument:
        """A book: one document, read, or found among those read before.

        Args:
            source: a path, - for standard input, or a document.
            progress: called with (tokens read, tokens in all) while it is read; an exception
                raised in it ends the reading and passes through, and the asker stays usable.

        Raises:
            DocumentError, ResourceError.
        """
        ...

    def ask(
        self,
        question: str,
        books: Sequence[Any],
        *,
        history: Sequence[Turn] = (),
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        evidence: int = 3,
        on_text: Callable[[str], None] | None = None,
    ) -> Reply:
        """Answers one question about what `ingest` returned.

        Args:
            history: earlier turns, oldest first. None takes the preset's. evidence: passages.
            on_text: called with each piece of the answer as it comes; an exception raised in it
                ends the answer and passes through, and the asker stays usable.

        Raises:
            UsageError: no book, an empty question, or one that is too long.
            HistoryError: it is too long with its history, and may not be with less of it.
        """
        ...

    def heat_maps(self, books: Sequence[Any]) -> list[HeatMap]:
        """The heat maps of the last answer: one for each of its documents, in their order, each
        text once. Raises UsageError: it was not about these books."""
        ...
