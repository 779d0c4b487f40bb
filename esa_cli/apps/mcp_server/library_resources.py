"""Stored documents as resources: their facts, and their text in pieces."""

from __future__ import annotations

import json
import re
from urllib.parse import unquote

from mcp.types import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextResourceContents,
)

from esa_cli.apps.mcp_server.document_facts import stored_facts
from esa_cli.apps.mcp_server.named_documents import DocumentNames
from esa_cli.errors import UsageError
from esa_cli.storage.library import Entry
from esa_cli.system.text import without_lone_surrogates

PIECE = 40_000
"""Characters of a piece of a text."""
PAGE = 100
"""Resources on one page of the list."""
_PREFIX = "esa://documents/"
_ADDRESS = re.compile(re.escape(_PREFIX) + r"(?P<name>[^/]+)(?:/text/(?P<piece>[0-9]{1,9}))?")


class LibraryResources:
    """The resources of one server: `esa://documents/ID`, and `esa://documents/ID/text/N`."""

    def __init__(self, names: DocumentNames) -> None:
        self.names = names

    def list(self, cursor: str | None) -> ListResourcesResult:
        """A page of the stored documents. Raises UsageError: it is no cursor of this list."""
        if cursor is not None and not re.fullmatch(r"[0-9]{1,9}", cursor):
            raise UsageError(f"cursor must be one of this list, got {cursor}", "begin again")
        at = int(cursor or 0)
        entries = [entry for entry in self.names.entries() if not entry.damage]
        more = str(at + PAGE) if at + PAGE < len(entries) else None
        shown = [_resource(entry) for entry in entries[at : at + PAGE]]
        return ListResourcesResult(resources=shown, next_cursor=more)

    def templates(self) -> ListResourceTemplatesResult:
        return ListResourceTemplatesResult(
            resource_templates=[
                ResourceTemplate(
                    uri_template=_PREFIX + "{id}/text/{piece}",
                    name="text",
                    title="A piece of a document's text",
                    description=f"Pieces of {PIECE:,} characters, from 1.",
                    mime_type="text/plain",
                )
            ]
        )

    def read(self, uri: str) -> ReadResourceResult:
        """A document's facts and the first piece of its text, or a piece alone.

        Raises:
            UsageError: there is no such resource. LibraryError: the document is damaged.
        """
        found = _ADDRESS.fullmatch(uri)
        entry = self.names.entry(unquote(found["name"])) if found else None
        if found is None or entry is None:
            raise UsageError(f"there is no resource {uri}", "list the resources")
        text = self.names.stored(entry).text
        count = max(1, -(-len(text) // PIECE))
        number = int(found["piece"] or 1)
        if not 1 <= number <= count:
            raise UsageError(f"piece must be from 1 to {count}, got {number}", "give one of these")
        piece = TextResourceContents(
            uri=f"{_PREFIX}{entry.id}/text/{number}",
            mime_type="text/plain",
            text=text[(number - 1) * PIECE : number * PIECE],
        )
        if found["piece"]:
            return ReadResourceResult(contents=[piece])
        facts = {**stored_facts(entry).model_dump(exclude_none=True), "pieces": count}
        written = without_lone_surrogates(json.dumps(facts, ensure_ascii=False))
        about = TextResourceContents(uri=uri, mime_type="application/json", text=written)
        return ReadResourceResult(contents=[about, piece])


def _resource(entry: Entry) -> Resource:
    return Resource(
        uri=_PREFIX + entry.id,
        name=without_lone_surrogates(entry.name) or entry.id,
        description=f"{entry.characters:,} characters, {entry.tokens:,} tokens",
        mime_type="text/plain",
    )
