"""Reads the documents a question is about: text and Markdown, from files or standard input.

Bytes become text by their byte order mark, else as UTF-8, else by what charset-normalizer makes
of them when nothing else comes close; never by replacing what does not fit. Line endings become
\\n. It does not know what the text means, nor how long it is in tokens.
"""

from __future__ import annotations

import difflib
import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from esa_cli.document_bytes import decode
from esa_cli.errors import DocumentError, UsageError

LIMIT = 1 << 30


@dataclass(frozen=True)
class Document:
    """One document: its text with \\n line endings, and where it came from.

    `source` is the path as given, or "-" for standard input; `bytes` is its length before
    decoding; `encoding` is the Python name of the encoding it was decoded from.
    """

    name: str
    text: str
    source: str
    encoding: str
    bytes: int


def read_document(source: str, stdin: IO[Any] | None = None, *, limit: int = LIMIT) -> Document:
    """Read one document.

    Args:
        source: a path, or "-" for standard input.
        stdin: what "-" reads; sys.stdin by default. Binary, or text with a `buffer`.
        limit: the most bytes a document may have.

    Raises:
        DocumentError: missing, a folder, a device or pipe, unreadable, too large, empty, binary,
            or in an encoding that cannot be told.
    """
    if source == "-":
        name, data = "standard input", _read_stdin(stdin or sys.stdin, limit)
    else:
        name, data = Path(source).name or source, _read_file(source, limit)
    if not data:
        raise DocumentError(f"{_called(source)} is empty (0 bytes).", _OTHER)
    text, encoding = decode(data, _called(source), "FILE" if source == "-" else source)
    if not text.strip():
        raise DocumentError(f"{_called(source)} holds nothing but white space.", _OTHER)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return Document(name, text, source, encoding, len(data))


def read_documents(
    sources: Sequence[str], stdin: IO[Any] | None = None, *, limit: int = LIMIT
) -> list[Document]:
    """Read several documents, in order; `limit` in bytes is for each.

    Raises:
        UsageError: no source, or "-" more than once.
        DocumentError: as `read_document`, for the first that cannot be read.
    """
    if not sources:
        raise UsageError("No document was given.", "Name a text file, or - for standard input.")
    if list(sources).count("-") > 1:
        raise UsageError("Standard input (-) can be read only once.")
    return [read_document(source, stdin, limit=limit) for source in sources]


def join(documents: Sequence[Document]) -> str:
    """One text of all documents; each gets a heading line with its name if there are several."""
    if len(documents) == 1:
        return documents[0].text
    names = [document.name for document in documents]
    parts = []
    for number, document in enumerate(documents, 1):
        name = document.name if names.count(document.name) == 1 else document.source
        parts.append(f"===== Document {number} of {len(documents)}: {name} =====\n\n")
        parts.append(document.text if document.text.endswith("\n") else document.text + "\n")
        parts.append("\n")
    return "".join(parts[:-1])


_OTHER = "Give a document with text in it."


def _called(source: str) -> str:
    return "Standard input" if source == "-" else f"The document {source}"


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


def _read_stdin(stdin: IO[Any], limit: int) -> bytes:
    if stdin.isatty():
        raise DocumentError(
            "Standard input is a terminal, so there is no document in it.",
            "Pipe a document in: esa ask - 'question' < FILE",
        )
    try:
        data: bytes = getattr(stdin, "buffer", stdin).read(limit + 1)
    except OSError as error:
        raise DocumentError(f"Standard input cannot be read: {error.strerror}.") from error
    if len(data) > limit:
        raise DocumentError(
            f"Standard input is longer than the limit of {_size(limit)}.", "Split the document."
        )
    return data


def _read_file(source: str, limit: int) -> bytes:
    try:
        info = os.stat(source)
        _refuse_special(source, info, limit)
        with open(source, "rb") as stream:
            data = stream.read(limit + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DocumentError(f"There is no document {source}.", _near(source)) from error
    except PermissionError as error:
        raise DocumentError(
            f"The document {source} may not be read by this user.", f"Try: chmod u+r {source}"
        ) from error
    except (OSError, ValueError) as error:
        raise DocumentError(f"The document {source} cannot be read: {error}.") from error
    if len(data) > limit:
        raise _too_large(source, len(data), limit)
    return data


def _refuse_special(source: str, info: os.stat_result, limit: int) -> None:
    """Before opening: opening a pipe would wait for whoever writes to it."""
    if stat.S_ISDIR(info.st_mode):
        raise DocumentError(
            f"{source} is a folder, not a document.",
            f"Name the files in it, for example: {os.path.join(source, '*.md')}",
        )
    if not stat.S_ISREG(info.st_mode):
        raise DocumentError(
            f"{source} is a pipe, socket or device, not a file.",
            f"Give its contents on standard input: esa ask - 'question' < {source}",
        )
    if info.st_size > limit:
        raise _too_large(source, info.st_size, limit)


def _too_large(source: str, size: int, limit: int) -> DocumentError:
    return DocumentError(
        f"The document {source} is {_size(size)}, more than the limit of {_size(limit)}.",
        "Split it and ask about the parts.",
    )


def _near(source: str) -> str:
    folder = os.path.dirname(source) or "."
    try:
        names = difflib.get_close_matches(os.path.basename(source), os.listdir(folder), n=1)
    except OSError:
        return f"There is no folder {folder} either." if not os.path.isdir(folder) else ""
    if not names:
        return "Check the path; it is relative to the current folder."
    return f"Did you mean {os.path.join(os.path.dirname(source), names[0])}?"
