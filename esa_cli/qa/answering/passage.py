"""A passage of a document that fits a question, with its place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Passage:
    """A passage that fits a question.

    Args:
        document: the document's name. source: its path. page: from 1, where the document has pages.
        line: from 1, in the document's extracted text. chapter: its heading, where there are any.
        start, end: character offsets into the document's extracted text; `text` lies between them.
        score: standard deviations above the mean of all windows of the documents searched.
    """

    document: str
    source: str
    page: int | None
    line: int
    chapter: str | None
    start: int
    end: int
    text: str
    score: float
