"""A folder kept in the library: new and changed files are indexed, removed ones reported."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from esa_cli.documents.sources import LeftOut, find_any
from esa_cli.errors import DocumentError, UsageError
from esa_cli.qa.file_indexing import FileChanges, FileIndexing
from esa_cli.storage.library import Catalogue, Entry, FileRecord, Library
from esa_cli.system.progress import Progress


@dataclass(frozen=True)
class FolderState:
    """A folder after it was synchronised.

    Args:
        changes: of its files. removed: records of files that are there no more, or are ignored now.
        left_out: files that are no documents.
    """

    changes: FileChanges
    removed: list[FileRecord]
    left_out: tuple[LeftOut, ...]


def check_folder(folder: str, library: Library) -> str:
    """The absolute path of a folder that can be synchronised.

    Raises:
        DocumentError: it is no folder. UsageError: the library is in it.
    """
    if not os.path.isdir(folder):
        raise DocumentError(f"{folder} must be a folder, got {_kind(folder)}", "name a folder")
    path = os.path.abspath(folder)
    if os.path.realpath(library.root).startswith(os.path.join(os.path.realpath(path), "")):
        raise UsageError(
            f"the folder must not contain the library {library.root}, got {folder}",
            "point ESA_LIBRARY to a folder elsewhere, or name a folder further down",
        )
    return path


def _kind(path: str) -> str:
    return "a file" if os.path.exists(path) else "nothing of that name"


def sync_folder(
    catalogue: Catalogue, folder: str, *, prune: bool = False, progress: Progress | None = None
) -> FolderState:
    """Brings the catalogue up to date with a folder; stopped, the next call continues.

    Args:
        folder: absolute. prune: forget files that were removed.
        progress: called with the files done and all files.

    Raises:
        DocumentError: the folder may not be read, or has too many files. LibraryError, DiskError.
    """
    found = find_any(folder)
    changes = FileIndexing(catalogue, folder).update(found.files, progress)
    there = {record.path for record in changes.records}
    known = [one for one in catalogue.files.below(folder) if one.folder]
    removed = [one for one in known if one.path not in there]
    if prune and removed:
        with catalogue.transaction():
            catalogue.files.remove(one.path for one in removed)
        catalogue.drop_unused_texts()
    return FolderState(changes, removed, found.rest(folder))


def outdated_entries(state: FolderState, entries: Iterable[Entry]) -> list[Entry]:
    """Documents of the library that were read from a file of the folder which was removed, or has
    another text now."""
    removed = {one.path for one in state.removed}
    now = {one.path: one.digest for one in state.changes.readable}

    def is_outdated(entry: Entry) -> bool:
        source = str(entry.provenance.get("source", ""))
        return source in removed or now.get(source, entry.text_sha256) != entry.text_sha256

    return [entry for entry in entries if not entry.damage and is_outdated(entry)]
