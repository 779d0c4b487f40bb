"""Copies stored documents between two libraries, one of which may be packed in an archive file.

An archive is an uncompressed tar of a library's files, beginning with the library's marker file. A
file's name is a hash of its contents, so files that the target library already has are not copied
again. Every file of a document is checked when it is copied. A document's manifest is copied last,
because a document with a manifest counts as complete. Copying can be stopped and continued."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from esa_cli.errors import ArchiveFileError, LibraryError, UsageError, get_first_line
from esa_cli.storage.library import disk, document_files
from esa_cli.storage.library.disk import LibraryPaths
from esa_cli.storage.library.document_files import LibraryEntry, list_document_files
from esa_cli.storage.library.library import Library, protect_segments
from esa_cli.storage.library.packed_files import decode_untrusted_manifest, verify_document_file
from esa_cli.system.files import LIBRARY_MARKER, convert_writing_errors, replace_atomically
from esa_cli.system.progress import Progress

CHUNK_BYTES = 1 << 22
FileByteRange = tuple[Path, int, int]
"""Where a library's file is: in the archive or file `path`, from byte `start`, `size` bytes."""


class DamagedSourceError(LibraryError):
    """A document cannot be copied because it is damaged, incomplete, or of another format."""


@dataclass
class LibraryCopyResult:
    """The documents copied between two libraries, and the errors of damaged documents."""

    copied: list[str] = field(default_factory=list)  # keys
    already_there: int = 0  # number of documents that the target library had before
    bytes: int = 0
    failed: list[LibraryError] = field(default_factory=list)


class SourceLibrary:
    """A folder or archive file from which documents are copied. Raises LibraryError."""

    def __init__(self, place: str) -> None:
        self.place = place
        try:
            list_files = _list_archive_files if is_archive_path(place) else _list_folder_files
            self.files = list_files(place)
        except (OSError, tarfile.TarError, ValueError) as error:
            message = f"{place} cannot be read as a library: {get_first_line(error)}"
            hint = "give an archive that `esa library copy library FILE.tar` has made"
            raise ArchiveFileError(message, hint) from error

    def list_document_keys(self) -> list[str]:
        names = [name.removeprefix("documents/") for name in self.files if "documents/" in name]
        return sorted(name.partition(".")[0] for name in names if disk.is_manifest_file_name(name))

    def read_file_chunks(self, file_name: str) -> Iterator[bytes]:
        """Yields the bytes of a library's file in chunks of 4 MiB. Raises LibraryError."""
        if file_name not in self.files:
            raise LibraryError(f"{file_name} is missing")
        path, start, size = self.files[file_name]
        try:
            with path.open("rb") as file:
                file.seek(start)
                while chunk := file.read(min(CHUNK_BYTES, size)):
                    size -= len(chunk)
                    yield chunk
        except OSError as error:
            raise disk.make_file_reading_error(path, error, "") from error


def is_archive_path(path: str) -> bool:
    """Whether a path from or to which a library is copied is an archive file, not a folder."""
    return path.endswith(".tar") or os.path.isfile(path)


def _list_folder_files(library_folder: str) -> dict[str, FileByteRange]:
    paths = LibraryPaths(Path(library_folder))
    if not (paths.root / LIBRARY_MARKER).is_file():
        hint = "make a library there with `esa library copy library FOLDER`"
        raise LibraryError(f"{library_folder} is not a library of esa", hint)
    return {
        _make_relative_path(paths, path): (path, 0, disk.get_file_size(path))
        for path in paths.list_all_files()
    }


