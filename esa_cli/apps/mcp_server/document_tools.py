"""The tools: find, ask, ingest, list and show, over one library and one asker.

The signature of a tool's method is its schema and its docstring the description: both are what a
client's model reads. A tool that has a `job` may need the model and runs in the worker's thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import Field

from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.apps.mcp_server.named_documents import (
    MOST_FILES,
    DocumentNames,
    path_of,
    stored_entries,
)
from esa_cli.apps.mcp_server.tool_results import (
    AskResult,
    DocumentFacts,
    FindResult,
    IngestedFacts,
    IngestResult,
    ListResult,
    PassageResult,
    ShowResult,
)
from esa_cli.apps.server.worker import Job
from esa_cli.documents.sources import SourceFiles
from esa_cli.documents.text_builder import first_names
from esa_cli.errors import UsageError
from esa_cli.qa.answering.reply import Passage, lacking
from esa_cli.qa.api import Esa
from esa_cli.system.text import has_lone_surrogate

if TYPE_CHECKING:
    from esa_cli.documents.document import Document
    from esa_cli.qa.books import Book
    from esa_cli.qa.presets.preset import Preset
    from esa_cli.storage.library import Entry

LONGEST_TEXT = 20_000
"""Characters of a document in one answer, before or after an offset."""
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
    """An asker that is loaded when something of it is first used.

    Args:
        load: raises UsageError, PresetError, ModelError or ResourceError; it is then called again
            the next time.
    """
    return cast("Esa", _OnDemand(load))


class _OnDemand:
    def __init__(self, load: Callable[[], Esa]) -> None:
        self._load, self._asker = load, list[Esa]()

    def __getattr__(self, name: str) -> Any:
        if not self._asker:
            self._asker.append(self._load())
        return getattr(self._asker[0], name)


class DocumentTools:
    """The tools of one server.

    Args:
        preset: of the asker. model: its options.
    """

    def __init__(
        self,
        asker: Esa,
        names: DocumentNames,
        preset: Preset,
        model: ModelOptions,
        reporter: Reporter,
    ) -> None:
        self.asker, self.names, self.library = asker, names, names.library
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
        chosen = self._named(documents)
        from esa_cli.apps.cli.passage_books import PassageBooks
        from esa_cli.qa.presets.adapter_files import for_finding

        opener = PassageBooks(
            for_finding(self._preset), self._model, self.library, self._reporter, ExitStack(),
            load=lambda: self.asker,
        )  # fmt: skip
        books = self._books(query, chosen, opener.stored, opener.open)
        job.check()
        passages = opener.passages(query, books, limit, None)
        unread = [book for book in books if not book.read and self._preset.answer.has_index]
        return FindResult(
            passages=self._placed(passages, books), note=_note(lacking(books), unread)
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
        chosen = self._named(documents)

        def make(source: str | Document) -> Book:
            if read or not self.asker.answers_unread:
                book: Book = self.asker.ingest(source, job.report_progress)
            else:
                book = self.asker.open(source)
            return book

        with self.asker.interruptible(job.check):
            books = self._books(question, chosen, self.asker.stored, make)
            reply = self.asker.ask(question, books, evidence=passages)
        cut = ["the answer was cut off at its longest"] if reply.cut else []
        unread = [] if reply.read else [book for book in books if not book.read]
        return AskResult(
            answer=reply.text.strip(),
            found=reply.found,
            passages=self._placed(reply.evidence, books, weighed=True),
            model=self.asker.name,
            note=_note([*lacking(books), *cut], unread),
        )

    def ingest(self, job: Job, documents: Unread) -> IngestResult:
        """Has the local model read files (PDF, EPUB, Word, HTML, text and more) into the library,
        so that `find` and `ask` find in them by meaning. Minutes for a book; stopped, the next
        call continues."""
        results = []
        for document in self._named(documents) or ():
            with self.asker.interruptible(job.check):
                book = self.asker.ingest(document, job.report_progress)
            results.append(
                IngestedFacts(
                    id=book.entry.id if book.entry else document.source,
                    document=document.name,
                    tokens=book.tokens,
                    characters=len(document.text),
                    seconds=round(book.read_s, 3),
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
        """Lists the documents of the library, the last used first, then other files that may be
        named."""
        left_out, part = list[str](), containing.casefold()
        facts = self._facts(left_out)
        fitting = [one for one in facts if part in f"{one.document}\n{one.file}".casefold()]
        if sum(one.how == "file" for one in facts) >= MOST_FILES:
            left_out.append(f"at most {MOST_FILES:,} files of the folders are listed")
        return ListResult(
            documents=fitting[skip : skip + limit],
            total=len(fitting),
            folders=self.names.folders,
            note="; ".join(left_out) or None,
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
        named = self.names.find(document)
        text = named.document.text
        if offset >= len(text):
            raise UsageError(
                f"offset must be below {len(text)}, the characters of {named.document.name}, "
                f"got {offset}",
                "give a smaller one",
            )
        start, end = max(0, offset - before), min(len(text), offset + after)
        place = named.document.place(start)
        return ShowResult(
            document=named.document.name,
            id=named.id,
            file=path_of(named.entry) if named.entry else named.document.source,
            start=start,
            end=end,
            characters=len(text),
            page=place.page,
            line=place.line,
            chapter=place.chapter,
            text=text[start:end],
        )

    def _facts(self, left_out: list[str]) -> list[DocumentFacts]:
        """Stored documents, synchronised files, then other files of allowed folders, without those
        of names that are not UTF-8, which no request can have. Raises LibraryError, DiskError.

        Args:
            left_out: gets a line on each folder of which not all is listed.
        """
        library = self.names.texts()
        read = {text.path for text in library.texts if text.entries}
        hows = {text.path: "words" for text in library.texts if not text.entries}
        hows = {**hows, **{p: "file" for p in self.names.files(left_out) if p not in hows}}
        files = [path for path in hows if path not in read and not has_lone_surrogate(path)]
        return [
            *map(stored_facts, stored_entries(library)),
            *(
                DocumentFacts.model_validate(
                    {"id": p, "document": os.path.basename(p), "file": p, "how": hows[p]}
                )
                for p in files
            ),
        ]

    def _named(self, names: Sequence[str] | None) -> Sequence[Document] | None:
        """The documents of these names, each text once; None: the whole library is meant.

        Raises:
            UsageError: the library is empty. UsageError, DocumentError: as `DocumentNames.find`.
        """
        if not names and not self.library.exists:
            raise UsageError(
                "the library has no document",
                "`list` shows files that may be named; `ingest`, or `esa ingest FILE` and "
                "`esa ingest --words FOLDER` in a terminal, put some into the library",
            )
        if not names:
            return None
        documents = [self.names.find(name).document for name in names]
        return list({document.text: document for document in documents}.values())

    def _books(
        self,
        question: str,
        documents: Sequence[Document] | None,
        stored: Callable[[Entry], Book],
        make: Callable[[str | Document], Book],
    ) -> list[Book]:
        """The books of these documents; for None the library's best for the question."""
        from esa_cli.apps.cli.document_search import BestBooks, document_search, library_books
        from esa_cli.qa.books import distinct

        if documents is not None:
            return distinct([make(document) for document in documents])
        with document_search(
            SourceFiles(), self.library, self._reporter,
            most=self._preset.answer.documents, in_library=True,
        ) as search:  # fmt: skip
            if search is None:
                return distinct(library_books(stored, self.library, self._reporter, make))
            best = BestBooks(search, stored, make, self._reporter)
            return distinct(best.books(question))

    def _placed(
        self, passages: Sequence[Passage], books: Sequence[Book], weighed: bool = False
    ) -> list[PassageResult]:
        ids = self.names.ids(books) if passages else {}
        return [
            _result(p, p.weight if weighed else p.score, *ids.get(p.document, (p.document, None)))
            for p in passages
        ]


def stored_facts(entry: Entry) -> DocumentFacts:
    """A stored document, for a list."""
    if entry.damage:
        return DocumentFacts(
            id=entry.id, document=entry.name or entry.id, how="read", damage=entry.state
        )
    pages = [mark[1] for mark in entry.marks if mark[1] is not None]
    return DocumentFacts(
        id=entry.id, document=entry.name, file=path_of(entry), characters=entry.characters,
        pages=max(pages, default=None), how="read",
    )  # fmt: skip


def _result(passage: Passage, score: float, id: str, file: str | None) -> PassageResult:
    return PassageResult(
        document=passage.document, id=id, file=file, page=passage.page, line=passage.line,
        chapter=passage.chapter, start=passage.start, end=passage.end, score=round(score, 3),
        text=passage.text,
    )  # fmt: skip


def _note(parts: Sequence[str], unread: Sequence[Book]) -> str | None:
    """What the reader of a result should know, as one line."""
    lines = [*parts]
    if unread:
        names = first_names([book.document.name for book in unread])
        lines.append(
            f"not read by the model, searched by words alone: {names}; `ingest` has them read"
        )
    return "; ".join(lines) or None
