"""What a disk says when a file cannot be written, in words that a person can act on.

It does not know what is in the files. One who writes says only what to try.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from esa_cli.errors import DocumentError, ResourceError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""A full disk, a used up quota, a limit on the length of a file."""
_NUMBER = re.compile(r"\(os error (\d+)\)")
"""Safetensors hands on what the system said only as a text with its number."""


def number(error: Exception) -> int | None:
    """The system's number of what went wrong, where it said one."""
    if isinstance(error, OSError):
        return error.errno
    found = _NUMBER.search(str(error))
    return int(found[1]) if found else None


def lacks_room(error: Exception) -> bool:
    """Whether there was no room for what was to be written."""
    return number(error) in NO_ROOM


@contextmanager
def writing(
    path: Path, room: str, other: str, *, also: type[Exception] = OSError
) -> Iterator[None]:
    """Turns what is said about writing at `path` into one clear error.

    Args:
        room: what to try where there is none. other: what to try in any other case.
        also: a kind of error, beside the system's, that tells the same.

    Raises:
        ResourceError: no room. DocumentError: anything else.
    """
    try:
        yield
    except (OSError, also) as error:
        said = number(error)
        message = f"{path} cannot be written: {os.strerror(said) if said else error}"
        if lacks_room(error):
            raise ResourceError(message, room) from error
        raise DocumentError(message, other) from error


def write_whole(path: Path, content: str) -> None:
    """Puts `content` at `path`, at once: it is never half there. Raises OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