def _list_archive_files(archive_path: str) -> dict[str, FileByteRange]:
    path = Path(archive_path)
    if not path.is_file():  # not opened: a pipe without a writer would block
        raise tarfile.ReadError("there is no such file")
    with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
        members = tar.getmembers()
        if not members or members[0].name != LIBRARY_MARKER:
            raise tarfile.ReadError("the archive was not written by esa")
        # `tarfile` ends quietly at a header that is damaged.
        file.seek(members[-1].offset_data + -(-members[-1].size // 512) * 512)
        end = file.read(1024)
        if len(end) < 1024 or any(end) or not all(member.isfile() for member in members):
            raise tarfile.ReadError("the archive is cut off or damaged")
    return {member.name: (path, member.offset_data, member.size) for member in members}


def push_documents(
    library: Library, target: str, entries: Sequence[LibraryEntry], progress: Progress | None = None
) -> LibraryCopyResult:
    """Copies documents from the library to another folder, which becomes a library, or to a new
    archive file. `progress` gets the numbers of documents done and of all documents. Raises
    LibraryError: the folder is not a library, or no document can be copied to an archive.
    UsageError: the archive's file exists and is no archive. DocumentError, ResourceError."""
    refuse_url_as_copy_place(target)
    keys = [entry.key for entry in entries]
    if not keys:
        return LibraryCopyResult()
    if not is_archive_path(target):
        source, copy = SourceLibrary(str(library.root)), LibraryPaths(Path(target))
        copy.create_library_folders()
        return _copy_documents(keys, partial(_copy_document, source, copy), progress)
    paths, added = LibraryPaths(library.root), set[Path]()
    with _create_archive(Path(target)) as tar:
        _add_archive_members(tar, paths, [paths.root / LIBRARY_MARKER])
        copy_document = partial(_add_document_to_archive, paths, tar, added)
        result = _copy_documents(keys, copy_document, progress)
        if result.failed and not result.copied:
            raise result.failed[0]
    return result


def pull_documents(
    library: Library, source_path: str, id_prefixes: Sequence[str] = (),
    progress: Progress | None = None, on_wait: Callable[[], None] | None = None,
) -> LibraryCopyResult:  # fmt: skip
    """Copies documents from another library's folder or archive file into the library: all, or
    those whose ids begin with one of `id_prefixes`. `progress` is as in `push_documents`; `on_wait`
    is called while another process holds a document's lock. Raises LibraryError: the place is not a
    library. UsageError: no document has a chosen id. DiskError: the disk is full."""
    refuse_url_as_copy_place(source_path)
    source, target = SourceLibrary(source_path), LibraryPaths(library.root)
    keys, starts = source.list_document_keys(), tuple(start.lower() for start in id_prefixes)
    for start in starts:
        if len(start) < 4 or not any(key.startswith(start) for key in keys):
            raise UsageError(
                f"ID must be at least 4 digits of a document's id in {source_path}, got {start}",
                "without an ID, `esa library copy` copies all documents",
            )
    keys = [key for key in keys if not starts or key.startswith(starts)]
    target.create_library_folders()
    return _copy_documents(keys, lambda key: _copy_document(source, target, key, on_wait), progress)


def refuse_url_as_copy_place(path_or_url: str) -> None:
    if "://" in path_or_url:
        message = f"a library can only be copied to or from a folder or FILE.tar, got {path_or_url}"
        hint = "copy the library to a folder, and then the folder to the URL with another program"
        raise UsageError(message, hint)


def _copy_documents(
    keys: Sequence[str], copy_document: Callable[[str], int | None], progress: Progress | None
) -> LibraryCopyResult:
    """Copies each document by `copy_document`, which returns None if the document is not new."""
    result = LibraryCopyResult()
    for number, key in enumerate(keys, 1):
        try:
            nbytes = copy_document(key)
        except DamagedSourceError as error:
            result.failed.append(error)
        else:
            result.bytes += nbytes or 0
            result.already_there += nbytes is None
            result.copied += [] if nbytes is None else [key]
        if progress:
            progress(number, len(keys))
    return result


def _copy_document(
    source: SourceLibrary, target: LibraryPaths, key: str, on_wait: Callable[[], None] | None = None
) -> int | None:
    """Copies a document; returns its bytes, or None if it was there. Raises DamagedSourceError."""
    manifest = target.get_document_path(key)
    with target.hold_lock(key, on_wait):
        if target.has_document(key):
            return None
        with _convert_source_errors(source.place, target, key, manifest):
            data = b"".join(source.read_file_chunks(_make_relative_path(target, manifest)))
            entry = decode_untrusted_manifest(target, key, data)
        files, copied = list_document_files(target, entry), len(data)
        missing_bytes = sum(entry.sizes.values()) - sum(map(disk.get_file_size, files))
        disk.require_free_disk_space(target.root, missing_bytes)
        # The claim protects the files from removal, so that a stopped copy can use them again.
        protect_segments(target, key, [*map(document_files.extract_segment_hash, entry.segments)])
        with disk.convert_write_errors(target.root):
            for path in files:
                try:  # another document or a stopped copy may have left the file
                    verify_document_file(path, entry)
                except LibraryError:
                    convert_errors = _convert_source_errors(source.place, target, key, path)
                    with convert_errors, disk.create_file_atomically(path, key) as file:
                        for chunk in source.read_file_chunks(_make_relative_path(target, path)):
                            file.write(chunk)
                            copied += len(chunk)
                        file.flush()
                        verify_document_file(disk.make_temporary_path(path, key), entry)
            with target.hold_lock("library"):
                with disk.create_file_atomically(manifest, key) as file:
                    file.write(data)
                target.get_segment_claim_path(key).unlink()
    target.mark_document_used(key)
    return copied


def _add_document_to_archive(
    paths: LibraryPaths, archive: tarfile.TarFile, added_files: set[Path], document_key: str
) -> int | None:
    """Adds a document's files to an archive, and returns the number of bytes added."""
    manifest, place = paths.get_document_path(document_key), str(paths.root)
    with _convert_source_errors(place, paths, document_key, manifest):
        entry = document_files.read_manifest(paths, document_key)
    files = [path for path in list_document_files(paths, entry) if path not in added_files]
    for path in files:
        with _convert_source_errors(place, paths, document_key, path):
            verify_document_file(path, entry)
    added_files.update(files)
    return _add_archive_members(archive, paths, [*files, manifest])


def _add_archive_members(tar: tarfile.TarFile, paths: LibraryPaths, files: Iterable[Path]) -> int:
    nbytes = 0
    for path in files:
        with path.open("rb") as file:
            member = tarfile.TarInfo(_make_relative_path(paths, path))
            member.size, member.mode = os.fstat(file.fileno()).st_size, 0o600
            tar.addfile(member, file)
            nbytes += member.size
    return nbytes


@contextmanager
def _convert_source_errors(place: str, paths: LibraryPaths, key: str, path: Path) -> Iterator[None]:
    """Converts a LibraryError about a file that is copied to `path` into a DamagedSourceError."""
    try:
        yield
    except LibraryError as error:
        name = _make_relative_path(paths, path)
        manifest = _make_relative_path(paths, paths.get_document_path(key))
        reason = error.message.replace(str(disk.make_temporary_path(path, key)), name)
        raise DamagedSourceError(
            f"document {key[:12]} in {place} cannot be used: {reason.replace(str(path), name)}",
            # A good copy does not replace files that are there.
            f"use the version of esa that wrote the document; or, if it is damaged, delete {name} "
            f"and {manifest} in {place}, and copy the document there from another library",
        ) from error


def _make_relative_path(paths: LibraryPaths, path: Path) -> str:
    return path.relative_to(paths.root).as_posix()


@contextmanager
def _create_archive(path: Path) -> Iterator[tarfile.TarFile]:
    """Yields a new archive file that only its owner may read, renamed to `path` after the block.
    Raises UsageError: the file exists and is no archive. DocumentError."""
    if path.exists():
        try:
            SourceLibrary(str(path))
        except ArchiveFileError as error:
            message = f"{path} exists, and is not an archive of a library"
            raise UsageError(message, "give the name of a new file for the archive") from error
    room = "free some space, or give a file on another disk"
    with (
        convert_writing_errors(path, room, "give a file in a folder that you may write to"),
        replace_atomically(path, durable=True) as part,
        open(os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        yield tar
    disk.flush_folder_to_disk(path.absolute().parent)
