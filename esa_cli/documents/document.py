"""Documents as read: from files, folders, patterns or standard input to `Document`.

A `Document` knows the page, line and chapter of each character of its text.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import sys
import warnings
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple

from esa_cli.documents import readers
from esa_cli.documents.readers.text_builder import STDIN, ExtractedText, Mark, label
from esa_cli.documents.sources import LeftOut, Source, SourceFiles, source_files
from esa_cli.errors import DocumentError, UsageError
from esa_cli.system.files import file_stamp
from esa_cli.system.machine import size_text
from esa_cli.system.progress import WorkShard

__all__ = [
    "Document",
    "GatheredDocuments",
    "LeftOut",
    "Mark",
    "Place",
    "SourceFiles",
    "gather",
    "join",
    "read_document",
    "read_documents",
    "shard_of",
    "source_files",
]

LIMIT = 1 << 30


class Place(NamedTuple):
    """The location of a character: page and chapter, if any; line of the text, from 1."""

    page: int | None
    line: int
    chapter: str | None


@dataclass(frozen=True)
class Document:
    """One document: its text with \\n line endings, and where it came from.

    `source` is the path as given, or "-" for standard input; `bytes` the file's length; `encoding`
    the Python name of a plain text's encoding. `marks` are the starts of pages and chapters;
    `missing` says what the text lacks of the file. `stamp`: the file's `file_stamp`
    before it was read; None: it was not read from a file now.
    """

    name: str
    text: str
    source: str
    encoding: str
    bytes: int
    marks: tuple[Mark, ...] = ()
    missing: tuple[str, ...] = ()
    stamp: str | None = field(default=None, compare=False)

    def place(self, offset: int) -> Place:
        """The location of the character at `offset`, at most the text's length, or IndexError."""
        if not 0 <= offset <= len(self.text):
            raise IndexError(f"character {offset} of a text of {len(self.text)}")
        number = bisect_right(self._starts, offset) - 1
        mark = self.marks[number] if number >= 0 else Mark(0)
        return Place(mark.page, bisect_left(self._newlines, offset) + 1, mark.chapter)

    @cached_property
    def _starts(self) -> array[int]:
        return array("q", (mark.start for mark in self.marks))

    @cached_property
    def _newlines(self) -> array[int]:
        return array("q", (newline.start() for newline in re.finditer("\n", self.text)))


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
    stamp, path = None, STDIN if source == "-" else source
    if source == "-":
        data = _bytes_of_stdin(stdin or sys.stdin, limit)
    else:
        stamp = ""
        with suppress(OSError, ValueError):  # reading says what is wrong
            stamp = file_stamp(source)
        data = _bytes_of_file(source, limit)
    if len(data) > limit:
        raise _too_large(path, len(data), limit)
    extracted = readers.read(data, path) if data else ExtractedText("")
    if not extracted.text or extracted.text.isspace():
        what = "has nothing but white space" if data else "is empty (0 bytes)"
        raise DocumentError(f"{label(path)} {what}", "give a document with text in it")
    return Document(
        Path(path).name or path,
        extracted.text,
        source,
        extracted.encoding,
        len(data),
        extracted.marks,
        extracted.missing,
        stamp,
    )


