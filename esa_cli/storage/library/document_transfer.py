"""Copies of finished documents in a folder at a URL, and back: what is there is not copied again.

Files have the names that they have in the library, which are those of their contents. A document's
manifest is copied last, so one whose manifest is there is whole, and whoever is stopped goes on.
The folder is a library without locks, catalogue and claims.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from esa_cli.errors import LibraryError, RemoteError, UsageError
from esa_cli.storage.library import checksummed_file, manifest
from esa_cli.storage.library.checksummed_file import damage_error, write_errors
from esa_cli.storage.library.damaged_copy import DamagedCopyError, copy_errors, file_name
from esa_cli.storage.library.disk_room import check_room
from esa_cli.storage.library.library import Library
from esa_cli.storage.library.library_paths import MARKER, LibraryPaths, is_manifest, size_of
from esa_cli.storage.library.manifest import Entry
from esa_cli.storage.library.remote_folder import RemoteFolder
from esa_cli.storage.library.reservations import reserve
from esa_cli.system.progress import Progress


@dataclass
class TransferResult:
    """What was copied.

    Args:
        copied: keys of documents. there: how many were there before. bytes: that were copied.
        failed: errors of documents that are damaged where they come from.
    """

    copied: list[str] = field(default_factory=list)
    there: int = 0
    bytes: int = 0
    failed: list[LibraryError] = field(default_factory=list)


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
    for path in [*_files(paths, entry), paths.document(entry.key)]:
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
    """Copies documents from a folder into the library; every byte is checked before it has its
    name.

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
                    _pull_one(paths, remote, key, result)
                except DamagedCopyError as error:
                    result.failed.append(error)
        if progress:
            progress(number, len(keys))
    return result


def _pull_one(paths: LibraryPaths, remote: RemoteFolder, key: str, result: TransferResult) -> None:
    """Copies a document, whose lock the caller holds. Raises DamagedCopyError."""
    with copy_errors(paths, remote, key, paths.document(key)):
        data = remote.read(file_name(paths, paths.document(key)))
        entry = manifest.decode_entry(paths, key, data)
        if not all(map(paths.is_whole, _files(paths, entry))):
            raise damage_error(paths.document(key), "it names files that esa does not make", key)
    there = sum(map(size_of, _files(paths, entry)))
    check_room(paths.root, sum(entry.sizes.values()) - there)
    with write_errors(paths.root):
        # As of an ingest: what it needs is not removed, and is found again if this is stopped.
        with paths.locked("library"):
            reserve(paths, key, [name.partition("-")[0] for name in entry.segments])
        for path in _files(paths, entry):
            if not _is_good(path, entry):
                _pull_file(paths, remote, entry, path, result)
        with paths.locked("library"):
            with checksummed_file.new_file(paths.document(key), key) as file:
                file.write(data)
            paths.reservation(key).unlink()
    manifest.touch(paths, key)
    result.bytes += len(data)
    result.copied.append(key)


def _pull_file(
    paths: LibraryPaths, remote: RemoteFolder, entry: Entry, path: Path, result: TransferResult
) -> None:
    part = checksummed_file.part_path(path, entry.key)
    with (
        copy_errors(paths, remote, entry.key, path),
        checksummed_file.new_file(path, entry.key) as file,
    ):
        for chunk in remote.chunks(file_name(paths, path)):
            file.write(chunk)
            result.bytes += len(chunk)
        _check(part, path, entry)


def _files(paths: LibraryPaths, entry: Entry) -> list[Path]:
    """The files that a document needs, but its manifest."""
    fit = [] if entry.fit == "none" else [paths.fit(entry.fit)]
    own = [paths.document(entry.key, kind) for kind in ("text", "tokens")]
    return [*map(paths.segment, entry.segments), *fit, *own]


def _is_good(path: Path, entry: Entry) -> bool:
    """Whether the library has the file, undamaged, as of another document or a stopped `pull`."""
    try:
        _check(path, path, entry)
    except LibraryError:
        return False
    return True


def _check(file: Path, path: Path, entry: Entry) -> None:
    """Reads every byte of what is, or will be, at `path`. Raises LibraryError: damage."""
    from esa_cli.storage.library.document_files import check_fit
    from esa_cli.storage.library.segment import Segment

    key = entry.key
    if path.suffix == ".seg":
        index = entry.segments.index(path.stem)
        Segment(file, entry.layout, entry.segment_tokens(index), key, name=path.stem).check()
    elif path.suffix == ".fit":
        check_fit(file, path.stem, key)
    else:
        kind = path.suffix[1:]
        checksummed_file.read(file, kind, key, entry.digests[kind])
