"""Copies of finished documents in a folder at a URL, and back: what is there is not copied again.

Files have the names that they have in the library, which are those of their contents. A document's
manifest is copied last, so one whose manifest is there is whole, and whoever is stopped goes on.
The folder is a library without locks, catalogue and claims.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from esa_cli.errors import LibraryError, RemoteError, UsageError
from esa_cli.storage.library.contents_check import document_files
from esa_cli.storage.library.formats import checksummed_file, manifest
from esa_cli.storage.library.formats.checksummed_file import write_errors
from esa_cli.storage.library.formats.library_paths import MARKER, LibraryPaths, is_manifest, size_of
from esa_cli.storage.library.formats.manifest import Entry
from esa_cli.storage.library.library import Library
from esa_cli.storage.library.transfer.damaged_copy import DamagedCopyError, file_name
from esa_cli.storage.library.transfer.document_copy import TransferResult, copy_document
from esa_cli.storage.library.transfer.remote_folder import RemoteFolder
from esa_cli.system.progress import Progress


def push(
    library: Library,
    url: str,
    entries: Sequence[Entry],
    progress: Progress | None = None,
) -> TransferResult:
    """Copies documents of the library to a folder, which is made if it is empty or missing.

    Args:
        progress: called with the documents done and all.

    Raises:
        RemoteError: the folder cannot be used, or has files but no library.
    """
    paths, remote = LibraryPaths(library.root), RemoteFolder(url)
    if entries and not remote.exists(MARKER):
        # The marker is looked for again: another machine may have made the library meanwhile.
        if not remote.is_empty() and not remote.exists(MARKER):
            raise RemoteError(
                f"{remote.shown} is not a library of esa, and not empty",
                "name a folder of its own; it need not exist",
            )
        remote.make()
        remote.put(paths.root / MARKER, MARKER)
    there, result = remote.sizes(), TransferResult()
    for number, entry in enumerate(entries, 1):
        if entry.damage:
            result.failed.append(manifest.entry_error(entry))
        else:
            _push_one(paths, remote, entry, there, result)
        if progress:
            progress(number, len(entries))
    return result


def _push_one(
    paths: LibraryPaths,
    remote: RemoteFolder,
    entry: Entry,
    there: dict[str, int],
    result: TransferResult,
) -> None:
    before = result.bytes
    for path in [*document_files(paths, entry), paths.document(entry.key)]:
        name, size = file_name(paths, path), size_of(path)
        if path.suffix == ".doc" and there.get(name):
            continue  # another machine's, of the same contents
        if there.get(name) == size:
            continue
        if not size:
            missing = LibraryError(f"{path} is missing", checksummed_file.reingest_hint(entry.key))
            result.failed.append(missing)
            return
        remote.put(path, name)
        there[name] = size
        result.bytes += size
    if result.bytes > before:
        result.copied.append(entry.key)
    else:
        result.there += 1


def _remote_keys(remote: RemoteFolder, chosen: Sequence[str]) -> list[str]:
    """Keys of the documents in a folder; of those that begin as `chosen`, if there are any."""
    if not remote.exists(MARKER):
        raise RemoteError(
            f"{remote.shown} is not a library of esa", "esa library push makes one there"
        )
    names = [name.rpartition("/") for name in remote.sizes()]
    keys = sorted(
        last.partition(".")[0]
        for folder, _, last in names
        if folder == "documents" and is_manifest(last)
    )
    for one in chosen:
        if len(one) < 4 or not any(key.startswith(one.lower()) for key in keys):
            raise UsageError(
                f"ID must be at least 4 digits of a document in {remote.shown}, got {one}",
                "leave it out to pull all",
            )
    begins = tuple(one.lower() for one in chosen)
    return [key for key in keys if not begins or key.startswith(begins)]


def pull(
    library: Library,
    url: str,
    chosen: Sequence[str] = (),
    progress: Progress | None = None,
    waiting: Callable[[], None] | None = None,
) -> TransferResult:
    """Copies documents from a folder into the library; every file is checked before it has its
    name, as by an import.

    Args:
        chosen: beginnings of their ids; (): all. progress: as of `push`.
        waiting: called every half second while another process ingests one of them.

    Raises:
        RemoteError: the folder cannot be used, or is no library. UsageError: one of the chosen is
            not there. LibraryError, DiskError: the library cannot be
            written.
    """
    paths, remote = LibraryPaths(library.root), RemoteFolder(url)
    keys, result = _remote_keys(remote, chosen), TransferResult()
    with write_errors(paths.root):
        paths.make()
    for number, key in enumerate(keys, 1):
        with paths.locked(key, waiting):
            if manifest.exists(paths, key):
                result.there += 1
            else:
                try:
                    copy_document(paths, remote, key, result)
                except DamagedCopyError as error:
                    result.failed.append(error)
        if progress:
            progress(number, len(keys))
    return result
