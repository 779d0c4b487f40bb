"""One document copied into the library from elsewhere: each file checked, the manifest last."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from esa_cli.errors import LibraryError
from esa_cli.storage.library.contents_check import check_file, document_files
from esa_cli.storage.library.disk_room import check_room
from esa_cli.storage.library.formats import checksummed_file, manifest
from esa_cli.storage.library.formats.checksummed_file import write_errors
from esa_cli.storage.library.formats.library_paths import LibraryPaths, size_of
from esa_cli.storage.library.formats.manifest import Entry
from esa_cli.storage.library.reservations import reserve
from esa_cli.storage.library.transfer.damaged_copy import copy_errors, file_name
from esa_cli.storage.library.transfer.manifest_check import checked_entry


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


class CopySource(Protocol):
    """Files of documents elsewhere, by the names that they have in the library."""

    shown: str
    """Its place, for messages."""

    def read(self, name: str) -> bytes: ...

    def chunks(self, name: str) -> Iterator[bytes]: ...


def copy_document(
    paths: LibraryPaths, source: CopySource, key: str, result: TransferResult
) -> None:
    """Copies a document, whose lock the caller holds. Raises DamagedCopyError."""
    with copy_errors(paths, source.shown, key, paths.document(key)):
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
                _copy_file(paths, source, entry, path, result)
        with paths.locked("library"):
            with checksummed_file.new_file(paths.document(key), key) as file:
                file.write(data)
            paths.reservation(key).unlink()
    manifest.touch(paths, key)
    result.bytes += len(data)
    result.copied.append(key)


def _copy_file(
    paths: LibraryPaths, source: CopySource, entry: Entry, path: Path, result: TransferResult
) -> None:
    part = checksummed_file.part_path(path, entry.key)
    with (
        copy_errors(paths, source.shown, entry.key, path),
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
