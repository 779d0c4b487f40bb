"""The tools: find, ask, ingest, list and show, over one library and one `Esa`.

The signature of a tool's method and the fields of its result are its schema, and its docstring the
description: what a client's model reads. A tool that has a `job` may need the model and runs in the
worker's thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import BaseModel, Field

from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.apps.server.allowed_documents import AllowedDocuments, OpenDocument, list_documents
from esa_cli.apps.server.worker import Job
from esa_cli.documents.text_builder import first_names
from esa_cli.errors import UsageError
from esa_cli.qa.answering.reply import Passage, lacking
from esa_cli.qa.api import Esa
from esa_cli.storage.library import Library

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa
    from esa_cli.qa.books import Book
    from esa_cli.qa.presets.preset import Preset

LONGEST_TEXT = 20_000
"""Characters of a document in one answer, before or after an offset."""
_HOW = {"stored": "read", "synced": "words", "file": "file"}
ABSENT = "the documents may not contain the answer"
Name = Annotated[str, Field(min_length=1, max_length=4096)]
Words = Annotated[str, Field(min_length=1, max_length=8000, description="Words or a question.")]
Question = Annotated[
    str, Field(min_length=1, max_length=8000, description="One question, complete in itself.")
]
Documents = Annotated[
    list[Name] | None,
    Field(
        max_length=100,
        description="Documents by the id or name that `list` shows, or files of allowed folders "
        "by their path; without it the whole library.",
    ),
]
Unread = Annotated[
    list[Name],
    Field(
        min_length=1,
        max_length=100,
        description="Files of allowed folders by their path, or documents that `list` shows as "
        "`words`.",
    ),
]
Read = Annotated[
    bool,
    Field(
        description="Have the model read the named documents first where it has not: more exact, "
        "but minutes for a book. Else their words are searched."
    ),
]


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


def asker_on_demand(load: Callable[[], Esa]) -> Esa:
    """An `Esa` that is loaded when something of it is first used; where that raises, `load` is
    called again the next time."""
    return cast("Esa", _OnDemand(load))


class _OnDemand:
    def __init__(self, load: Callable[[], Esa]) -> None:
        self._load, self._asker = load, list[Any]()

    def __getattr__(self, name: str) -> Any:
        if not self._asker:
            self._asker.append(self._load())
        return getattr(self._asker[0], name)


class DocumentTools:
    """The tools of one server, with the preset and the model's options of its `Esa`."""

    def __init__(
        self, documents: AllowedDocuments, preset: Preset, model: ModelOptions, reporter: Reporter
    ) -> None:
        self.documents, self.asker = documents, documents.asker
        self._preset, self._model, self._reporter = preset, model, reporter

    def find(
        self,
        job: Job,
        query: Words,
        documents: Documents = None,
        limit: Annotated[int, Field(ge=1, le=50, description="Passages at most.")] = 8,
    ) -> FindResult:
        """Finds the passages of the library, or of some documents, that fit words or a question:
        ranked, with document, page, line and character offsets. Quick."""
        from esa_cli.apps.cli.passage_books import PassageBooks
        from esa_cli.qa.presets.adapter_files import for_finding

        named = self.documents.find(documents)
        opener = PassageBooks(
            for_finding(self._preset), self._model, self.documents.library or Library(),
            self._reporter, lambda: self.asker,
        )  # fmt: skip
        notes = list[str]()
        opened = self.documents.open(named, None, query, notes, make=opener.open)
        job.check()
        books = [document.book for document in opened]
        passages = opener.passages(query, books, limit, None)
        unread = [book for book in books if not book.read and self._preset.answer.has_index]
        return FindResult(
            passages=_results(passages, opened), note=_note([*notes, *lacking(books)], unread)
        )

    def ask(
        self,
        job: Job,
        question: Question,
        documents: Documents = None,
        passages: Annotated[
            int, Field(ge=1, le=20, description="Passages to return with the answer.")
        ] = 3,
        read: Read = False,
    ) -> AskResult:
        """Has a small local model answer one question from documents of any length. Returns the
        answer, whether the documents may lack it, and the passages it rests on. Seconds to a
        minute."""
        named, notes = self.documents.find(documents), list[str]()
        with self.asker.interruptible(job.check):
            opened = self.documents.open(named, job.report_progress, question, notes, read=read)
            books = [document.book for document in opened]
            reply = self.asker.ask(question, books, evidence=passages)
        notes += [ABSENT] if reply.doubtful else []
        notes += lacking(books)
        notes += ["the answer was cut off at its longest"] if reply.cut else []
        unread = [] if reply.read else [book for book in books if not book.read]
        return AskResult(
            answer=reply.text.strip(),
            found=reply.found,
            passages=_results(reply.evidence, opened, weighed=True),
            model=self.asker.name,
            note=_note(notes, unread),
        )

    def ingest(self, job: Job, documents: Unread) -> IngestResult:
        """Has the local model read files (PDF, EPUB, Word, HTML, text and more) into the library,
        so that `find` and `ask` find in them by meaning. Minutes for a book; stopped, the next
        call continues."""
        results = []
        for named in self.documents.find(documents) or ():
            started = time.monotonic()
            with self.asker.interruptible(job.check):
                (opened,) = self.documents.open([named], job.report_progress, read=True)
            book, document = opened.book, opened.book.document
            results.append(
                IngestedFacts(
                    id=opened.id,
                    document=document.name,
                    tokens=book.tokens,
                    characters=len(document.text),
                    seconds=round(time.monotonic() - started, 1),
                    stored=book.entry is not None,
                    missing=list(document.missing),
                )
            )
        return IngestResult(documents=results)

    def list_documents(
        self,
        containing: Annotated[
            str, Field(max_length=4096, description="Part of a name or path.")
        ] = "",
        limit: Annotated[int, Field(ge=1, le=500, description="Documents at most.")] = 50,
        skip: Annotated[
            int, Field(ge=0, description="Documents to leave out, for the next page.")
        ] = 0,
    ) -> ListResult:
        """Lists the documents of the library, and other files that may be named."""
        listed, part = list_documents(self.documents), containing.casefold()
        fitting = [
            DocumentFacts.model_validate(
                {"id": item["id"], "document": item["name"], "bytes": item["bytes"],
                 "how": _HOW[item["kind"]]}
            )
            for item in listed["data"]
            if part in f"{item['id']}\n{item['name']}".casefold()
        ]  # fmt: skip
        return ListResult(
            documents=fitting[skip : skip + limit],
            total=len(fitting),
            folders=[str(folder) for folder in self.documents.allowed],
            note="; ".join(listed["left_out"]) or None,
        )

    def show_text(
        self,
        document: Annotated[
            Name, Field(description="Its id, name or path, as `find` and `list` show it.")
        ],
        offset: Annotated[
            int, Field(ge=0, description="A character of its text, such as `start`.")
        ] = 0,
        before: Annotated[
            int, Field(ge=0, le=LONGEST_TEXT, description="Characters before the offset.")
        ] = 500,
        after: Annotated[
            int, Field(ge=1, le=LONGEST_TEXT, description="Characters from the offset on.")
        ] = 2000,
    ) -> ShowResult:
        """Shows the text of a document around a character offset."""
        named = self.documents.document(document)
        text = named.text
        if offset >= len(text):
            raise UsageError(
                f"offset must be below {len(text)}, the characters of {named.name}, got {offset}",
                "give a smaller one",
            )
        start, end = max(0, offset - before), min(len(text), offset + after)
        place = named.place(start)
        return ShowResult(
            document=named.name,
            id=document,
            file=os.path.abspath(named.source),
            start=start,
            end=end,
            characters=len(text),
            page=place.page,
            line=place.line,
            chapter=place.chapter,
            text=text[start:end],
        )


def _results(
    passages: Sequence[Passage], opened: Sequence[OpenDocument], weighed: bool = False
) -> list[PassageResult]:
    """Passages with the ids and paths of their documents, which they name as `place_books` does."""
    from esa_cli.qa.books import place_books

    placed = place_books([document.book for document in opened]) if passages else []
    known = {book.document.name: document for book, document in zip(placed, opened, strict=False)}
    results = []
    for passage in passages:
        document = known[passage.document]
        score = passage.weight if weighed else passage.score
        results.append(
            PassageResult(
                document=passage.document, id=document.id,
                file=os.path.abspath(document.book.document.source), page=passage.page,
                line=passage.line, chapter=passage.chapter, start=passage.start, end=passage.end,
                score=round(score, 3), text=passage.text,
            )
        )  # fmt: skip
    return results


def _note(parts: Sequence[str], unread: Sequence[Book]) -> str | None:
    """One line of what the reader of a result should know."""
    lines = [*parts]
    if unread:
        names = first_names([book.document.name for book in unread])
        lines.append(
            f"not read by the model, searched by words alone: {names}; `ingest` has them read"
        )
    return "; ".join(lines) or None
