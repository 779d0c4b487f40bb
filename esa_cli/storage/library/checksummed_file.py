"""Small files that carry their own digest, and how any file gets to disk whole or not at all.

A sealed file is one line `esa-library KIND FORMAT LENGTH DIGEST` and the payload behind it. The
digest covers kind, format, length and payload; the line itself has only one way to be written, so
no byte of the file can change unseen. Knows nothing about documents, tokens or locks.
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
LINE_BYTES = 200
"""No first line of a sealed file is longer, in this format or one to come."""
LOOK = "check who may read it, and the disk; then try again"
_LINE = re.compile(rb"esa-library ([a-z]+) ([0-9]+) ([0-9]+) ([0-9a-f]{64})\n")


def again(key: str) -> str:
    """What to do about a damaged file of the document with this key."""
    return f"remove it with `esa library rm {key[:12]}` and ingest the document again"


def unreadable(path: Path, error: OSError) -> UnreadableError:
    return UnreadableError(f"{path} cannot be read: {error.strerror or error}", LOOK)


def damaged(path: Path, what: str, key: str) -> LibraryError:
    return LibraryError(f"{path} is damaged: {what}", again(key))


def _digest(kind: str, form: int, payload: bytes) -> str:
    state = hashlib.blake2b(f"{kind} {form} {len(payload)}\n".encode(), digest_size=32)
    state.update(payload)
    return state.hexdigest()


def seal(kind: str, payload: bytes) -> tuple[bytes, str]:
    """The sealed file as bytes, and its digest."""
    digest = _digest(kind, FORMAT, payload)
    return f"esa-library {kind} {FORMAT} {len(payload)} {digest}\n".encode() + payload, digest


def unseal(data: bytes, kind: str, path: Path, key: str, digest: str | None = None) -> bytes:
    """The payload of a sealed file, or of the sealed beginning of one.

    Args:
        data: all that is sealed. path, key: for the message.
        digest: the one it must have, where that is known.

    Raises:
        ForeignVersionError: it is of another format. LibraryError: anything else is wrong with it.
    """
    line = _LINE.match(data[:LINE_BYTES])
    if line is None or line[1] != kind.encode():
        raise damaged(path, f"it does not begin as a {kind} file does", key)
    if int(line[2]) != FORMAT:
        raise ForeignVersionError(
            f"{path} is of format {int(line[2])}; this esa reads format {FORMAT}",
            f"use the esa that wrote it, or {again(key)}",
        )
    payload = data[line.end() :]
    if len(payload) != int(line[3]):
        raise damaged(path, "its length is wrong", key)
    found = _digest(kind, FORMAT, payload)
    # The whole line is compared: 007 and 7 are the same number, but not the same bytes.
    wanted = f"esa-library {kind} {FORMAT} {len(payload)} {found}\n".encode()
    if line[0] != wanted or digest not in (None, found):
        raise damaged(path, "its checksum is wrong", key)
    return payload


def read(path: Path, kind: str, key: str, digest: str | None = None) -> bytes:
    """The payload of a sealed file on disk.

    Raises:
        UnreadableError: it is there, and cannot be read. LibraryError: it is missing, or see
            `unseal`.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise LibraryError(f"{path} is missing", again(key)) from error
    except OSError as error:
        raise unreadable(path, error) from error
    return unseal(data, kind, path, key, digest)


def write(path: Path, kind: str, payload: bytes, owner: str) -> str:
    """Puts a sealed file on disk, and returns its digest. Raises OSError."""
    data, digest = seal(kind, payload)
    with new_file(path, owner) as file:
        file.write(data)
    return digest


@contextmanager
def new_file(path: Path, owner: str) -> Iterator[BinaryIO]:
    """A file that appears under its name whole, on disk for good, when the block ends well.

    Args:
        owner: the key of the document whose lock the caller holds; no two write for one owner.
    """
    temp = path.with_name(f".{path.name}.{owner}.part")
    with replacing(path, temp, durable=True), open(temp, "wb", buffering=0) as file:
        yield _Whole(file)  # type: ignore[misc]
    sync_folder(path.parent)


class _Whole:
    """An unbuffered file whose `write` writes everything or raises."""

    def __init__(self, raw: BinaryIO) -> None:
        self.raw, self.seek = raw, raw.seek

    def write(self, data: bytes | memoryview) -> int:
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view):
            done += self.raw.write(view[done:])
        return done


def sync_folder(folder: Path) -> None:
    """Makes renames and removals in the folder last; Windows has no such call and needs none."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def readable(root: Path) -> Iterator[None]:
    """Turns what the system says about looking into the library into a LibraryError."""
    try:
        yield
    except OSError as error:
        raise LibraryError(
            f"the library in {root} cannot be read: {error.strerror or error}"
            + (f" ({error.filename})" if error.filename else ""),
            "check who may read there, or point ESA_LIBRARY to another folder",
        ) from error


def on_disk(root: Path) -> AbstractContextManager[None]:
    """Turns errors of writing the library into a DiskError (no space) or LibraryError."""
    return writing_errors(
        f"the library in {root}",
        "free some space, `esa library prune`, or point ESA_LIBRARY to another disk",
        "check who may write there and whether another esa has it open, or point ESA_LIBRARY "
        "to another folder",
        no_room=DiskError,
        failed=LibraryError,
    )
