"""The documents that requests may name, for lists."""

from __future__ import annotations

import os
from typing import Literal

from esa_cli.apps.mcp_server.named_documents import DocumentNames, path_of, stored_entries
from esa_cli.apps.mcp_server.tool_results import DocumentFacts
from esa_cli.storage.library import Entry
from esa_cli.system.text import has_lone_surrogate


def listed_documents(names: DocumentNames, left_out: list[str]) -> list[DocumentFacts]:
    """Stored documents, synchronised files, then other files of allowed folders, without those of
    names that are not UTF-8, which no request can say. Raises LibraryError, DiskError.

    Args:
        left_out: gets a line on each folder of which not all is listed.
    """
    library = names.texts()
    stored = [stored_facts(entry) for entry in stored_entries(library)]
    synced = [one.path for one in library.texts if not one.entries]
    read, words = {one.path for one in library.texts if one.entries}, set(synced)
    paths = dict.fromkeys([*synced, *names.files(left_out)])
    files = [path for path in paths if path not in read and not has_lone_surrogate(path)]
    return [*stored, *(_file_facts(path, "words" if path in words else "file") for path in files)]


def stored_facts(entry: Entry) -> DocumentFacts:
    """A stored document, for a list."""
    if entry.damage:
        return DocumentFacts(
            id=entry.id, document=entry.name or entry.id, how="read", damage=entry.state
        )
    pages = [mark[1] for mark in entry.marks if mark[1] is not None]
    return DocumentFacts(
        id=entry.id,
        document=entry.name,
        file=path_of(entry),
        characters=entry.characters,
        pages=max(pages, default=None),
        how="read",
    )


def _file_facts(path: str, how: Literal["words", "file"]) -> DocumentFacts:
    return DocumentFacts(id=path, document=os.path.basename(path), file=path, how=how)
