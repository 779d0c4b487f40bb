"""A passage of a document, which the finder finds, the reader reads, and an answer cites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from esa_cli.documents.document import Document


@dataclass(frozen=True)
class Passage:
    """Characters [start, end) of a document, with page, line, chapter, and scores of the passage.

    Args:
        document: the name of the document. source: its path. page, line: from 1.
        score: of finding, in standard deviations above the mean of all windows; after reading,
            these times the prior plus the log-odds.
        weight: the share of all attention, or of the scores of all passages, of an answer.
        log_odds: of the passage containing the answer; None if the reader has not read it.
        quote: character offsets into the document of its most probable answer."""

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
    def cut_from(cls, document: Document, start: int, end: int, **fields: Any) -> Self:
        """Cuts characters [start, end) out of a document as a passage, with further `fields`."""
        at = document.place(start)
        return cls(
            document.name, document.source, at.page, at.line, at.chapter, start, end,
            document.text[start:end], **fields,
        )  # fmt: skip

    def as_found(self) -> dict[str, Any]:
        """Returns the JSON fields of a passage in a search result."""
        names = ("document", "source", "page", "line", "chapter", "start", "end", "text")
        return {name: getattr(self, name) for name in names} | {"score": round(self.score, 3)}

    def as_evidence(self) -> dict[str, Any]:
        """Returns the JSON fields of a passage that is evidence of an answer."""
        names = ("document", "page", "line", "chapter", "start", "end", "text", "weight")
        return {name: getattr(self, name) for name in names}
