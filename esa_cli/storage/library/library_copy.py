"""Copies of finished documents in another place, and back: a folder, a URL or an archive file.

Files have the names that they have in the library, which are those of their contents, so what is
there is not copied again. A document's manifest is copied last: one whose manifest is there is
complete, and a copy that was stopped continues. The other place is a library without locks,
catalogue and reservations. Every file is checked by `document_files` before it is copied, in either
direction.

An archive is a tar file, not compressed. Its first member is the marker; each file is there once,
however many documents need it.
"""

from __future__ import annotations

import os
import re
import secrets
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from esa_cli.errors import (
    ArchiveFileError,
    EsaError,
    LibraryError,
    RemoteError,
    UsageError,
    first_line,
)
from esa_cli.storage.library import checksummed_file, manifest
from esa_cli.storage.library.checksummed_file import sync_folder, write_errors
from esa_cli.storage.library.document_files import check_file, checked_entry, needed_paths
from esa_cli.storage.library.library import Library
from esa_cli.storage.library.library_paths import (
    MARKER,
    LibraryPaths,
    check_room,
    is_manifest,
    size_of,
)
from esa_cli.storage.library.maintenance import reserve
from esa_cli.storage.library.manifest import Entry
from esa_cli.system.files import replacing, writing_errors
from esa_cli.system.progress import Progress

SUFFIX = ".tar"
CHUNK = 1 << 22
_ATOMIC = {"abfs", "abfss", "adl", "az", "gcs", "gs", "memory", "oci", "oss", "s3", "s3a"}
"""Protocols by which a file appears when it is complete. By others it is written under another name
and renamed."""
_PART = re.compile(r"\.[^/]+\.[0-9a-f]{40}\.part")
Put = Callable[[Path, str], None]
"""Copies a file to a place, under a name there."""


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


def without_password(url: str) -> str:
    """A URL as people may see it."""
    return re.sub(r"//[^/@]*@", "//", url)


def is_archive(place: str) -> bool:
    """Whether a place to copy to or from is a file rather than a folder or a URL."""
    return (place.endswith(SUFFIX) and "://" not in place) or os.path.isfile(place)


class CopyPlace:
    """Files of documents elsewhere, by the names that they have in the library. Every method raises
    RemoteError, or ArchiveFileError of an archive, which can only be read.

    Args:
        place: an archive, a path, or a URL as fsspec takes it.
    """

    def __init__(self, place: str) -> None:
        self.shown, self.is_archive = without_password(place), is_archive(place)
        self._fs: Any
        with self._errors():
            import fsspec

            if self.is_archive:
                self._fs, self._root = _archive_files(Path(place)), ""
                return
            self._fs, root = fsspec.url_to_fs(place)
            self._root = str(root).rstrip("/")
            names = self._fs.protocol
            self._renames = not _ATOMIC & {names, *(() if isinstance(names, str) else names)}

    def sizes(self) -> dict[str, int]:
        """Bytes of all files, by name."""
        with self._errors():
            self._fs.invalidate_cache()
            files, start = self._fs.find(self._root, detail=True), len(self._root)
            return {
                path[start:].lstrip("/"): int(facts["size"])
                for path, facts in files.items()
                if facts["type"] == "file"
            }

    def chunks(self, name: str) -> Iterator[bytes]:
        """A file's bytes, piece by piece. Raises LibraryError: it is missing."""
        with self._errors():
            try:
                file = self._fs.open(self._path(name), "rb")
            except FileNotFoundError as error:
                raise LibraryError(f"{name} is missing") from error
        try:
            while True:
                with self._errors():
                    data = bytes(file.read(CHUNK))
                if not data:
                    return
                yield data
        finally:
            file.close()

    def make(self, marker: Path) -> dict[str, int]:
        """Makes a library there, if there is none, and returns the sizes of its files; a folder of
        a disk is for its owner alone: documents may be private. Raises RemoteError: it has other
        files."""
        sizes = self.sizes()
        if MARKER not in sizes:
            if not all(_PART.fullmatch(name) for name in sizes):
                raise RemoteError(
                    f"{self.shown} is not a library of esa, and not empty",
                    "name a folder of its own; it need not exist",
                )
            with self._errors():
                from fsspec.implementations.local import LocalFileSystem

                if isinstance(self._fs, LocalFileSystem):
                    Path(self._root).mkdir(mode=0o700, parents=True, exist_ok=True)
            self.put(marker, MARKER)
        return sizes

    def put(self, path: Path, name: str) -> None:
        """Uploads a file atomically: it gets its name when it is complete."""
        target = self._path(name)
        folder, _, last = target.rpartition("/")
        part = f"{folder}/.{last}.{secrets.token_hex(20)}.part" if self._renames else target
        with self._errors():
            self._fs.makedirs(folder, exist_ok=True)
            try:
                self._fs.put_file(str(path), part)
                if self._renames:
                    self._fs.mv(part, target)
            except BaseException:
                if self._renames:
                    with suppress(Exception):
                        self._fs.rm_file(part)
                raise

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Every protocol's library raises errors of its own."""
        try:
            yield
        except EsaError:
            raise
        except Exception as error:
            if self.is_archive:
                raise ArchiveFileError(
                    f"{self.shown} cannot be read as an archive of a library: {first_line(error)}",
                    "check the file; `esa library copy library FILE.tar` makes one",
                ) from error
            raise RemoteError(
                f"{self.shown} cannot be used: {first_line(error)}",
                "check the URL, the network, your rights and the space there; the same command "
                "continues. URLs need pip install 'esa-cli[url]', and s3:// for example s3fs",
            ) from error


