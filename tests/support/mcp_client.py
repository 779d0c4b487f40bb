"""Tools of `esa mcp` over an asker without a model, and a client of the protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import anyio
import torch
from fake_asker import FakeAsker
from mcp import Client, MCPError

from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.apps.server.allowed_documents import AllowedDocuments
from esa_cli.apps.server.mcp_server import (
    MAX_WAITING,
    McpDocumentTools,
    make_lazily_loaded_esa,
    make_mcp_server,
)
from esa_cli.apps.server.worker import JobThread
from esa_cli.documents.document import Document, read_document
from esa_cli.qa.answering.reply import Reply
from esa_cli.qa.finding.passage_finder import Book, Passage, PassageSearch, add_token_ranges
from esa_cli.qa.ingestion.library_texts import rebuild_document
from esa_cli.qa.presets.preset import load_preset
from esa_cli.storage.library import Library, LibraryEntry

Value = TypeVar("Value")


class FakeDocumentAsker(FakeAsker):
    """A `FakeAsker` with books of words."""

    answers_unread = True

    def __init__(self, library: Library) -> None:
        super().__init__()
        self.library = library

    def open(self, source: str | Document) -> Any:
        return book_of(source)

    def ingest(self, source: str | Document, progress: Any = None) -> Any:
        super().ingest(source, progress)
        return book_of(source)

    def find(self, document: Document) -> Book | None:
        return None

    def stored(self, entry: LibraryEntry) -> Book:
        return book_of(rebuild_document(self.library.text(entry), entry.marks, entry.provenance))

    def find_passages(
        self, question: str, books: Sequence[Book], count: Any = None, minimum: Any = None
    ) -> list[Passage]:
        return PassageSearch().search_passages(question, add_token_ranges(books), count, minimum)

    def ask(self, question: str, books: Sequence[Any], **more: Any) -> Reply:
        reply = super().ask(question, books, **more)
        names = [placed.document.name for placed in add_token_ranges(books)]
        evidence = [
            replace(one, document=name) for one, name in zip(reply.evidence, names, strict=False)
        ]
        return replace(reply, evidence=tuple(evidence))


def book_of(source: str | Document) -> Book:
    document = source if isinstance(source, Document) else read_document(source)
    return Book(document, None, torch.zeros(0, 2))


def tools_of(
    asker: Any, library: Library, allowed: Sequence[Path] = (), settings: Sequence[str] = ()
) -> McpDocumentTools:
    """The tools of a server; `asker` may be a function that loads one."""
    on_demand = make_lazily_loaded_esa(asker if callable(asker) else lambda: asker)
    documents = AllowedDocuments(on_demand, [], allowed, library, with_library=True, max_opened=4)
    model = ModelOptions(preset="tiny-random", device="cpu", dtype="float32")
    preset = load_preset("tiny-random", ["answer.from=text", *settings])
    return McpDocumentTools(documents, preset, model, Reporter(quiet=True))


def talk(
    tools: McpDocumentTools, conversation: Callable[[Client], Awaitable[Value]], mode: Any = "auto"
) -> Value:
    """What a client of these tools gets, in memory. Raises MCPError."""

    async def run() -> Value | MCPError:
        with closing(JobThread(MAX_WAITING)) as worker:
            server = make_mcp_server(tools, worker)
            async with Client(server, mode=mode, read_timeout_seconds=20) as client:
                try:
                    return await conversation(client)
                except MCPError as error:  # outside it would come in a group
                    return error

    found = anyio.run(run)
    if isinstance(found, MCPError):
        raise found
    return found


def call(tools: McpDocumentTools, name: str, **arguments: Any) -> Any:
    """The result of one call of a tool."""
    return talk(tools, lambda client: client.call_tool(name, arguments))


def text_of(result: Any) -> str:
    (content,) = result.content
    return str(content.text)


def fail(result: Any, *words: str) -> None:
    """A tool's error that says these words, without a traceback."""
    assert result.is_error
    assert result.structured_content is None
    assert "Traceback" not in text_of(result)
    for word in words:
        assert word in text_of(result), text_of(result)
