"""Results of the tools: their fields are the schema that a client's model reads."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


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


class FindResult(BaseModel):
    passages: list[PassageResult] = Field(description="Best first.")
    note: str | None = None


class AskResult(BaseModel):
    answer: str
    found: bool = Field(description="false: nothing was found that answers.")
    passages: list[PassageResult] = Field(
        description="What the answer rests on; if not found, the nearest."
    )
    model: str = Field(description="The local model that worded the answer.")
    note: str | None = None


class IngestedFacts(BaseModel):
    """A document that the model has read."""

    id: str
    document: str
    tokens: int
    characters: int
    seconds: float = Field(description="0: it was read before.")
    stored: bool = Field(description="false: the library cannot be written.")
    missing: list[str] = Field(description="What its text lacks.")


class IngestResult(BaseModel):
    documents: list[IngestedFacts]


class DocumentFacts(BaseModel):
    """A document of the library, or a file that may be named."""

    id: str
    document: str
    bytes: int
    how: Literal["read", "words", "file"] = Field(
        description="read: by the model, text stored; words: a synchronised file, found by its "
        "words; file: not in the library, found only where it is named."
    )


class ListResult(BaseModel):
    documents: list[DocumentFacts]
    total: int = Field(description="Documents that fit, those on other pages included.")
    folders: list[str] = Field(description="Folders whose files may be named, too, by path.")
    note: str | None = None


class ShowResult(BaseModel):
    document: str
    id: str
    file: str | None = None
    start: int
    end: int = Field(description="To read on: this as `offset`, with `before` 0.")
    characters: int = Field(description="Of the whole text.")
    page: int | None = None
    line: int = Field(description="Of the first character shown.")
    chapter: str | None = None
    text: str
