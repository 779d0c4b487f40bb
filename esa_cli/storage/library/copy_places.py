"""Places that documents are copied to and from.

A folder at a URL, through fsspec: a disk, an object store, or another machine. An archive: a tar
file, not compressed, of the files under their usual names. Its first member is the marker; each
file is there once, however many documents need it. A copy checks contents, so a reader only has to
find the members, and notice an archive that is cut off.
"""

from __future__ import annotations

import os
import re
import secrets
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from esa_cli.errors import (
    ArchiveFileError,
    DiskError,
    LibraryError,
    RemoteError,
    UsageError,
    first_line,
)
from esa_cli.storage.library.formats.checksummed_file import sync_folder
from esa_cli.storage.library.formats.library_paths import MARKER
from esa_cli.system.files import lacks_room, replacing, writing_errors

CHUNK = 1 << 22
_WHOLE = {"abfs", "abfss", "adl", "az", "gcs", "gs", "memory", "oci", "oss", "s3", "s3a"}
"""Protocols by which a file appears when it is complete. By others it is written under another name
and renamed."""

_PART = re.compile(r"\.[^/]+\.[0-9a-f]{40}\.part")


class MissingCopyError(RemoteError):
    """A file is not in the folder."""


def without_password(url: str) -> str:
    """A URL as people may see it."""
    return re.sub(r"//[^/@]*@", "//", url)


class RemoteFolder:
    """Files by their names relative to a URL. Every method raises RemoteError.

    Args:
        url: as fsspec takes it; a path is one, too.
    """

    is_archive = False

    def __init__(self, url: str) -> None:
        self.shown = without_password(url)
        with self._errors():
            import fsspec

            self._fs: Any
            self._fs, root = fsspec.url_to_fs(url)
            self._root = str(root).rstrip("/")
            names = self._fs.protocol
            self._renames = not _WHOLE & {names, *(() if isinstance(names, str) else names)}

    def exists(self, name: str) -> bool:
        with self._errors():
            self._fs.invalidate_cache()
            return bool(self._fs.exists(self._path(name)))

    def is_empty(self) -> bool:
        """Whether it does not exist, or has nothing but what a stopped `put` has left."""
        with self._errors():
            found = self._fs.exists(self._root) and self._fs.ls(self._root, detail=False)
            return all(_PART.fullmatch(path.rpartition("/")[2]) for path in found or ())

    def sizes(self) -> dict[str, int]:
        """Bytes of all files below it, by name."""
        with self._errors():
            self._fs.invalidate_cache()
            found = self._fs.find(self._root, detail=True)
            start = len(self._root) + 1
            return {path[start:]: int(facts["size"]) for path, facts in found.items()}

    def read(self, name: str) -> bytes:
        return b"".join(self.chunks(name))

    def chunks(self, name: str) -> Iterator[bytes]:
        """A file's bytes, piece by piece."""
        with self._errors():
            try:
                file = self._fs.open(self._path(name), "rb")
            except FileNotFoundError as error:
                raise MissingCopyError(f"{self.shown} has no {name}") from error
        try:
            while True:
                with self._errors():
                    data = bytes(file.read(CHUNK))
                if not data:
                    return
                yield data
        finally:
            file.close()

    def make(self) -> None:
        """Makes the folder, on a disk for its owner alone: documents may be private."""
        with self._errors():
            from fsspec.implementations.local import LocalFileSystem

            if isinstance(self._fs, LocalFileSystem):
                Path(self._root).mkdir(mode=0o700, parents=True, exist_ok=True)

    def put(self, path: Path, name: str) -> None:
        """Uploads a file atomically: it gets its name when it is complete."""
        target = self._path(name)
        folder, _, last = target.rpartition("/")
        with self._errors():
            self._fs.makedirs(folder, exist_ok=True)
            if self._renames:
                self._put_part(path, f"{folder}/.{last}.{secrets.token_hex(20)}.part", target)
            else:
                self._fs.put_file(str(path), target)

    def _put_part(self, path: Path, part: str, target: str) -> None:
        try:
            self._fs.put_file(str(path), part)
            self._fs.mv(part, target)
        except BaseException:
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
        except (RemoteError, DiskError):
            raise
        except ImportError as error:
            raise RemoteError(
                f"{self.shown} cannot be used: {first_line(error)}",
                "pip install 'esa-cli[url]', and what the protocol needs, as s3fs for s3://",
            ) from error
        except Exception as error:
            if lacks_room(error):
                hint = "free some space there; the same command goes on where it was"
                raise DiskError(f"there is no space left in {self.shown}", hint) from error
            raise RemoteError(
                f"{self.shown} cannot be used: {first_line(error) or type(error).__name__}",
                "check the URL, the network and your rights; the same command goes on where it was",
            ) from error


