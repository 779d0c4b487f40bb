"""The format of the library's small files, their atomic writing, and the errors of its disk.

A file is one line `esa-library KIND FORMAT LENGTH DIGEST` and the payload. The digest covers kind,
format, length and payload. A manifest has format 2 if its document has states, and 3 if its layers
have rows of several sizes, so that older versions of esa refuse it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

from esa_cli.errors import DiskError, ForeignVersionError, LibraryError, UnreadableError
from esa_cli.system.files import replacing, writing_errors

FORMAT = 1
WITH_STATES = 2
WITH_SHAPES = 3
NEWEST = {"document": WITH_SHAPES}
"""The newest format of the kinds that have several."""
LINE_BYTES = 200
"""Upper bound of the first line, in this format and later ones."""
_LINE = re.compile(rb"esa-library ([a-z]+) ([0-9]+) ([0-9]+) ([0-9a-f]{64})\n")
ANOTHER_FOLDER = "check who may read and write there, or point ESA_LIBRARY to another folder"


def _again(key: str) -> str:
    return f"remove it with `esa library rm {key[:12]}` and ingest the document again"


def damage_error(path: Path, what: str, key: str) -> LibraryError:
    return LibraryError(f"{path} is damaged: {what}", _again(key))


def reading_error(path: Path, error: OSError, key: str) -> LibraryError:
    """The error for a file that is missing or that the system refuses to read."""
    if isinstance(error, FileNotFoundError):
        return LibraryError(f"{path} is missing", _again(key))
    reason = f"{path} cannot be read: {error.strerror or error}"
    return UnreadableError(reason, "check who may read it, and the disk; then try again")


def encode(kind: str, payload: bytes, form: int = FORMAT) -> tuple[bytes, str]:
    """The bytes of a file with this payload, and its digest; `form` is its format."""
    state = hashlib.blake2b(f"{kind} {form} {len(payload)}\n".encode(), digest_size=32)
    state.update(payload)
    digest = state.hexdigest()
    return f"esa-library {kind} {form} {len(payload)} {digest}\n".encode() + payload, digest


def decode(data: bytes, kind: str, path: Path, key: str, digest: str | None = None) -> bytes:
    """The payload of a file, checked.

    Args:
        data: the file's bytes, or its checksummed beginning. path, key: for messages.
        digest: the expected one, if known.

    Raises:
        ForeignVersionError: it is of another format. LibraryError: it is damaged.
    """
    line = _LINE.match(data[:LINE_BYTES])
    if line is None or line[1] != kind.encode():
        raise damage_error(path, f"it does not begin as a {kind} file does", key)
    form, newest = int(line[2]), NEWEST.get(kind, FORMAT)
    if not FORMAT <= form <= newest:
        raise ForeignVersionError(
            f"{path} is of format {form}; this esa reads format {FORMAT} to {newest}",
            f"use the esa that wrote it, or {_again(key)}",
        )
    payload = data[line.end() :]
    expected, actual = encode(kind, payload, form)
    if data != expected or digest not in (None, actual):
        raise damage_error(path, "its length or checksum is wrong", key)
    return payload


def read(path: Path, kind: str, key: str, digest: str | None = None) -> bytes:
    """The payload of a file on disk. Raises: as `read_bytes` and `decode`."""
    return decode(read_bytes(path, key), kind, path, key, digest)


def read_bytes(path: Path, key: str) -> bytes:
    """A whole file. Raises UnreadableError: the system refuses. LibraryError: it is missing."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise reading_error(path, error, key) from error


def write(path: Path, kind: str, payload: bytes, owner: str, form: int = FORMAT) -> str:
    """Writes a file atomically and returns its digest. Raises OSError."""
    data, digest = encode(kind, payload, form)
    with new_file(path, owner) as file:
        file.write(data)
    return digest


def part_path(path: Path, owner: str) -> Path:
    """Where the bytes of a `new_file` are until its block ends."""
    return path.with_name(f".{path.name}.{owner}.part")


@contextmanager
def new_file(path: Path, owner: str) -> Iterator[BinaryIO]:
    """A file that appears under its name, flushed to disk, when the block ends without an error.

    Args:
        owner: the key of the document whose lock the caller holds, so that it has one writer.
    """
    temp = part_path(path, owner)
    with replacing(path, temp, durable=True), open(temp, "wb") as file:
        yield file
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flushes renames and removals in the folder to disk; Windows needs no such call."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def read_errors(root: Path) -> Iterator[None]:
    """Turns errors of reading the library's folders into a LibraryError."""
    try:
        yield
    except OSError as error:
        file = f" ({error.filename})" if error.filename else ""
        reason = f"the library in {root} cannot be read: {error.strerror or error}{file}"
        raise LibraryError(reason, ANOTHER_FOLDER) from error


def write_errors(root: Path) -> AbstractContextManager[None]:
    """Turns errors of writing the library into a DiskError (no space) or LibraryError."""
    return writing_errors(
        f"the library in {root}",
        "free some space, `esa library prune`, or point ESA_LIBRARY to another disk",
        f"{ANOTHER_FOLDER}; on Windows, end other esa processes that use it",
        no_room=DiskError,
        failed=LibraryError,
    )
