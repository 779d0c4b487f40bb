"""Results of the tools: structured, and as a readable text for clients that show only that."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from esa_cli.qa.answering.reply import says_not_told

ABSENT = "The documents may not contain the answer."


class ToolResult(BaseModel):
    """What a tool returns."""

    def as_text(self) -> str:
        raise NotImplementedError


class PassageResult(BaseModel):
    """A passage with its place."""

    document: str = Field(description="The document's name.")
    id: str = Field(description="What `show` and `documents` take.")
    file: str | None = None
    page: int | None = None
    line: int = Field(description="From 1, in the extracted text.")
    chapter: str | None = None
    start: int = Field(description="Character offset into the extracted text.")
    end: int
    score: float = Field(
        description="`find`: standard deviations above the mean; `ask`: share, 0 to 1."
    )
    text: str

    def as_text(self, number: int, scored: bool = True) -> str:
        page = "" if self.page is None else f", page {self.page}"
        chapter = f", {' '.join(self.chapter.split())}" if self.chapter else ""
        score = f", score {self.score:g}" if scored else ""
        where = f"id {self.id}, characters {self.start}-{self.end}{score}"
        place = f"{self.document}{page}, line {self.line}{chapter}"
        return f"[{number}] {place} ({where})\n{self.text.strip()}"


class FindResult(ToolResult):
    passages: list[PassageResult] = Field(description="Best first.")
    note: str | None = None

    def as_text(self) -> str:
        passages = _listed(self.passages) or "No passage fits; try other words."
        return _joined(passages, self.note)


class AskResult(ToolResult):
    answer: str
    found: bool = Field(description="false: nothing was found that answers.")
    passages: list[PassageResult] = Field(
        description="What the answer rests on; if not found, the nearest."
    )
    model: str = Field(description="The local model that worded the answer.")
    note: str | None = None

    def as_text(self) -> str:
        absent = None if self.found or says_not_told(self.answer) else ABSENT
        title = "Passages it rests on:" if self.found else "The nearest passages:"
        passages = self.passages and f"{title}\n\n{_listed(self.passages, self.found)}"
        return _joined(f"Answer of {self.model}: {self.answer}", absent, passages, self.note)


class IngestedFacts(BaseModel):
    """A document that the model has read."""

    id: str
    document: str
    tokens: int
    characters: int
    seconds: float = Field(description="0: it was read before.")
    stored: bool
    missing: list[str] = Field(description="What its text lacks.")

    def as_text(self) -> str:
        how = f"read in {self.seconds:.0f} s" if self.seconds else "had been read before"
        text = f"{self.document}: {self.tokens:,} tokens, {how} (id {self.id})"
        unstored = [] if self.stored else ["not stored, since the library cannot be written"]
        return "; ".join([text, *unstored, *self.missing])


class IngestResult(ToolResult):
    documents: list[IngestedFacts]

    def as_text(self) -> str:
        return "\n".join(document.as_text() for document in self.documents)


class DocumentFacts(BaseModel):
    """A document of the library, or a file that may be named."""

    id: str
    document: str
    file: str | None = None
    characters: int | None = None
    pages: int | None = None
    how: Literal["read", "words", "file"] = Field(
        description="read: by the model, text stored; words: a synchronised file, found by its "
        "words; file: not in the library, found only where it is named."
    )
    damage: str | None = None

    def as_text(self) -> str:
        if self.damage is not None:
            return f"{self.id}  {self.document} ({self.damage})"
        size = [] if self.characters is None else [f"{self.characters:,} characters"]
        size += [] if self.pages is None else [f"{self.pages:,} pages"]
        return f"{self.id}  {self.document} ({', '.join([*size, self.how])})"


class ListResult(ToolResult):
    documents: list[DocumentFacts]
    total: int = Field(description="Documents that fit, those on other pages included.")
    folders: list[str] = Field(description="Folders whose files may be named, too, by path.")
    note: str | None = None

    def as_text(self) -> str:
        shown = len(self.documents)
        head = f"{self.total:,} document{'' if self.total == 1 else 's'}"
        head += f", {shown:,} shown" if shown < self.total else ""
        lines = "\n".join(document.as_text() for document in self.documents)
        folders = "Files may be named in: " + ", ".join(self.folders) if self.folders else None
        return _joined(f"{head}:\n{lines}" if shown else head, folders, self.note)


class ShowResult(ToolResult):
    document: str
    id: str
    file: str | None = None
    start: int
    end: int
    characters: int = Field(description="Of the whole text.")
    page: int | None = None
    line: int = Field(description="Of the first character shown.")
    chapter: str | None = None
    text: str

    def as_text(self) -> str:
        page = "" if self.page is None else f" of page {self.page}"
        place = f"from line {self.line}{page}" + (f", {self.chapter}" if self.chapter else "")
        span = f"characters {self.start}-{self.end} of {self.characters}"
        more = f"[next: offset {self.end}, before 0]" if self.end < self.characters else None
        return _joined(f"{self.document}, {span}, {place}:", self.text, more)


def _listed(passages: list[PassageResult], scored: bool = True) -> str:
    return "\n\n".join(passage.as_text(n, scored) for n, passage in enumerate(passages, 1))


def _joined(*parts: object) -> str:
    return "\n\n".join(str(part) for part in parts if part)