SUFFIX = ".tar"
_FIRST = (MARKER, "esa-export")
"""The first member; before there was `esa library copy`, it was an index of the others."""


def is_archive(place: str) -> bool:
    """Whether a place to copy to or from is a file rather than a folder or a URL."""
    return (place.endswith(SUFFIX) and "://" not in place) or os.path.isfile(place)


class ArchiveReader:
    """The files of an archive; a context manager that closes it. Raises ArchiveFileError: it cannot
    be read, is cut off, or not made by esa."""

    is_archive = True

    def __init__(self, path: Path) -> None:
        self.shown = str(path)
        with self._errors():
            if not path.is_file():  # not opened: a pipe without a writer would block
                raise ArchiveFileError(f"{path} is not a file", "check its name")
            self._tar = tarfile.open(path, "r:")  # noqa: SIM115
            try:
                self._members = self._read_members(path)
            except BaseException:
                self._tar.close()
                raise

    def _read_members(self, path: Path) -> dict[str, tarfile.TarInfo]:
        members = self._tar.getmembers()
        if not members or members[0].name not in _FIRST:
            raise tarfile.ReadError("it is another archive")
        # `tarfile` ends quietly at a header that is damaged.
        with path.open("rb") as file:
            file.seek(members[-1].offset_data + -(-members[-1].size // 512) * 512)
            end = file.read(1024)
        if len(end) < 1024 or any(end):
            raise tarfile.ReadError("it is cut off or damaged")
        plain = {one.name: one for one in members if one.isreg() and not one.issparse()}
        return {**plain, MARKER: members[0]}

    def __enter__(self) -> ArchiveReader:
        return self

    def __exit__(self, *error: object) -> None:
        self._tar.close()

    def exists(self, name: str) -> bool:
        return name in self._members

    def sizes(self) -> dict[str, int]:
        """Bytes of all files, by name."""
        return {name: member.size for name, member in self._members.items()}

    def read(self, name: str) -> bytes:
        return b"".join(self.chunks(name))

    def chunks(self, name: str) -> Iterator[bytes]:
        """A file's bytes, piece by piece."""
        if name not in self._members:
            raise MissingCopyError(f"{self.shown} has no {name}")
        with self._errors():
            file = self._tar.extractfile(self._members[name])
            assert file is not None, "only regular files are kept"
            while data := file.read(CHUNK):
                yield data

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (tarfile.TarError, OSError, ValueError) as error:
            raise ArchiveFileError(
                f"{self.shown} cannot be read as an archive of a library: {first_line(error)}",
                "check the file; `esa library copy library FILE.tar` makes one",
            ) from error


class ArchiveWriter:
    """Adds files to a new archive."""

    def __init__(self, path: Path, tar: tarfile.TarFile) -> None:
        self.shown, self._tar = str(path), tar

    def exists(self, name: str) -> bool:
        return False

    def is_empty(self) -> bool:
        return True

    def make(self) -> None:
        """It was made when it was opened."""

    def sizes(self) -> dict[str, int]:
        return {}

    def put(self, path: Path, name: str) -> None:
        """Adds a file under a name. Raises OSError: the archive cannot be written, or the file was
        cut meanwhile. LibraryError: it was removed meanwhile."""
        try:
            source = path.open("rb")
        except OSError as error:
            raise LibraryError(f"{path} was removed meanwhile", "copy again") from error
        with source:
            member = tarfile.TarInfo(name)
            member.size, member.mode = os.fstat(source.fileno()).st_size, 0o600
            self._tar.addfile(member, source)


@contextmanager
def new_archive(path: Path) -> Iterator[ArchiveWriter]:
    """An archive for its owner alone, which appears under its name when the block ends well.
    Raises UsageError: the file exists and is no archive of a library. DocumentError,
    ResourceError: it cannot be written."""
    if path.exists():
        try:
            ArchiveReader(path).__exit__()
        except ArchiveFileError as error:
            message = f"{path} exists, and is no archive of a library"
            raise UsageError(message, "name another file") from error
    with (
        writing_errors(
            path,
            "free some space, or name a file on another disk",
            "name a file in a folder you may write to",
        ),
        replacing(path, durable=True) as part,
        open(os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        yield ArchiveWriter(path, tar)
    sync_folder(path.absolute().parent)
