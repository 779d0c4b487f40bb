"""Copies finished documents between the library and another folder or an archive file.

The other folder is itself a library, and an archive is an uncompressed tar of a library's files,
beginning with the marker. A file's name is a hash of its contents, so files that the target already
has are not copied again. A document's manifest is copied last, since a document with a manifest is
complete, and a stopped copy can be continued. Every file is checked before its document exists.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from esa_cli.errors import ArchiveFileError, LibraryError, UsageError, get_first_line
from esa_cli.storage.library import disk, document_files
from esa_cli.storage.library.disk import LibraryPaths
from esa_cli.storage.library.document_files import Entry, extract_segment_prefix, list_needed_files
from esa_cli.storage.library.library import Library, claim_segments
from esa_cli.storage.library.packed_files import check_document_file, check_foreign_manifest
from esa_cli.system.files import convert_writing_errors, replace_atomically
from esa_cli.system.progress import Progress

CHUNK_BYTES = 1 << 22


class DamagedCopyError(LibraryError):
    """A document to be copied is damaged, incomplete, or of another format."""


@dataclass
class CopyResult:
    """The result of copying documents between libraries.

    Args:
        copied: keys of the copied documents. already_there: number of documents that were in the
        target before. bytes: number of bytes copied. failed: errors of damaged source documents.
    """

    copied: list[str] = field(default_factory=list)
    already_there: int = 0
    bytes: int = 0
    failed: list[LibraryError] = field(default_factory=list)


class FileByteRange(NamedTuple):
    """The range of bytes of a library's file: a whole file, or one member of a tar archive."""

    path: Path
    start: int
    size: int


class CopySource:
    """The files of a library in a folder or an archive, by name. Raises LibraryError: the folder or
    archive is not a library, or the archive is cut off."""

    def __init__(self, place: str) -> None:
        self.place = place
        try:
            self.files = _list_archive(place) if is_archive(place) else _list_folder(place)
        except (OSError, tarfile.TarError, ValueError) as error:
            raise ArchiveFileError(
                f"{place} cannot be read as a library: {get_first_line(error)}",
                "check the file, or make an archive with `esa library copy library FILE.tar`",
            ) from error

    def list_document_keys(self) -> list[str]:
        """Returns the sorted keys of all documents in the folder or archive."""
        names = [name.removeprefix("documents/") for name in self.files if "documents/" in name]
        return sorted(name.partition(".")[0] for name in names if disk.is_manifest_file_name(name))

    def read_chunks(self, name: str) -> Iterator[bytes]:
        """Yields the bytes of the file `name` in chunks. Raises LibraryError: the file is missing
        or unreadable."""
        if name not in self.files:
            raise LibraryError(f"{name} is missing")
        path, start, size = self.files[name]
        try:
            with path.open("rb") as file:
                file.seek(start)
                while chunk := file.read(min(CHUNK_BYTES, size)):
                    size -= len(chunk)
                    yield chunk
        except OSError as error:
            raise disk.make_file_reading_error(path, error, "") from error


def is_archive(place: str) -> bool:
    """Whether `place`, to or from which documents are copied, is an archive file, not a folder."""
    return place.endswith(".tar") or os.path.isfile(place)


def _list_folder(place: str) -> dict[str, FileByteRange]:
    paths = LibraryPaths(Path(place))
    if not (paths.root / disk.MARKER).is_file():
        hint = "make a library there with `esa library copy library FOLDER`"
        raise LibraryError(f"{place} is not a library of esa", hint)
    return {
        _make_path_in_library(paths, path): FileByteRange(path, 0, disk.get_file_size(path))
        for path in paths.list_all_files()
    }


