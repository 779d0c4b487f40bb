"""The format of the library's small files, their atomic writing, and the errors of its disk.

A file is one line `esa-library KIND FORMAT LENGTH DIGEST` and the payload. The digest covers kind,
format, length and payload, and the line has only one valid spelling, so a change of any byte is
found. Format 2 is that of manifests of documents with states, format 3 that of
manifests of documents whose layers have rows of several sizes: versions of esa that know none
refuse these, and read all others.
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
"""The newest format that is read, of the kinds that have several."""
LINE_BYTES = 200
"""Upper bound of the first line, in this format and later ones."""
READ_HINT = "check who may read it, and the disk; then try again"
_LINE = re.compile(rb"esa-library ([a-z]+) ([0-9]+) ([0-9]+) ([0-9a-f]{64})\n")


def reingest_hint(key: str) -> str:
    """The hint for a damaged file of the document with this key."""
    return f"remove it with `esa library rm {key[:12]}` and ingest the document again"


def foreign_hint(key: str) -> str:
    """The hint for a file of another format."""
    return f"use the esa that wrote it, or {reingest_hint(key)}"


def damage_error(path: Path, what: str, key: str) -> LibraryError:
    return LibraryError(f"{path} is damaged: {what}", reingest_hint(key))


def reading_error(path: Path, error: OSError, key: str) -> LibraryError:
    """The error for a file that is missing or that the system does not give out."""
    if isinstance(error, FileNotFoundError):
        return LibraryError(f"{path} is missing", reingest_hint(key))
    return UnreadableError(f"{path} cannot be read: {error.strerror or error}", READ_HINT)


def encode(kind: str, payload: bytes, form: int = FORMAT) -> tuple[bytes, str]:
    """The bytes of a file with this payload, and its digest; `form` is its format."""
    state = hashlib.blake2b(f"{kind} {form} {len(payload)}\n".encode(), digest_size=32)
    state.update(payload)
    digest = state.hexdigest()
    return f"esa-library {kind} {form} {len(payload)} {digest}\n".encode() + payload, digest


def decode(data: bytes, kind: str, path: Path, key: str, digest: str | None = None) -> bytes:
    """The payload of a file, checked.

    Args:
        data: the file's bytes, or its checksummed beginning. path, key: for the message.
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
            foreign_hint(key),
        )
    payload = data[line.end() :]
    # All bytes are compared: 007 and 7 are the same length, spelled in two ways.
    wanted, actual = encode(kind, payload, form)
    if data != wanted or digest not in (None, actual):
        raise damage_error(path, "its length or checksum is wrong", key)
    return payload


def read(path: Path, kind: str, key: str, digest: str | None = None) -> bytes:
    """The payload of a file on disk, checked. Raises: as `read_bytes` and `decode`."""
    return decode(read_bytes(path, key), kind, path, key, digest)


def read_bytes(path: Path, key: str) -> bytes:
    """A whole file. Raises UnreadableError: the system does not give it out. LibraryError: it is
    missing."""
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
    """The name of a file of `new_file` until its block ends."""
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
        raise LibraryError(
            f"the library in {root} cannot be read: {error.strerror or error}"
            + (f" ({error.filename})" if error.filename else ""),
            "check who may read there, or point ESA_LIBRARY to another folder",
        ) from error


def write_errors(root: Path) -> AbstractContextManager[None]:
    """Turns errors of writing the library into a DiskError (no space) or LibraryError."""
    return writing_errors(
        f"the library in {root}",
        "free some space, `esa library prune`, or point ESA_LIBRARY to another disk",
        "check who may write there and whether another esa has it open, or point ESA_LIBRARY "
        "to another folder",
        no_room=DiskError,
        failed=LibraryError,
    )
