"""The bytes of a document, from a file or from standard input, within a limit.

Pipes and devices are refused before they are opened: opening one would wait for its writer.
"""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Sequence
from typing import IO, Any

from esa_cli.errors import DocumentError


def from_stdin(stdin: IO[Any], limit: int) -> bytes:
    """The bytes of standard input. Raises DocumentError: a terminal, or more than the limit."""
    if stdin.isatty():
        raise DocumentError(
            "standard input is a terminal, so there is no document in it",
            "pipe a document in: esa ask - 'question' < FILE",
        )
    try:
        data: bytes = getattr(stdin, "buffer", stdin).read(limit + 1)
    except OSError as error:
        raise DocumentError(f"standard input cannot be read: {error.strerror}") from error
    if len(data) > limit:
        raise DocumentError(
            f"standard input is longer than the limit of {_size(limit)}", "split the document"
        )
    return data


def from_file(source: str, limit: int) -> bytes:
    """A file's bytes. Raises DocumentError: it cannot be read, or has more than the limit."""
    try:
        info = os.stat(source)
        _refuse_special(source, info, limit)
        with open(source, "rb") as stream:
            data = stream.read(limit + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DocumentError(f"there is no document {source}", _near(source)) from error
    except PermissionError as error:
        raise DocumentError(
            f"the document {source} may not be read by this user", f"try: chmod u+r {source}"
        ) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DocumentError(f"the document {source} cannot be read: {reason}") from error
    if len(data) > limit:
        raise _too_large(source, len(data), limit)
    return data


def _refuse_special(source: str, info: os.stat_result, limit: int) -> None:
    """Before opening: opening a pipe would wait for whoever writes to it."""
    if stat.S_ISDIR(info.st_mode):
        raise DocumentError(
            f"{source} is a folder, not a document",
            f"name a file in it, for example: {os.path.join(source, 'notes.md')}",
        )
    if not stat.S_ISREG(info.st_mode):
        raise DocumentError(
            f"{source} is a pipe, socket or device, not a file",
            f"give its contents on standard input: esa ask - 'question' < {source}",
        )
    if info.st_size > limit:
        raise _too_large(source, info.st_size, limit)


def _too_large(source: str, size: int, limit: int) -> DocumentError:
    return DocumentError(
        f"the document {source} is {_size(size)}, more than the limit of {_size(limit)}",
        "split it and ask about the parts",
    )


def _near(source: str) -> str:
    if source.startswith(("http://", "https://")):
        return "documents are files: fetch the page first, and name the file"
    folder = os.path.dirname(source) or "."
    try:
        names = _alike(os.path.basename(source), os.listdir(folder))
    except OSError:
        return f"there is no folder {folder} either" if not os.path.exists(folder) else ""
    if not names:
        return "check the path; it is relative to the current folder"
    return f"did you mean {os.path.join(os.path.dirname(source), names[0])}?"


def _alike(name: str, others: Sequence[str]) -> list[str]:
    """The most similar of other names whose stems are similar: a common `.txt` is no likeness."""
    stems = {os.path.splitext(other)[0] for other in others}
    near = difflib.get_close_matches(os.path.splitext(name)[0], stems)
    found = [other for other in others if os.path.splitext(other)[0] in near]
    return difflib.get_close_matches(name, found, n=1, cutoff=0.0)


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"
