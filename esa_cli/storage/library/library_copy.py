"""Copies of finished documents in another place, and back: a folder, a URL or an archive file.

Files have the names that they have in the library, which are those of their contents, so what is
there is not copied again. A document's manifest is copied last: one whose manifest is there is
complete, and a copy that was stopped goes on. The other place is a library without locks,
catalogue and reservations. Every file is checked by `contents_check` before it is copied, in either
direction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from esa_cli.errors import (
    ArchiveFileError,
    ForeignVersionError,
    LibraryError,
    RemoteError,
    UsageError,
)
from esa_cli.storage.library.contents_check import check_file, checked_entry, document_files
from esa_cli.storage.library.copy_places import (
    ArchiveReader,
    ArchiveWriter,
    MissingCopyError,
    RemoteFolder,
    is_archive,
    new_archive,
)
from esa_cli.storage.library.formats import checksummed_file, manifest
from esa_cli.storage.library.formats.checksummed_file import write_errors
from esa_cli.storage.library.formats.library_paths import (
    MARKER,
    LibraryPaths,
    check_room,
    is_manifest,
    size_of,
)
from esa_cli.storage.library.formats.manifest import Entry
from esa_cli.storage.library.library import Library
from esa_cli.storage.library.maintenance import reserve
from esa_cli.system.progress import Progress

_AGAIN = "copy the document again from a library that has it"


class DamagedCopyError(LibraryError):
    """A document elsewhere is damaged, incomplete, or of another format."""


@dataclass
class CopyResult:
    """What was copied.

    Args:
        copied: keys of documents. there: how many were there before. bytes: that were copied.
        failed: errors of documents that are damaged where they come from.
    """

    copied: list[str] = field(default_factory=list)
    there: int = 0
    bytes: int = 0
    failed: list[LibraryError] = field(default_factory=list)


class CopySource(Protocol):
    """Files of documents elsewhere, by the names that they have in the library."""

    shown: str
    """Its place, for messages."""
    is_archive: bool

    def exists(self, name: str) -> bool: ...

    def sizes(self) -> dict[str, int]: ...

    def read(self, name: str) -> bytes: ...

    def chunks(self, name: str) -> Iterator[bytes]: ...


def push(
    library: Library, place: str, entries: Sequence[Entry], progress: Progress | None = None
) -> CopyResult:
    """Copies documents of the library to a folder, which is made if it is empty or missing, or to a
    new archive, which appears when it is complete.

    Args:
        progress: called with the documents done and all.

    Raises:
        RemoteError: the folder cannot be used, or has files but no library. LibraryError: no
            document can be copied to an archive. Also what `new_archive` raises.
    """
    if not is_archive(place):
        return _push_all(library, RemoteFolder(place), entries, progress)
    with new_archive(Path(place)) as archive:
        result = _push_all(library, archive, entries, progress)
        if result.failed and not result.copied:
            raise result.failed[0]
    return result


def _push_all(
    library: Library,
    target: RemoteFolder | ArchiveWriter,
    entries: Sequence[Entry],
    progress: Progress | None,
) -> CopyResult:
    paths = LibraryPaths(library.root)
    if entries and not target.exists(MARKER):
        # The marker is looked for again: another machine may have made the library meanwhile.
        if not target.is_empty() and not target.exists(MARKER):
            raise RemoteError(
                f"{target.shown} is not a library of esa, and not empty",
                "name a folder of its own; it need not exist",
            )
        target.make()
        target.put(paths.root / MARKER, MARKER)
    sizes, result = target.sizes(), CopyResult()
    for number, entry in enumerate(entries, 1):
        if entry.damage:
            result.failed.append(manifest.entry_error(entry))
        else:
            _push_one(paths, target, entry, sizes, result)
        if progress:
            progress(number, len(entries))
    return result


def _push_one(
    paths: LibraryPaths,
    target: RemoteFolder | ArchiveWriter,
    entry: Entry,
    sizes: dict[str, int],
    result: CopyResult,
) -> None:
    """Copies the files that are not there, if all of these are good; `sizes` has those there."""
    needed = {file_name(paths, path): path for path in document_files(paths, entry)}
    new = {name: path for name, path in needed.items() if sizes.get(name) != size_of(path)}
    try:
        manifest.read(paths, entry.key)
        for path in new.values():
            check_file(path, path, entry)
    except LibraryError as error:
        result.failed.append(error)
        return
    last = paths.document(entry.key)
    if not sizes.get(file_name(paths, last)):  # else it is another machine's, of the same contents
        new[file_name(paths, last)] = last
    for name, path in new.items():
        target.put(path, name)
        sizes[name] = size_of(path)
        result.bytes += sizes[name]
    if new:
        result.copied.append(entry.key)
    else:
        result.there += 1


def pull(
    library: Library,
    place: str,
    chosen: Sequence[str] = (),
    progress: Progress | None = None,
    waiting: Callable[[], None] | None = None,
) -> CopyResult:
    """Copies documents from a folder or an archive into the library.

    Args:
        chosen: beginnings of their ids; (): all. progress: as of `push`.
        waiting: called every half second while another process ingests one of them.

    Raises:
        RemoteError, ArchiveFileError: the place cannot be used, or is no library. UsageError: one
            of the chosen is not there. LibraryError, DiskError: the library cannot be written.
    """
    if not is_archive(place):
        return _pull_all(library, RemoteFolder(place), chosen, progress, waiting)
    with ArchiveReader(Path(place)) as archive:
        return _pull_all(library, archive, chosen, progress, waiting)


def _pull_all(
    library: Library,
    source: CopySource,
    chosen: Sequence[str],
    progress: Progress | None,
    waiting: Callable[[], None] | None,
) -> CopyResult:
    paths, keys, result = LibraryPaths(library.root), _keys(source, chosen), CopyResult()
    with write_errors(paths.root):
        paths.make()
    for number, key in enumerate(keys, 1):
        with paths.locked(key, waiting):
            if manifest.exists(paths, key):
                result.there += 1
            else:
                try:
                    _pull_one(paths, source, key, result)
                except DamagedCopyError as error:
                    result.failed.append(error)
        if progress:
            progress(number, len(keys))
    return result


def _keys(source: CopySource, chosen: Sequence[str]) -> list[str]:
    """Keys of the documents there; of those that begin as `chosen`, if there are any."""
    if not source.exists(MARKER):
        hint = "`esa library copy library FOLDER` makes one there"
        raise RemoteError(f"{source.shown} is not a library of esa", hint)
    names = [name.rpartition("/") for name in source.sizes()]
    keys = sorted(
        last.partition(".")[0]
        for folder, _, last in names
        if folder == "documents" and is_manifest(last)
    )
    for start in chosen:
        if len(start) < 4 or not any(key.startswith(start.lower()) for key in keys):
            raise UsageError(
                f"ID must be at least 4 digits of a document in {source.shown}, got {start}",
                "leave it out to copy all",
            )
    starts = tuple(start.lower() for start in chosen)
    return [key for key in keys if not starts or key.startswith(starts)]


def _pull_one(paths: LibraryPaths, source: CopySource, key: str, result: CopyResult) -> None:
    """Copies a document, whose lock the caller holds. Raises DamagedCopyError."""
    with _copy_errors(paths, source, key, paths.document(key)):
        data = source.read(file_name(paths, paths.document(key)))
        entry = checked_entry(paths, key, data)
    files = document_files(paths, entry)
    check_room(paths.root, sum(entry.sizes.values()) - sum(map(size_of, files)))
    with write_errors(paths.root):
        # As of an ingest: what it needs is not removed, and is found again if this is stopped.
        with paths.locked("library"):
            reserve(paths, key, [name.partition("-")[0] for name in entry.segments])
        for path in files:
            if not _is_good(path, entry):
                _pull_file(paths, source, entry, path, result)
        with paths.locked("library"):
            with checksummed_file.new_file(paths.document(key), key) as file:
                file.write(data)
            paths.reservation(key).unlink()
    manifest.touch(paths, key)
    result.bytes += len(data)
    result.copied.append(key)


def _pull_file(
    paths: LibraryPaths, source: CopySource, entry: Entry, path: Path, result: CopyResult
) -> None:
    part = checksummed_file.part_path(path, entry.key)
    with (
        _copy_errors(paths, source, entry.key, path),
        checksummed_file.new_file(path, entry.key) as file,
    ):
        for chunk in source.chunks(file_name(paths, path)):
            file.write(chunk)
            result.bytes += len(chunk)
        check_file(part, path, entry)


def _is_good(path: Path, entry: Entry) -> bool:
    """Whether the library has the file, undamaged, as of another document or a stopped copy."""
    try:
        check_file(path, path, entry)
    except LibraryError:
        return False
    return True


@contextmanager
def _copy_errors(paths: LibraryPaths, source: CopySource, key: str, path: Path) -> Iterator[None]:
    """Turns errors of a file that is copied into those of the file in the source."""
    name = file_name(paths, path)
    try:
        yield
    except MissingCopyError as error:
        raise _copy_error(source, key, f"{name} is missing", _AGAIN) from error
    except (RemoteError, ArchiveFileError):
        raise
    except LibraryError as error:
        reason, hint = error.message, _AGAIN
        if not source.is_archive:
            # The manifest may agree with wrong contents; `push` copies what is not there.
            files = dict.fromkeys((name, file_name(paths, paths.document(key))))
            hint = f"delete {' and '.join(files)} there, and {_AGAIN}"
        for local in (checksummed_file.part_path(path, key), path):
            reason = reason.replace(str(local), name)
        if isinstance(error, ForeignVersionError):
            hint = "use the esa that wrote it"
        raise _copy_error(source, key, reason, hint) from error


def _copy_error(source: CopySource, key: str, reason: str, hint: str) -> DamagedCopyError:
    message = f"document {key[:12]} in {source.shown} cannot be used: {reason}"
    return DamagedCopyError(message, hint)


def file_name(paths: LibraryPaths, path: Path) -> str:
    """A file's name relative to the library, which is that in the other place."""
    return path.relative_to(paths.root).as_posix()
