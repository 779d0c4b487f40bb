"""An answer and the passages it rests on: plain data, which imports no torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from esa_cli.qa.finding.passage import Passage

if TYPE_CHECKING:
    from esa_cli.documents.document import Document


class Turn(NamedTuple):
    """One earlier question and its answer."""

    question: str
    answer: str


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
"""The answer where no passage contains it: about the search, not about the documents."""
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
    evidence: tuple[Passage, ...] = ()
    found: bool = True
    question_tokens: int = 0
    answer_tokens: int = 0
    first_token_s: float = 0.0
    total_s: float = 0.0
    cut: bool = False
    answered_from: AnsweredFrom = "rows"
    quotation: Quotation | None = None
    read: bool = True

    @property
    def doubtful(self) -> bool:
        """Whether the documents may not contain the answer, and its text does not say so itself."""
        return not self.found and not says_not_told(self.text)

    def as_row(self) -> dict[str, Any]:
        """The fields for JSON."""
        return {
            "answer": self.text,
            "found": self.found,
            "cut": self.cut,
            "answered_from": self.answered_from,
            "read": self.read,
            "quotation": None if self.quotation is None else asdict(self.quotation),
            "evidence": [passage.as_evidence() for passage in self.evidence],
            "tokens": {"question": self.question_tokens, "answer": self.answer_tokens},
            "timing": {
                "first_token_s": round(self.first_token_s, 3),
                "total_s": round(self.total_s, 3),
            },
        }


class HasDocument(Protocol):
    """A book, or anything else that was made of one document."""

    @property
    def document(self) -> Document: ...


def lacking(books: Sequence[HasDocument]) -> list[str]:
    """Parts of the documents that are missing in their texts, each as `NAME: what`."""
    documents = [book.document for book in books]
    return [f"{document.name}: {what}" for document in documents for what in document.missing]
