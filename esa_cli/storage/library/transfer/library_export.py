"""Documents of the library in one file, and from there into another library."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from esa_cli.errors import DiskError, LibraryError, UsageError
from esa_cli.storage.library.contents_check import check_file, document_files
from esa_cli.storage.library.disk_room import check_room
from esa_cli.storage.library.formats import checksummed_file, manifest
from esa_cli.storage.library.formats.checksummed_file import sync_folder, write_errors
from esa_cli.storage.library.formats.library_paths import LibraryPaths, size_of
from esa_cli.storage.library.formats.manifest import Entry
from esa_cli.storage.library.library import Library
from esa_cli.storage.library.transfer import export_format
from esa_cli.storage.library.transfer.damaged_copy import file_name
from esa_cli.storage.library.transfer.document_copy import TransferResult, copy_document
from esa_cli.storage.library.transfer.export_check import check_export
from esa_cli.storage.library.transfer.export_format import BLOCK, END, PENDING, Member
from esa_cli.storage.library.transfer.exported_file import CHUNK, ExportedFile
from esa_cli.system.files import replacing, writing_errors
from esa_cli.system.machine import size_text
from esa_cli.system.progress import Progress

ROOM = "free some space, or name a file on another disk"


def export_documents(
    library: Library,
    out: Path,
    entries: Sequence[Entry],
    checking: Progress | None = None,
    writing: Progress | None = None,
) -> TransferResult:
    """Writes documents to one file, which appears under its name when it is complete.

    A document that is damaged is left out; where none is good, no file is written.

    Args:
        checking: called with the documents checked and all. writing: with the files written.

    Raises:
        UsageError: `out` is another file, or there are too many documents. DocumentError,
            ResourceError: it cannot be written. LibraryError: a document was removed meanwhile.
    """
    paths, result = LibraryPaths(library.root), TransferResult()
    _check_out(out)
    good = []
    for number, entry in enumerate(entries, 1):
        try:
            _check_document(paths, entry)
            good.append(entry)
        except LibraryError as error:
            result.failed.append(error)
        if checking:
            checking(number, len(entries))
    if not good:
        return result
    sizes = _sizes(paths, good)
    length = len(export_format.index_bytes(sizes))
    if length > export_format.MOST_INDEX:
        raise UsageError("documents to export are too many for one file", "export them in parts")
    members = export_format.members_of(sizes, BLOCK + export_format.padded(length))
    _check_room(out, members[-1].stop)
    with (
        writing_errors(out, ROOM, "name a file in a folder you may write to"),
        replacing(out, durable=True) as part,
        open(os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file,
    ):
        _write(paths, file, members, writing)
    sync_folder(out.absolute().parent)
    result.copied, result.bytes = [entry.key for entry in good], size_of(out)
    return result


def _check_document(paths: LibraryPaths, entry: Entry) -> None:
    """Reads every byte that is exported of a document. Raises LibraryError: damage."""
    if entry.damage:
        raise manifest.entry_error(entry)
    manifest.read(paths, entry.key)
    for path in document_files(paths, entry):
        check_file(path, path, entry)


def _check_out(out: Path) -> None:
    """Refuses to overwrite what is no export. Raises UsageError."""
    if not out.exists():
        return
    ours = f"{export_format.INDEX}\0".encode()
    if out.is_file():
        with out.open("rb") as file:
            if file.read(len(ours)) == ours:
                return
    raise UsageError(f"--out must be a new file or an export, got {out}", "name another file")


def _sizes(paths: LibraryPaths, entries: Sequence[Entry]) -> list[tuple[str, int, str]]:
    """Names and sizes of the members: manifests, then each file once."""
    manifests = [paths.document(entry.key) for entry in entries]
    files = [path for entry in entries for path in document_files(paths, entry)]
    return [
        (file_name(paths, path), size_of(path), PENDING)
        for path in dict.fromkeys([*manifests, *files])
    ]


def _check_room(out: Path, nbytes: int) -> None:
    free = shutil.disk_usage(out.absolute().parent).free
    if free < nbytes:
        raise DiskError(
            f"the export would take {size_text(nbytes)}, and the disk of {out} has "
            f"{size_text(free)} left",
            ROOM,
        )


def _write(
    paths: LibraryPaths, file: BinaryIO, members: Sequence[Member], progress: Progress | None
) -> None:
    """Writes the members, and then the index before them, which needs their digests."""
    written = []
    for number, member in enumerate(members, 1):
        file.seek(member.start - BLOCK)
        file.write(export_format.tar_header(member.name, member.size))
        digest = _copy(paths.root / member.name, file, member.size)
        file.write(bytes(-member.size % BLOCK))
        written.append((member.name, member.size, digest))
        if progress:
            progress(number, len(members))
    file.write(END)
    index = export_format.index_bytes(written)
    file.seek(0)
    file.write(export_format.tar_header(export_format.INDEX, len(index)))
    file.write(index)


def _copy(path: Path, file: BinaryIO, size: int) -> str:
    """Copies a file of the library, and returns its digest. Raises LibraryError."""
    digest, left = export_format.new_digest(), size
    for data in _chunks(path, size):
        digest.update(data)
        file.write(data)
        left -= len(data)
    if left:
        raise LibraryError(f"{path} was changed meanwhile", "export again")
    return digest.hexdigest()


def _chunks(path: Path, size: int) -> Iterator[bytes]:
    """A file's bytes, and at most one piece more than there should be. Raises LibraryError."""
    try:
        with path.open("rb") as source:
            for _ in range(0, size + 1, CHUNK):
                yield source.read(CHUNK)
    except FileNotFoundError as error:
        raise LibraryError(f"{path} was removed meanwhile", "export again") from error
    except OSError as error:
        raise checksummed_file.unreadable_error(path, error) from error


def import_documents(
    library: Library,
    file: Path,
    checking: Progress | None = None,
    copying: Progress | None = None,
    waiting: Callable[[], None] | None = None,
) -> TransferResult:
    """Copies the documents of an export into the library, which is not changed before all of the
    export has been checked.

    Stopped in the middle, it leaves whole documents, and what another import continues with.

    Args:
        checking: called with the files checked and all. copying: with the documents copied.
        waiting: called every half second while another process ingests one of them.

    Raises:
        ExportFileError: it is no export, or damaged. ForeignVersionError: of another format.
        LibraryError, DiskError: the library cannot be written.
    """
    paths, result = LibraryPaths(library.root), TransferResult()
    with ExportedFile(file) as export:
        entries = check_export(export, checking)
        paths.check()
        _check_library_room(paths, export, entries)
        with write_errors(paths.root):
            paths.make()
        for number, entry in enumerate(entries, 1):
            with paths.locked(entry.key, waiting):
                if manifest.exists(paths, entry.key):
                    result.there += 1
                else:
                    copy_document(paths, export, entry.key, result)
            if copying:
                copying(number, len(entries))
    return result


def _check_library_room(paths: LibraryPaths, export: ExportedFile, entries: list[Entry]) -> None:
    """Raises DiskError: the disk lacks room for what is not there yet."""
    new = [entry for entry in entries if not manifest.exists(paths, entry.key)]
    files = {path for entry in new for path in document_files(paths, entry)}
    missing = [path for path in files if not path.exists()]
    check_room(paths.root, sum(export.place(file_name(paths, path))[1] for path in missing))
