"""What the tools do: find, ask, ingest, list and show, with one library and one asker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.apps.mcp_server.asker_on_demand import AskerOnDemand
from esa_cli.apps.mcp_server.document_facts import listed_documents
from esa_cli.apps.mcp_server.named_documents import MOST_FILES, DocumentNames, path_of
from esa_cli.apps.mcp_server.tool_arguments import (
    AskArguments,
    FindArguments,
    IngestArguments,
    ListArguments,
    ShowArguments,
)
from esa_cli.apps.mcp_server.tool_results import (
    AskResult,
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
from esa_cli.qa.answering.reply import Evidence, Reply, lacking

if TYPE_CHECKING:
    from esa_cli.documents.document import Document
    from esa_cli.qa.books import Book
    from esa_cli.qa.finding.passage_finder import Passage
    from esa_cli.qa.presets.preset import Preset
    from esa_cli.storage.library import Entry

NOT_READ = "not read by the model, searched by words alone: "


class DocumentTools:
    """The tools of one server. `find`, `ask` and `ingest` are called by the worker's thread alone.

    Args:
        preset: of the asker. model: its options.
    """

    def __init__(
        self,
        asker: AskerOnDemand,
        names: DocumentNames,
        preset: Preset,
        model: ModelOptions,
        reporter: Reporter,
    ) -> None:
        self.asker, self.names, self.library = asker, names, names.library
        self._preset, self._model, self._reporter = preset, model, reporter

    def find(self, given: FindArguments, job: Job) -> FindResult:
        """Passages, ranked. Raises EsaError."""
        documents = self._named(given.documents)
        from esa_cli.apps.cli.passage_books import PassageBooks
        from esa_cli.qa.presets.adapter_files import for_finding

        opener = PassageBooks(
            for_finding(self._preset), self._model, self.library, self._reporter, ExitStack(),
            load=lambda: self.asker,
        )  # fmt: skip
        books = self._books(given.query, documents, opener.stored, opener.open)
        job.check()
        passages = opener.passages(given.query, books, given.limit, None)
        unread = [b.document.name for b in books if not b.read and self._preset.answer.has_index]
        return FindResult(
            passages=self._placed(passages, books),
            note=_note(unread, lacking(books)),
        )

    def ask(self, given: AskArguments, job: Job) -> AskResult:
        """An answer with its passages. Raises EsaError, JobCancelledError."""
        documents = self._named(given.documents)

        def make(source: str | Document) -> Book:
            if given.read or not self.asker.answers_unread:
                book = self.asker.ingest(source, job.report_progress)
            else:
                book = self.asker.open(source)
            return book  # type: ignore[no-any-return]

        with self.asker.interruptible(job.check):
            books = self._books(given.question, documents, self.asker.stored, make)
            reply = self.asker.ask(given.question, books, evidence=given.passages)
        unread = [] if reply.read else [b.document.name for b in books if not b.read]
        return AskResult(
            answer=reply.text.strip(),
            found=reply.found,
            passages=self._placed(reply.evidence, books),
            model=self.asker.name,
            note=_note(unread, [*_cut(reply), *lacking(books)]),
        )

    def ingest(self, given: IngestArguments, job: Job) -> IngestResult:
        """Has the model read documents into the library. Raises EsaError, JobCancelledError."""
        read = []
        for document in self._named(given.documents) or ():
            with self.asker.interruptible(job.check):
                book = self.asker.ingest(document, job.report_progress)
            read.append(
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
        return IngestResult(documents=read)

    def list_documents(self, given: ListArguments) -> ListResult:
        """Stored documents, synchronised files, then other files of allowed folders. Raises
        LibraryError."""
        left_out: list[str] = []
        found = listed_documents(self.names, left_out)
        part = given.containing.casefold()
        fitting = [one for one in found if part in f"{one.document}\n{one.file}".casefold()]
        if sum(one.how == "file" for one in found) >= MOST_FILES:
            left_out.append(f"at most {MOST_FILES:,} files of the folders are listed")
        return ListResult(
            documents=fitting[given.skip : given.skip + given.limit],
            total=len(fitting),
            folders=self.names.folders,
            note="; ".join(left_out) or None,
        )

    def show_text(self, given: ShowArguments) -> ShowResult:
        """The text around an offset. Raises UsageError: the offset is outside. DocumentError."""
        named = self.names.find(given.document)
        document = named.document
        if given.offset >= len(document.text):
            raise UsageError(
                f"offset must be below {len(document.text)}, the characters of {document.name}, "
                f"got {given.offset}",
                "give a smaller one",
            )
        start = max(0, given.offset - given.before)
        end = min(len(document.text), given.offset + given.after)
        place = document.place(start)
        return ShowResult(
            document=document.name,
            id=named.id,
            file=path_of(named.entry) if named.entry else document.source,
            start=start,
            end=end,
            characters=len(document.text),
            page=place.page,
            line=place.line,
            chapter=place.chapter,
            text=document.text[start:end],
        )

    def _named(self, names: Sequence[str] | None) -> Sequence[Document] | None:
        """The documents of these names, each text once; None: the whole library is meant.

        Raises:
            UsageError: the library is empty. UsageError, DocumentError: as `DocumentNames.find`.
        """
        if not names and not self.library.exists:
            raise UsageError(
                "the library has no document",
                "`list` shows files that may be named; `ingest`, or `esa ingest FILE` and "
                "`esa sync FOLDER` in a terminal, put some into the library",
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
        from esa_cli.apps.cli.best_books import BestBooks
        from esa_cli.apps.cli.document_search import document_search
        from esa_cli.apps.cli.inputs import library_books
        from esa_cli.qa.books import distinct

        if documents is not None:
            return distinct([make(document) for document in documents])
        with document_search(
            SourceFiles(), self.library, self._reporter,
            most=self._preset.answer.documents, in_library=True,
        ) as search:  # fmt: skip
            if search is None:
                return distinct(library_books(stored, self.library, self._reporter, make))
            best = BestBooks(search, stored, self.library, make, self._reporter)
            return distinct(best.books(question))

    def _placed(
        self, passages: Sequence[Passage] | Sequence[Evidence], books: Sequence[Book]
    ) -> list[PassageResult]:
        ids = self.names.ids(books) if passages else {}
        return [_result(one, *ids.get(one.document, (one.document, None))) for one in passages]


def _result(one: Passage | Evidence, id: str, file: str | None) -> PassageResult:
    score = one.weight if isinstance(one, Evidence) else one.score
    return PassageResult(
        document=one.document, id=id, file=file, page=one.page, line=one.line,
        chapter=one.chapter, start=one.start, end=one.end, score=round(score, 3), text=one.text,
    )  # fmt: skip


def _cut(reply: Reply) -> list[str]:
    return ["the answer was cut off at its longest"] if reply.cut else []


def _note(unread: Sequence[str], more: Sequence[str]) -> str | None:
    parts: list[Any] = [*more]
    if unread:
        parts.append(f"{NOT_READ}{first_names(list(unread))}; `ingest` has them read")
    return "; ".join(parts) or None
