"""A passage of a document: what finding gives, reading reads, and an answer rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from esa_cli.documents.document import Document


@dataclass(frozen=True)
class Passage:
    """A passage of a document.

    Args:
        document: the document's name. source: its path. page: from 1, where the document has pages.
        line: from 1, in the document's extracted text. chapter: its heading, where there are any.
        start, end: character offsets into the document's extracted text; `text` lies between them.
        score: of finding, in standard deviations above the mean of all windows of the documents
            searched; after reading, these times the prior plus the log-odds.
        weight: from 0 to 1, in an answer: the share of all attention to the documents; in answers
            from text, of the scores of all passages.
        log_odds: that it contains the answer; None: it was not read.
        quote: character offsets into the document of its most probable answer.
    """

    document: str
    source: str
    page: int | None
    line: int
    chapter: str | None
    start: int
    end: int
    text: str
    score: float = 0.0
    weight: float = 0.0
    log_odds: float | None = None
    quote: tuple[int, int] | None = None

    @classmethod
    def of(cls, document: Document, start: int, end: int, **more: Any) -> Self:
        """These characters of a document. `more`: score, weight and the fields after them."""
        at, text = document.place(start), document.text[start:end]
        return cls(
            document.name, document.source, at.page, at.line, at.chapter, start, end, text, **more
        )

    def as_found(self) -> dict[str, Any]:
        """The fields of a passage that was found, for JSON."""
        place = {"document": self.document, "source": self.source, "page": self.page}
        return {**place, **self._rest(), "score": round(self.score, 3)}

    def as_evidence(self) -> dict[str, Any]:
        """The fields of a passage that an answer rests on, for JSON."""
        return {
            "document": self.document, "page": self.page, **self._rest(), "weight": self.weight
        }  # fmt: skip

    def _rest(self) -> dict[str, Any]:
        return {
            "line": self.line, "chapter": self.chapter, "start": self.start, "end": self.end,
            "text": self.text,
        }  # fmt: skip
