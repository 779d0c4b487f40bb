"""A passage of a document, which a finder finds, a reader model reads, and an answer cites."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Self

from esa_cli.documents.document import Document
from esa_cli.documents.outline import find_place
from esa_cli.documents.readers.reader_registry import BUILT_IN, TABLES, choose_reader

_PLACE = ("page", "line", "chapter", "title", "link")
_PROSE = (".txt", ".text", "")
MAX_NAME = 200


@dataclass(frozen=True)
class Passage:
    """Characters [start, end) of a document, with the passage's page, line, chapter and scores.

    Args:
        document, source: its name and path. page, line: of an answer's quotation, of the words that
            a search looked for, or of the beginning; of a CSV table or workbook the row.
        title, link: of the document, or of the item in a collection.
        score: in a search, the log-odds that the passage answers; after reading, that `quote` does.
        weight: the share of all attention, or of the scores of all passages, of an answer.
        quote: characters [start, end) of the document that answer best.
        probability: the probability of the score's log-odds, if there is one.
        late: in a document with a token index, the late interaction of the passage alone, and with
            each number of neighbours, less the highest of all passages; then the highest alone.
        indent: columns of white space before the first line, which `text` does not have."""

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
    quote: tuple[int, int] | None = None
    probability: float | None = None
    late: tuple[float, ...] | None = None
    title: str | None = None
    link: str | None = None
    indent: int = 0

    @classmethod
    def cut_from(cls, document: Document, start: int, end: int, **other_fields: Any) -> Self:
        """Returns characters [start, end) of a document as a passage, with `other_fields` set."""
        at = find_place(document, start)
        text = document.text
        before = text[text.rfind("\n", 0, start) + 1 : start].expandtabs(4)
        indent = 0 if before.strip() else len(before)
        given: dict[str, Any] = {"start": start, "end": end, "text": text[start:end]}
        return cls(
            document.name, document.source, indent=indent, **at._asdict(), **given | other_fields
        )

    def describe_place(self, path: str = "") -> str:
        """Describes where the passage is: the document's `path`, by default that below the current
        folder or else the document's name, and what helps a person to find the passage in this
        format: the page, the chapter, the row of a table, or the line of a text."""
        is_file = self.document in (os.path.basename(self.source), self.source)
        if not path and is_file:
            path = os.path.normpath(self.source)
            if os.path.isabs(path):
                below = Path(path).is_relative_to(Path.cwd())
                path = os.path.relpath(path) if below else self.document
        path = path or self.document
        reader = choose_reader(b"", self.source)
        parts = [path] if self.page is None else [path, f"page {self.page:,}"]
        if self.page is None and reader in TABLES:
            return ", ".join([path, *self.list_names(), f"row {self.line:,}"])
        if self.page is None and reader in (BUILT_IN["text"], BUILT_IN["markdown"]):
            parts = [f"{path}:{self.line}"]
        elif self.page is None and not self.chapter:
            parts.append(f"line {self.line:,}")
        return ", ".join([*parts, *self.list_names()])

    @property
    def has_lines(self) -> bool:
        """Whether line breaks mean something, as in code, logs and tables, and not only in code
        blocks of Markdown."""
        reader = choose_reader(b"", self.source)
        is_code = reader is BUILT_IN["text"] and PurePath(self.source).suffix.lower() not in _PROSE
        return is_code or reader in TABLES

    @property
    def margin(self) -> int:
        """The columns of white space before all lines."""
        lines = [line.expandtabs(4) for line in self.text.splitlines()[1:] if line.strip()]
        return min([self.indent, *(len(line) - len(line.lstrip()) for line in lines)])

    def list_lines(self) -> list[str]:
        """Returns the lines that have text, without the margin."""
        text = " " * self.indent + self.text.expandtabs(4)
        return [line[self.margin :].rstrip() for line in text.splitlines() if line.strip()]

    def list_names(self) -> list[str]:
        """Returns the title of the passage's document and the chapter, both cut after `MAX_NAME`
        characters, and the link, if there are."""
        is_titled = self.title and self.title.startswith(self.chapter or "")
        names = [name for name in (self.title, None if is_titled else self.chapter) if name]
        shown = [name if len(name) <= MAX_NAME else name[:MAX_NAME] + "…" for name in names]
        return [*shown, self.link] if self.link else shown

    def as_found(self) -> dict[str, Any]:
        """Returns the JSON fields of a passage that a search has found."""
        names = ("document", "source", *_PLACE, "start", "end", "text")
        probability = None if self.probability is None else round(self.probability, 4)
        scores = {"score": round(self.score, 3), "probability": probability}
        return {name: getattr(self, name) for name in names} | scores

    def as_evidence(self) -> dict[str, Any]:
        """Returns the JSON fields of a passage on which an answer rests."""
        names = ("document", "source", *_PLACE, "start", "end", "text", "weight")
        return {name: getattr(self, name) for name in names}
