"""The tools: find, ask, ingest, list and show, over one library and one `Esa`.

The signature of a tool's method is its schema, and its docstring the description: what a client's
model reads. A result is an object of JSON, without the fields that are None. A tool that has a
`job` may need the model and runs in the worker's thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import Field

from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.apps.server.allowed_documents import AllowedDocuments, OpenDocument, list_documents
from esa_cli.apps.server.worker import Job
from esa_cli.documents.readers.text_builder import first_names
from esa_cli.errors import UsageError
from esa_cli.qa.answering.reply import lacking
from esa_cli.qa.api import Esa
from esa_cli.qa.finding.passage import Passage
from esa_cli.storage.library import Library

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa
    from esa_cli.qa.finding.books import Book
    from esa_cli.qa.presets.preset import Preset

Result = dict[str, Any]
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
    ) -> Result:
        """Finds the passages of the library, or of some documents, that fit words or a question:
        best first, with document, page, line and character offsets, and a score in standard
        deviations above the mean. Quick."""
        from esa_cli.apps.cli.document_search import PassageBooks
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
        note = _note([*notes, *lacking(books)], unread)
        return {"passages": _results(passages, opened), "note": note}

    def ask(
        self,
        job: Job,
        question: Question,
        documents: Documents = None,
        passages: Annotated[
            int, Field(ge=1, le=20, description="Passages to return with the answer.")
        ] = 3,
        read: Read = False,
    ) -> Result:
        """Has a small local model answer one question from documents of any length. Returns the
        answer; `found`, false where nothing was found that answers; and the passages that it rests
        on, or else the nearest, whose scores are shares from 0 to 1. Seconds to a minute."""
        named, notes = self.documents.find(documents), list[str]()
        with self.asker.interruptible(job.check):
            opened = self.documents.open(named, job.report_progress, question, notes, read=read)
            books = [document.book for document in opened]
            reply = self.asker.ask(question, books, evidence=passages)
        notes += [ABSENT] if reply.doubtful else []
        notes += lacking(books)
        notes += ["the answer was cut off at its longest"] if reply.cut else []
        unread = [] if reply.read else [book for book in books if not book.read]
        return {
            "answer": reply.text.strip(),
            "found": reply.found,
            "passages": _results(reply.evidence, opened, weighed=True),
            "model": self.asker.name,
            "note": _note(notes, unread),
        }

    def ingest(self, job: Job, documents: Unread) -> Result:
        """Has the local model read files (PDF, EPUB, Word, HTML, text and more) into the library,
        so that `find` and `ask` find in them by meaning. Minutes for a book; stopped, the next
        call continues. `stored` is false where the library cannot be written; `missing` is what the
        text of a document lacks."""
        results = []
        for named in self.documents.find(documents) or ():
            started = time.monotonic()
            with self.asker.interruptible(job.check):
                (opened,) = self.documents.open([named], job.report_progress, read=True)
            book, document = opened.book, opened.book.document
            results.append(
                {
                    "id": opened.id,
                    "document": document.name,
                    "tokens": book.tokens,
                    "characters": len(document.text),
                    "seconds": round(time.monotonic() - started, 1),
                    "stored": book.entry is not None,
                    "missing": list(document.missing),
                }
            )
        return {"documents": results}

    def list_documents(
        self,
        containing: Annotated[
            str, Field(max_length=4096, description="Part of a name or path.")
        ] = "",
        limit: Annotated[int, Field(ge=1, le=500, description="Documents at most.")] = 50,
        skip: Annotated[
            int, Field(ge=0, description="Documents to leave out, for the next page.")
        ] = 0,
    ) -> Result:
        """Lists the documents of the library, and other files that may be named. `how`: read, by
        the model; words, a synchronised file that is found by its words; file, not in the library
        and found only where it is named. Files of `folders` may be named by path, too."""
        listed, part = list_documents(self.documents), containing.casefold()
        fitting = [
            {"id": item["id"], "document": item["name"], "bytes": item["bytes"],
             "how": _HOW[item["kind"]]}
            for item in listed["data"]
            if part in f"{item['id']}\n{item['name']}".casefold()
        ]  # fmt: skip
        return {
            "documents": fitting[skip : skip + limit],
            "total": len(fitting),
            "folders": [str(folder) for folder in self.documents.allowed],
            "note": "; ".join(listed["left_out"]) or None,
        }

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
    ) -> Result:
        """Shows the text of a document around a character offset; `characters` is the length of the
        whole text. To read on, call it with `end` as `offset` and 0 as `before`."""
        named = self.documents.document(document)
        text = named.text
        if offset >= len(text):
            raise UsageError(
                f"offset must be below {len(text)}, the characters of {named.name}, got {offset}",
                "give a smaller one",
            )
        start, end = max(0, offset - before), min(len(text), offset + after)
        place = named.place(start)
        return {
            "document": named.name,
            "id": document,
            "file": os.path.abspath(named.source),
            "start": start,
            "end": end,
            "characters": len(text),
            **place._asdict(),
            "text": text[start:end],
        }


def _results(
    passages: Sequence[Passage], opened: Sequence[OpenDocument], weighed: bool = False
) -> list[Result]:
    """Passages with the ids and paths of their documents, which they name as `place_books` does."""
    from esa_cli.qa.finding.books import place_books

    placed = place_books([document.book for document in opened]) if passages else []
    known = {book.document.name: document for book, document in zip(placed, opened, strict=False)}
    results = []
    for passage in passages:
        id, book = known[passage.document]
        fields = {**passage.as_found(), "score": round(passage.weight, 3)}
        about = {"id": id, "file": os.path.abspath(book.document.source)}
        result = about | (fields if weighed else passage.as_found())
        results.append({name: value for name, value in result.items() if name != "source"})
    return results


def _note(parts: Sequence[str], unread: Sequence[Book]) -> str | None:
    """One line that qualifies a result."""
    lines = [*parts]
    if unread:
        names = first_names([book.document.name for book in unread])
        lines.append(
            f"not read by the model, searched by words alone: {names}; `ingest` has them read"
        )
    return "; ".join(lines) or None