def _list_archive(place: str) -> dict[str, FileByteRange]:
    path = Path(place)
    if not path.is_file():  # not opened: a pipe without a writer would block
        raise tarfile.ReadError("there is no such file")
    with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
        members = tar.getmembers()
        if not members or members[0].name != disk.MARKER:
            raise tarfile.ReadError("the archive was not written by esa")
        # `tarfile` ends quietly at a header that is damaged.
        file.seek(members[-1].offset_data + -(-members[-1].size // 512) * 512)
        end = file.read(1024)
        if len(end) < 1024 or any(end) or not all(member.isfile() for member in members):
            raise tarfile.ReadError("the archive is cut off or damaged")
    return {member.name: FileByteRange(path, member.offset_data, member.size) for member in members}


def push_documents(
    library: Library, place: str, entries: Sequence[Entry], progress: Progress | None = None
) -> CopyResult:
    """Copies documents from the library to another folder or to a new archive. A missing or empty
    folder becomes a library. The archive appears when it is complete. `progress` is called with
    the number of documents done and the number of all documents.

    Raises:
        LibraryError: the folder is not a library, or no document can be copied to an archive.
        UsageError: the archive's file exists and is no archive. DocumentError, ResourceError."""
    refuse_url_as_copy_place(place)
    keys = [entry.key for entry in entries]
    if not keys:
        return CopyResult()
    if not is_archive(place):
        source, target = CopySource(str(library.root)), LibraryPaths(Path(place))
        target.create_library_folders()
        return _copy_documents(keys, lambda key: _copy_document(source, target, key), progress)
    paths, added = LibraryPaths(library.root), set[Path]()
    with _create_archive(Path(place)) as tar:
        _add_archive_members(tar, paths, [paths.root / disk.MARKER])
        result = _copy_documents(
            keys, lambda key: _add_document_to_archive(paths, tar, added, key), progress
        )
        if result.failed and not result.copied:
            raise result.failed[0]
    return result


def pull_documents(
    library: Library,
    place: str,
    id_prefixes: Sequence[str] = (),
    progress: Progress | None = None,
    on_wait: Callable[[], None] | None = None,
) -> CopyResult:
    """Copies documents from a folder or an archive into the library.

    Args:
        id_prefixes: beginnings of documents' ids; by default all documents are copied. progress:
        called with the numbers of documents done and of all documents. on_wait: called while
        another process holds a document's lock.

    Raises:
        LibraryError: the place is not a library. UsageError: no document has a chosen id.
        DiskError: the disk is full."""
    refuse_url_as_copy_place(place)
    source, target = CopySource(place), LibraryPaths(library.root)
    keys, starts = source.list_document_keys(), tuple(start.lower() for start in id_prefixes)
    for start in starts:
        if len(start) < 4 or not any(key.startswith(start) for key in keys):
            raise UsageError(
                f"ID must be at least 4 digits of a document's id in {place}, got {start}",
                "leave out the ID to copy all documents",
            )
    keys = [key for key in keys if not starts or key.startswith(starts)]
    target.create_library_folders()
    return _copy_documents(keys, lambda key: _copy_document(source, target, key, on_wait), progress)


def refuse_url_as_copy_place(place: str) -> None:
    """Raises UsageError if the place to copy to or from is a URL."""
    if "://" in place:
        raise UsageError(
            f"a library can only be copied to or from a folder or FILE.tar, got {place}",
            "copy the library to a folder, and that folder to the URL with another program",
        )


def _copy_documents(
    keys: Sequence[str], copy_document: Callable[[str], int | None], progress: Progress | None
) -> CopyResult:
    """Copies documents by a function that returns bytes, or None if the target has a document."""
    result = CopyResult()
    for number, key in enumerate(keys, 1):
        try:
            nbytes = copy_document(key)
        except DamagedCopyError as error:
            result.failed.append(error)
        else:
            result.bytes += nbytes or 0
            result.already_there += nbytes is None
            result.copied += [] if nbytes is None else [key]
        if progress:
            progress(number, len(keys))
    return result


def _copy_document(
    source: CopySource, target: LibraryPaths, key: str, on_wait: Callable[[], None] | None = None
) -> int | None:
    """Copies a document to a library, and returns the number of bytes, or None if the library has
    the document. Raises DamagedCopyError: the document is damaged in the source."""
    manifest = target.get_document_path(key)
    with target.hold_lock(key, on_wait):
        if target.has_document(key):
            return None
        with _name_damaged_source(source.place, target, key, manifest):
            data = b"".join(source.read_chunks(_make_path_in_library(target, manifest)))
            entry = check_foreign_manifest(target, key, data)
        files, copied = list_needed_files(target, entry), len(data)
        missing_bytes = sum(entry.sizes.values()) - sum(map(disk.get_file_size, files))
        disk.check_free_disk_space(target.root, missing_bytes)
        # The claim protects the files from removal, so that a stopped copy can use them again.
        claim_segments(target, key, [*map(extract_segment_prefix, entry.segments)])
        with disk.converting_write_errors(target.root):
            for path in files:
                try:  # another document or a stopped copy may have left the file
                    check_document_file(path, path, entry)
                except LibraryError:
                    with (
                        _name_damaged_source(source.place, target, key, path),
                        disk.create_file_atomically(path, key) as file,
                    ):
                        for chunk in source.read_chunks(_make_path_in_library(target, path)):
                            file.write(chunk)
                            copied += len(chunk)
                        file.flush()
                        check_document_file(disk.make_temporary_path(path, key), path, entry)
            with target.hold_lock("library"):
                with disk.create_file_atomically(manifest, key) as file:
                    file.write(data)
                target.get_claim_path(key).unlink()
    target.mark_document_used(key)
    return copied


def _add_document_to_archive(
    paths: LibraryPaths, tar: tarfile.TarFile, added_files: set[Path], key: str
) -> int | None:
    """Adds a document to an archive, and returns the bytes added. Raises DamagedCopyError."""
    manifest, place = paths.get_document_path(key), str(paths.root)
    with _name_damaged_source(place, paths, key, manifest):
        entry = document_files.read_manifest(paths, key)
    files = [path for path in list_needed_files(paths, entry) if path not in added_files]
    for path in files:
        with _name_damaged_source(place, paths, key, path):
            check_document_file(path, path, entry)
    added_files.update(files)
    return _add_archive_members(tar, paths, [*files, manifest])


def _add_archive_members(tar: tarfile.TarFile, paths: LibraryPaths, files: Iterable[Path]) -> int:
    nbytes = 0
    for path in files:
        with path.open("rb") as file:
            member = tarfile.TarInfo(_make_path_in_library(paths, path))
            member.size, member.mode = os.fstat(file.fileno()).st_size, 0o600
            tar.addfile(member, file)
            nbytes += member.size
    return nbytes


@contextmanager
def _name_damaged_source(place: str, paths: LibraryPaths, key: str, path: Path) -> Iterator[None]:
    """Converts an error about a file that is copied to `path` into an error about its source."""
    try:
        yield
    except LibraryError as error:
        name = _make_path_in_library(paths, path)
        manifest = _make_path_in_library(paths, paths.get_document_path(key))
        reason = error.message.replace(str(disk.make_temporary_path(path, key)), name)
        raise DamagedCopyError(
            f"document {key[:12]} in {place} cannot be used: {reason.replace(str(path), name)}",
            # A good copy does not replace files that are there.
            f"use the esa version that wrote it; or, if it is damaged, delete {name} and "
            f"{manifest} there, and copy the document again from a library that has it",
        ) from error


def _make_path_in_library(paths: LibraryPaths, path: Path) -> str:
    """Returns the path of a file relative to the folder of the library, with slashes."""
    return path.relative_to(paths.root).as_posix()


@contextmanager
def _create_archive(path: Path) -> Iterator[tarfile.TarFile]:
    """Yields a new archive that only its owner may read. The archive gets its name when the block
    ends without an error. Raises UsageError: the file exists and is no archive. DocumentError."""
    if path.exists():
        try:
            CopySource(str(path))
        except ArchiveFileError as error:
            message = f"{path} exists, and is not an archive of a library"
            raise UsageError(message, "give the name of another file") from error
    room = "free some space, or give a file on another disk"
    with (
        convert_writing_errors(path, room, "give a file in a folder that you may write to"),
        replace_atomically(path, durable=True) as part,
        open(os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        yield tar
    disk.flush_folder_to_disk(path.absolute().parent)