@dataclass(frozen=True)
class GatheredDocuments:
    """The documents that names mean, in order, and what was left out."""

    documents: tuple[Document, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    def without_copies(self) -> GatheredDocuments:
        """Each text once; copies are listed as left out."""
        first: dict[str, Document] = {}
        copies = []
        for document in self.documents:
            if first.setdefault(document.text, document) is not document:
                why = f"{document.source}: the same text again, asked once"
                copies.append(LeftOut(document.source, why))
        return GatheredDocuments(tuple(first.values()), (*self.left_out, *copies))


def shard_of(found: SourceFiles, shard: WorkShard) -> SourceFiles:
    """The files of a shard, each once; what is left out of folders is in every shard."""
    if shard.whole:
        return found
    unique: dict[str, Source] = {}
    for source in found.sources:
        unique.setdefault(source.path, source)
    return SourceFiles(tuple(shard.take(unique.values())), found.left_out, divided=True)


def gather(found: SourceFiles, read: Callable[[str], Document] | None = None) -> GatheredDocuments:
    """Reads the files of `source_files`; every command gets its documents here.

    A file of a folder or pattern that cannot be read is left out; a named one is an error.

    Args:
        read: `read_document`, or one that remembers.

    Raises:
        DocumentError: as `read_document`, for the first that was named and cannot be read; or
            nothing can be read, unless other shards have the rest.
    """
    documents, left_out, refusals = [], [], list[DocumentError]()
    for path, folder in found.sources:
        try:
            documents.append((read or read_document)(path))
        except DocumentError as error:
            if not folder:
                raise
            refusals.append(error)
            left_out.append(LeftOut(path, f"{error.message}; {error.hint}".rstrip("; ")))
    if refusals and not documents and not found.divided:
        raise refusals[0]
    return GatheredDocuments(tuple(documents), (*found.left_out, *left_out))


def read_documents(
    sources: Sequence[str],
    stdin: IO[Any] | None = None,
    *,
    limit: int = LIMIT,
    say: Callable[[str], None] = warnings.warn,
) -> list[Document]:
    """Read several documents, in order; folders and patterns mean the files they hold.

    Args:
        limit: in bytes, for each. say: is told what was left out of folders and patterns, and why;
            a file of theirs that cannot be read is left out too.

    Raises:
        UsageError: no source, or "-" more than once.
        DocumentError: as `gather`.
    """
    if not sources:
        raise UsageError("no document was given", "name one, or - for standard input")
    found = gather(source_files(sources), lambda path: read_document(path, stdin, limit=limit))
    for left_out in found.left_out:
        say(left_out.line)
    return list(found.documents)


def join(documents: Sequence[Document]) -> str:
    """One text of all documents; if there are several, a line with its name is above each."""
    if len(documents) == 1:
        return documents[0].text
    names = [document.name for document in documents]
    parts = []
    for number, document in enumerate(documents, 1):
        name = document.name if names.count(document.name) == 1 else document.source
        name = name.encode("utf-8", "replace").decode()  # a file's name may be no UTF-8
        head = f"===== Document {number} of {len(documents)}: {name} ====="
        parts.append(f"{head}\n\n{document.text.removesuffix(chr(10))}\n")
    return "\n".join(parts)


def _bytes_of_stdin(stdin: IO[Any], limit: int) -> bytes:
    if stdin.isatty():
        raise DocumentError(
            "standard input is a terminal, so there is no document in it",
            "pipe a document in: esa ask - 'question' < FILE",
        )
    try:
        data: bytes = getattr(stdin, "buffer", stdin).read(limit + 1)
    except OSError as error:
        raise DocumentError(f"standard input cannot be read: {error.strerror}") from error
    return data


def _bytes_of_file(source: str, limit: int) -> bytes:
    try:
        info = os.stat(source)
        if stat.S_ISDIR(info.st_mode):
            raise DocumentError(
                f"{source} is a folder, not a document",
                f"name a file in it, for example: {os.path.join(source, 'notes.md')}",
            )
        if not stat.S_ISREG(info.st_mode):  # opening a pipe would wait for whoever writes to it
            raise DocumentError(
                f"{source} is a pipe, socket or device, not a file",
                f"give its contents on standard input: esa ask - 'question' < {source}",
            )
        if info.st_size > limit:
            raise _too_large(source, info.st_size, limit)
        with open(source, "rb") as stream:
            return stream.read(limit + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DocumentError(f"there is no document {source}", _near(source)) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        hint = f"try: chmod u+r {source}" if isinstance(error, PermissionError) else ""
        raise DocumentError(f"the document {source} cannot be read: {reason}", hint) from error


def _too_large(name: str, size: int, limit: int) -> DocumentError:
    return DocumentError(
        f"{label(name)} is {size_text(size)}, more than the limit of {size_text(limit)}",
        "split it and ask about the parts",
    )


def _near(source: str) -> str:
    """A hint for a file that is not there."""
    if source.startswith(("http://", "https://")):
        return "documents are files: fetch the page first, and name the file"
    folder, name = os.path.split(source)
    try:
        others = os.listdir(folder or ".")
    except OSError:
        return f"there is no folder {folder} either"
    stems = {Path(other).stem: other for other in others}  # a common ending is no likeness
    for near in difflib.get_close_matches(Path(name).stem, stems, n=1):
        return f"did you mean {os.path.join(folder, stems[near])}?"
    return "check the path; it is relative to the current folder"