def _archive_files(path: Path) -> Any:
    """An archive's members, as files of fsspec. Raises tarfile.ReadError, OSError."""
    from fsspec.implementations.tar import TarFileSystem

    if not path.is_file():  # not opened: a pipe without a writer would block
        raise tarfile.ReadError("it is not a file")
    with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
        members = tar.getmembers()
        if not members or members[0].name != MARKER:
            raise tarfile.ReadError("it is another archive")
        # `tarfile` ends quietly at a header that is damaged.
        file.seek(members[-1].offset_data + -(-members[-1].size // 512) * 512)
        end = file.read(1024)
        if len(end) < 1024 or any(end):
            raise tarfile.ReadError("it is cut off or damaged")
    return TarFileSystem(str(path), compression=None, skip_instance_cache=True)


@contextmanager
def _new_archive(path: Path) -> Iterator[Put]:
    """Puts files into an archive for its owner alone, which appears under its name when the block
    ends well. Raises UsageError: the file exists and is no archive of a library. DocumentError,
    ResourceError: it cannot be written."""
    if path.exists():
        try:
            CopyPlace(str(path))
        except ArchiveFileError as error:
            message = f"{path} exists, and is no archive of a library"
            raise UsageError(message, "name another file") from error

    def put(source: Path, name: str) -> None:
        with source.open("rb") as file:
            member = tarfile.TarInfo(name)
            member.size, member.mode = os.fstat(file.fileno()).st_size, 0o600
            tar.addfile(member, file)

    room = "free some space, or name a file on another disk"
    with (
        writing_errors(path, room, "name a file in a folder you may write to"),
        replacing(path, durable=True) as part,
        open(os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        yield put
    sync_folder(path.absolute().parent)


def push(
    library: Library, place: str, entries: Sequence[Entry], progress: Progress | None = None
) -> CopyResult:
    """Copies documents of the library to a folder, which is made if it is empty or missing, or to a
    new archive, which appears when it is complete.

    Args:
        progress: called with the documents done and all.

    Raises:
        RemoteError: the folder cannot be used, or has files but no library. LibraryError: no
            document can be copied to an archive. UsageError: the archive exists and is something
            else. DocumentError, ResourceError: it cannot be written.
    """
    paths, result, sizes = LibraryPaths(library.root), CopyResult(), dict[str, int]()
    if not entries:
        return result
    with ExitStack() as stack:
        if is_archive(place):
            put = stack.enter_context(_new_archive(Path(place)))
            put(paths.root / MARKER, MARKER)
        else:
            folder = CopyPlace(place)
            put, sizes = folder.put, folder.make(paths.root / MARKER)
        for number, entry in enumerate(entries, 1):
            try:
                new = _new_files(paths, entry, sizes)
            except LibraryError as error:
                result.failed.append(error)
            else:
                for name, path in new.items():
                    put(path, name)
                    sizes[name] = size_of(path)
                    result.bytes += sizes[name]
                result.copied += [entry.key] if new else []
                result.there += not new
            if progress:
                progress(number, len(entries))
        if is_archive(place) and result.failed and not result.copied:
            raise result.failed[0]
    return result


def _new_files(paths: LibraryPaths, entry: Entry, sizes: dict[str, int]) -> dict[str, Path]:
    """A document's files by name, the manifest last, that are not in a place that has files of
    these sizes. Raises LibraryError: one of them is damaged."""
    manifest.read(paths, entry.key)
    needed = {file_name(paths, path): path for path in needed_paths(paths, entry)}
    new = {name: path for name, path in needed.items() if sizes.get(name) != size_of(path)}
    for path in new.values():
        check_file(path, path, entry)
    last = paths.document(entry.key)
    if not sizes.get(file_name(paths, last)):  # else another machine's, of these contents
        new[file_name(paths, last)] = last
    return new


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
    source, paths, result = CopyPlace(place), LibraryPaths(library.root), CopyResult()
    keys = _keys(source, chosen)
    paths.make()
    for number, key in enumerate(keys, 1):
        with paths.locked(key, waiting):
            if manifest.exists(paths, key):
                result.there += 1
            else:
                try:
                    result.bytes += _pull_one(paths, source, key)
                    result.copied.append(key)
                except DamagedCopyError as error:
                    result.failed.append(error)
        if progress:
            progress(number, len(keys))
    return result


def _keys(source: CopyPlace, chosen: Sequence[str]) -> list[str]:
    """Keys of the documents there; of those that begin as `chosen`, if there are any."""
    sizes = source.sizes()
    if MARKER not in sizes:
        hint = "`esa library copy library FOLDER` makes one there"
        raise RemoteError(f"{source.shown} is not a library of esa", hint)
    names = [name.removeprefix("documents/") for name in sizes if name.startswith("documents/")]
    keys = sorted(name.partition(".")[0] for name in names if is_manifest(name))
    starts = tuple(start.lower() for start in chosen)
    for start in starts:
        if len(start) < 4 or not any(key.startswith(start) for key in keys):
            raise UsageError(
                f"ID must be at least 4 digits of a document in {source.shown}, got {start}",
                "leave it out to copy all",
            )
    return [key for key in keys if not starts or key.startswith(starts)]


def _pull_one(paths: LibraryPaths, source: CopyPlace, key: str) -> int:
    """Copies a document, whose lock the caller holds, and returns the bytes. Raises
    DamagedCopyError."""
    last = paths.document(key)
    with _copy_errors(paths, source, key, last):
        data = b"".join(source.chunks(file_name(paths, last)))
        entry = checked_entry(paths, key, data)
    files, copied = needed_paths(paths, entry), len(data)
    check_room(paths.root, sum(entry.sizes.values()) - sum(map(size_of, files)))
    with write_errors(paths.root):
        # As of an ingest: what it needs is not removed, and is used again if this is stopped.
        with paths.locked("library"):
            reserve(paths, key, [name.partition("-")[0] for name in entry.segments])
        for path in files:
            try:  # it may be there, as of another document or a stopped copy
                check_file(path, path, entry)
                continue
            except LibraryError:
                pass
            with (
                _copy_errors(paths, source, key, path),
                checksummed_file.new_file(path, key) as file,
            ):
                for chunk in source.chunks(file_name(paths, path)):
                    file.write(chunk)
                    copied += len(chunk)
                file.flush()
                check_file(checksummed_file.part_path(path, key), path, entry)
        with paths.locked("library"):
            with checksummed_file.new_file(last, key) as file:
                file.write(data)
            paths.reservation(key).unlink()
    manifest.touch(paths, key)
    return copied


@contextmanager
def _copy_errors(paths: LibraryPaths, source: CopyPlace, key: str, path: Path) -> Iterator[None]:
    """Turns errors of a file that is copied into those of the file in the source."""
    try:
        yield
    except (RemoteError, ArchiveFileError):
        raise
    except LibraryError as error:
        name, last = file_name(paths, path), file_name(paths, paths.document(key))
        reason = error.message
        for local in (checksummed_file.part_path(path, key), path):
            reason = reason.replace(str(local), name)
        raise DamagedCopyError(
            f"document {key[:12]} in {source.shown} cannot be used: {reason}",
            # A good copy does not replace files that are there.
            f"use the esa that wrote it; or, if it is damaged, delete {name} and {last} there and "
            "copy the document again from a library that has it",
        ) from error


def file_name(paths: LibraryPaths, path: Path) -> str:
    """A file's name relative to the library, which is that in the other place."""
    return path.relative_to(paths.root).as_posix()
