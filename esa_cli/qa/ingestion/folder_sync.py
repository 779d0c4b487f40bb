"""A folder kept in the library: new and changed files are indexed, removed ones reported."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from esa_cli.documents.sources import FoundFiles, LeftOut, find_any
from esa_cli.errors import DiskError, DocumentError, LibraryError, UsageError
from esa_cli.qa.ingestion.file_indexing import FileChanges, FileIndexing
from esa_cli.storage.library import Catalogue, Entry, FileRecord, Library
from esa_cli.system.files import real_path, resolved_path
from esa_cli.system.progress import Progress


@dataclass(frozen=True)
class FolderState:
    """A folder after it was synchronised.

    Args:
        changes: of its files. removed: records of files that do not exist any more.
        left_out: files that are no documents.
    """

    changes: FileChanges
    removed: list[FileRecord]
    left_out: tuple[LeftOut, ...]


def check_folder(folder: str, library: Library) -> str:
    """The absolute path of a folder that can be synchronised.

    Raises:
        DocumentError: it is no folder. UsageError: the library is in it, or it is in the library.
    """
    if not os.path.isdir(folder):
        raise DocumentError(
            f"{folder or 'FOLDER'} must be a folder, got {_kind(folder) if folder else 'no name'}",
            "name a folder",
        )
    path = os.path.abspath(folder)
    root, real = (os.path.join(real_path(one), "") for one in (library.root, path))
    if root.startswith(real) or real.startswith(root):
        which = "contain" if root.startswith(real) else "be in"
        raise UsageError(
            f"the folder must not {which} the library {library.root}, got {folder}",
            "point ESA_LIBRARY to a folder elsewhere, or name another folder",
        )
    return path


def _kind(path: str) -> str:
    return "a file" if os.path.exists(path) else "nothing of that name"


def sync_folder(
    catalogue: Catalogue,
    folder: str,
    *,
    prune: bool = False,
    if_empty: bool = False,
    progress: Progress | None = None,
) -> FolderState:
    """Brings the catalogue up to date with a folder; stopped, the next call continues.

    Args:
        folder: absolute. prune: files that were removed will be forgotten; `if_empty`: also where
            no document is left.
        progress: called with the files done and all files.

    Raises:
        DocumentError: the folder is not there, may not be read, has too many files, or has none
            while some are to be forgotten. LibraryError, DiskError.
    """
    if not os.path.isdir(folder):
        raise DocumentError(
            f"{folder} must be a folder, got {_kind(folder)}", "nothing was changed; name a folder"
        )
    found = find_any(folder)
    changes = FileIndexing(catalogue, folder).update(found.files, progress)
    record_removed(catalogue, folder, found, folder)
    removed = [one for one in _removed(catalogue, folder, found) if one.folder]
    if prune and removed and not found.files and not if_empty:
        raise DocumentError(
            f"no document is left in {folder}, so nothing is pruned",
            "check that its disk is there; if all were really removed: esa ingest --prune --yes",
        )
    catalogue.keep_synced(folder)
    return FolderState(changes, removed, found.rest(folder))


def forget_removed(catalogue: Catalogue, folder: str, state: FolderState) -> None:
    """Forgets the files of a folder that were removed. What was read of them goes before: without
    their records it would be present again. Raises LibraryError, DiskError."""
    with catalogue.transaction():
        catalogue.files.remove(one.path for one in state.removed)
    catalogue.drop_unused_texts()
    catalogue.keep_synced(folder)


def _removed(catalogue: Catalogue, folder: str, found: FoundFiles) -> list[FileRecord]:
    """Records of files that do not exist any more, and did not when the folder was listed: of one
    that was there then, the disk may have gone away. What is below a folder that was left out is
    not known to be removed."""
    left_out = [path for paths in found.left_out.values() for path in paths]
    listed = {os.path.abspath(path) for path in (*found.files, *left_out)}
    closed = tuple(os.path.join(path, "") for path in left_out)

    def is_removed(one: FileRecord) -> bool:
        is_gone = one.path not in listed and not os.path.lexists(one.path)
        return is_gone and not one.path.startswith(closed)

    return [one for one in catalogue.files.below(folder) if is_removed(one)]


def record_removed(catalogue: Catalogue, folder: str, found: FoundFiles, synced: str = "") -> None:
    """Records that files of a folder which were read one by one, without `esa sync`, do not exist
    any more, so that what was read of them is former.

    Args:
        folder: absolute. found: its files now. synced: the folder, where it is synchronised.
    """
    stored = {entry.file for part in catalogue.entries() for entry in part}
    gone = [one for one in _removed(catalogue, folder, found) if not one.folder and one.digest]
    gone = [one for one in gone if resolved_path(one.path) in stored]
    if found.files and gone:
        with catalogue.transaction():
            for one in gone:
                why = f"there is no document {one.path}"
                catalogue.files.put(FileRecord(one.path, "", "", 0, why, folder=synced))


def record_read_folders(library: Library, names: Sequence[str]) -> None:
    """As `record_removed`, of those of the names that are folders, after their files were read."""
    folders = [os.path.abspath(name) for name in names if os.path.isdir(name)]
    if folders and library.exists:
        with suppress(LibraryError, DiskError), library.catalogue() as catalogue:
            for folder in folders:
                record_removed(catalogue, folder, find_any(folder))


def outdated_entries(
    catalogue: Catalogue, state: FolderState, entries: Iterable[Entry]
) -> list[Entry]:
    """Documents of the library that were read from a file of the folder which was removed, or has
    another text now, unless another file has their text. Files that have changed since are read
    again."""
    entries = list(entries)
    gone = {one.path for one in state.removed if not os.path.lexists(one.path)}
    removed = set(map(resolved_path, gone))
    read_from = {entry.file for entry in entries}
    again = [one.path for one in state.changes.readable if resolved_path(one.path) in read_from]
    records = FileIndexing(catalogue).update(again).readable
    now = {resolved_path(one.path): one.digest for one in records}
    kept = catalogue.files.kept_digests(gone)

    def is_outdated(entry: Entry) -> bool:
        path = entry.file
        other = path in removed or now.get(path, entry.text_sha256) != entry.text_sha256
        return other and entry.text_sha256 not in kept

    return [entry for entry in entries if not entry.damage and is_outdated(entry)]
