"""A file of `esa library export`, read without unpacking it; each byte is checked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from esa_cli.errors import ExportFileError, ForeignVersionError, LibraryError
from esa_cli.storage.library.transfer import export_format
from esa_cli.storage.library.transfer.export_format import BLOCK, END, Member

CHUNK = 1 << 22
AGAIN = "export or copy it again; nothing was imported"
_OTHERS = (
    (0, b"PK\3\4", "a zip archive", "unpack it, and name the export in it, if there is one"),
    (0, b"\x1f\x8b", "a gzip file", "unpack it first, as with gunzip"),
    (0, b"BZh", "a bzip2 file", "unpack it first, as with bunzip2"),
    (0, b"\xfd7zXZ\0", "an xz file", "unpack it first, as with unxz"),
    (0, b"\x28\xb5\x2f\xfd", "a zstd file", "unpack it first, as with unzstd"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it, and name the export in it"),
    (0, b"%PDF-", "a PDF", "`esa ingest` reads documents"),
    (0, b"SQLite format 3\0", "a database", "`esa library export --out FILE` makes an export"),
    (0, b"esa-library ", "a library's own file", "`esa library pull FOLDER` copies from a library"),
    (257, b"ustar", "another tar archive", "`esa library export --out FILE` makes an export"),
)
"""Offset, bytes there, the format's name, and what to try."""


@contextmanager
def export_errors(path: Path) -> Iterator[None]:
    """Turns errors of an export's contents into those of the file."""
    try:
        yield
    except ExportFileError:
        raise
    except ForeignVersionError as error:
        place = "" if error.message.startswith(str(path)) else f"{path} cannot be imported: "
        raise ForeignVersionError(place + error.message, "use the esa that wrote it") from error
    except LibraryError as error:
        reason = error.message.removeprefix(f"{path} is damaged: ")
        raise ExportFileError(f"{path} cannot be imported: {reason}", AGAIN) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise ExportFileError(
            f"{path} cannot be read: {reason}", "check its name, who may read it, and the disk"
        ) from error


class ExportedFile:
    """An open export; a context manager that closes it.

    Attributes:
        shown: its path, for messages. members: what it has, by their names in the library.

    Raises:
        ExportFileError: it cannot be read, is of another format, cut off, or damaged in its index.
        ForeignVersionError: another version of esa wrote it.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.shown = path, str(path)
        with export_errors(path):
            if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe: no waiting
                raise ExportFileError(f"{path} must be a file", "save it to a file first")
            self._file: BinaryIO = open(path, "rb")  # noqa: SIM115
            try:
                self.members = self._index()
            except BaseException:
                self._file.close()
                raise

    def __enter__(self) -> ExportedFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def _index(self) -> dict[str, Member]:
        facts = os.fstat(self._file.fileno())
        size = _index_size(self.path, self._file.read(BLOCK))
        if size > export_format.MOST_INDEX:
            raise LibraryError(f"its index must have at most {export_format.MOST_INDEX:,} bytes")
        data = self._exactly(size)
        found = export_format.read_index(data, self.path)
        self._check_padding(size, "the index")
        wanted = (found[-1].stop if found else self._file.tell()) + len(END)
        if facts.st_size < wanted:
            raise LibraryError(f"it is cut off: {facts.st_size:,} of {wanted:,} bytes are there")
        if facts.st_size > wanted:
            raise LibraryError(f"it has {facts.st_size - wanted:,} bytes behind its end")
        return {member.name: member for member in found}

    def check(self) -> Iterator[Member]:
        """Reads every byte behind the index; yields each member when it is checked. Raises
        ExportFileError: it is damaged, or no file as esa writes it."""
        for member in self.members.values():
            with export_errors(self.path):
                self._file.seek(member.start - BLOCK)
                header = export_format.tar_header(member.name, member.size)
                if self._exactly(BLOCK) != header:
                    raise LibraryError(f"the header of {member.name} is not what esa writes")
            for _ in self.chunks(member.name):
                pass
            with export_errors(self.path):
                self._check_padding(member.size, member.name)
            yield member
        with export_errors(self.path):
            if self._exactly(len(END)) != END:
                raise LibraryError("its end is damaged")

    def chunks(self, name: str) -> Iterator[bytes]:
        """A member's bytes, piece by piece; whoever has them all knows that they are right. Raises
        ExportFileError: there is no such member, or it is damaged."""
        member, digest = self._member(name), export_format.new_digest()
        for start in range(0, member.size, CHUNK):
            with export_errors(self.path):
                self._file.seek(member.start + start)
                data = self._exactly(min(CHUNK, member.size - start))
                digest.update(data)
                is_last = start + CHUNK >= member.size
                if is_last and digest.hexdigest() != member.digest:
                    raise LibraryError(f"{name} is damaged: its checksum is wrong")
            yield data

    def read(self, name: str) -> bytes:
        """A whole member. Raises ExportFileError: as `chunks`."""
        return b"".join(self.chunks(name))

    def place(self, name: str) -> tuple[int, int]:
        """Where a member's bytes start, and how many there are. Raises ExportFileError."""
        member = self._member(name)
        return member.start, member.size

    def _member(self, name: str) -> Member:
        with export_errors(self.path):
            if name not in self.members:
                raise LibraryError(f"{name} is missing")
        return self.members[name]

    def _exactly(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise LibraryError("it is cut off")
        return data

    def _check_padding(self, size: int, what: str) -> None:
        if any(self._exactly(-size % BLOCK)):
            raise LibraryError(f"the padding of {what} is damaged")


def _index_size(path: Path, header: bytes) -> int:
    """Bytes of the index that a file's first block announces. Raises ExportFileError: it is of
    another format."""
    is_ours = header.startswith(f"{export_format.INDEX}\0".encode()) and header[257:262] == b"ustar"
    if not is_ours:
        for at, magic, kind, hint in _OTHERS:
            if header[at:].startswith(magic):
                raise ExportFileError(f"{path} is {kind}, no export of esa", hint)
        what = "empty" if not header else "no export of esa"
        raise ExportFileError(f"{path} is {what}", "`esa library export --out FILE` makes one")
    digits = header[124:135]
    if not digits.isdigit() or b"8" in digits or b"9" in digits:
        raise LibraryError("its first header is damaged")
    size = int(digits, 8)
    if header != export_format.tar_header(export_format.INDEX, size):
        raise LibraryError("its first header is damaged")
    return size
