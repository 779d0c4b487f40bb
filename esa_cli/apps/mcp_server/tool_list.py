"""The tools as the protocol lists them: names, descriptions and schemas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mcp.types import Tool, ToolAnnotations

from esa_cli.apps.mcp_server.document_tools import DocumentTools
from esa_cli.apps.mcp_server.tool_arguments import (
    AskArguments,
    FindArguments,
    IngestArguments,
    ListArguments,
    ShowArguments,
    ToolArguments,
    schema_of,
)
from esa_cli.apps.mcp_server.tool_results import (
    AskResult,
    FindResult,
    IngestResult,
    ListResult,
    ShowResult,
    ToolResult,
)
from esa_cli.apps.server.worker import Job


@dataclass(frozen=True)
class ToolSpec:
    """A tool.

    Args:
        run: needs the library alone. work: may need the model, and is called by the worker; one of
            the two is given. stores: whether it may add to the library.
    """

    title: str
    description: str
    arguments: type[ToolArguments]
    result: type[ToolResult]
    run: Callable[[Any], ToolResult] | None = None
    work: Callable[[Any, Job], ToolResult] | None = None
    stores: bool = False

    def listed(self, name: str) -> Tool:
        return Tool(
            name=name,
            title=self.title,
            description=self.description,
            input_schema=schema_of(self.arguments),
            output_schema=schema_of(self.result),
            annotations=ToolAnnotations(
                read_only_hint=not self.stores,
                destructive_hint=False,
                idempotent_hint=True,
                open_world_hint=False,
            ),
        )


def tool_list(tools: DocumentTools) -> dict[str, ToolSpec]:
    """The tools by name."""
    return {
        "find": ToolSpec(
            "Find passages",
            "Finds the passages of the library, or of some documents, that fit words or a "
            "question: ranked, with document, page, line and character offsets. Quick.",
            FindArguments,
            FindResult,
            work=tools.find,
        ),
        "ask": ToolSpec(
            "Ask documents",
            "Has a small local model answer one question from documents of any length. Returns "
            "the answer, whether the documents may lack it, and the passages it rests on. "
            "Seconds to a minute.",
            AskArguments,
            AskResult,
            work=tools.ask,
            stores=True,
        ),
        "ingest": ToolSpec(
            "Read documents into the library",
            "Has the local model read files (PDF, EPUB, Word, HTML, text and more) into the "
            "library, so that `find` and `ask` find in them by meaning. Minutes for a book; "
            "stopped, the next call continues.",
            IngestArguments,
            IngestResult,
            work=tools.ingest,
            stores=True,
        ),
        "list": ToolSpec(
            "List documents",
            "Lists the documents of the library, the last used first, then other files that may "
            "be named.",
            ListArguments,
            ListResult,
            run=tools.list_documents,
        ),
        "show": ToolSpec(
            "Show text",
            "Shows the text of a document around a character offset.",
            ShowArguments,
            ShowResult,
            run=tools.show_text,
        ),
    }
