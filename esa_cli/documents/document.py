"""Reads documents from files, folders, patterns or standard input.

A `Document` maps each character of its text to a page, line and chapter.
"""

from __future__ import annotations

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
from esa_cli.documents.readers.text_builder import STDIN, Mark, label_document
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
    "SourceFiles",
    "TextLocation",
    "gather",
    "join_documents",
    "read_document",
    "read_documents",
    "shard_of",
    "source_files",
]  # fmt: skip

LIMIT = 1 << 30


class TextLocation(NamedTuple):
    """The location of a character: page and chapter, if any, and the line of the text, from 1."""

    page: int | None
    line: int
    chapter: str | None


@dataclass(frozen=True)
class Document:
    """One document: its text with \\n line endings, and where it came from.

    Attributes:
        source: the path as given, or "-" for standard input. bytes: the file's length.
        encoding, marks, missing: the fields of `ExtractedText` with these names.
        stamp: the file's `file_stamp` before reading, or None if no file was read just now."""

    name: str
    text: str
    source: str
    encoding: str
    bytes: int
    marks: tuple[Mark, ...] = ()
    missing: tuple[str, ...] = ()
    stamp: str | None = field(default=None, compare=False)

    def place(self, offset: int) -> TextLocation:
        """Returns the location of the character at `offset`, at most the text's length."""
        if not 0 <= offset <= len(self.text):
            raise IndexError(f"offset {offset} is outside a text of {len(self.text)} characters")
        number = bisect_right(self.marks, offset, key=lambda mark: mark.start) - 1
        mark = self.marks[number] if number >= 0 else Mark(0)
        line = bisect_left(self._newline_offsets, offset) + 1
        return TextLocation(mark.page, line, mark.chapter)

    @cached_property
    def _newline_offsets(self) -> array[int]:
        return array("q", (newline.start() for newline in re.finditer("\n", self.text)))


def read_document(source: str, stdin: IO[Any] | None = None, *, limit: int = LIMIT) -> Document:
    """Reads one document into text.

    Args:
        source: a path, or "-" for standard input.
        stdin: the stream that "-" reads, sys.stdin by default; binary, or text with a `buffer`.
        limit: the most bytes a document may have.

    Raises:
        DocumentError: missing, a folder, a device or pipe, unreadable, too large, empty, binary,
            or in an encoding that cannot be told."""
    stamp, path = None, STDIN if source == "-" else source
    if source == "-":
        data = _read_stdin(stdin or sys.stdin, limit)
    else:
        stamp = ""
        with suppress(OSError, ValueError):  # reading says what is wrong
            stamp = file_stamp(source)
        data = _read_file(source, limit)
    if len(data) > limit:
        raise _size_error(path, len(data), limit)
    extracted = readers.extract_text(data, path)
    text, marks, missing = extracted.text, extracted.marks, extracted.missing
    name, size = Path(path).name or path, len(data)
    return Document(name, text, source, extracted.encoding, size, marks, missing, stamp)


@dataclass(frozen=True)
class GatheredDocuments:
    """The documents that were read, in order, and the files that were left out."""

    documents: tuple[Document, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    def without_copies(self) -> GatheredDocuments:
        """Returns documents with different texts only, and lists the copies as left out."""
        unique: dict[str, Document] = {}
        copies = []
        for document in self.documents:
            if unique.setdefault(document.text, document) is not document:
                why = f"{document.source}: the same text again, asked once"
                copies.append(LeftOut(document.source, why))
        return GatheredDocuments(tuple(unique.values()), (*self.left_out, *copies))


def shard_of(found: SourceFiles, shard: WorkShard) -> SourceFiles:
    """Returns the files of a shard, each once; every shard lists what is left out of folders."""
    if shard.whole:
        return found
    unique: dict[str, Source] = {}
    for source in found.sources:
        unique.setdefault(source.path, source)
    return SourceFiles(tuple(shard.take(unique.values())), found.left_out, divided=True)


def gather(found: SourceFiles, read: Callable[[str], Document] | None = None) -> GatheredDocuments:
    """Reads the files of `source_files` by the function `read`, which is `read_document` by
    default.

    An unreadable file of a folder or pattern is left out. Raises DocumentError: a file that was
    named cannot be read; or nothing can be read, unless other shards have the rest."""
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
    """Reads several documents, in order; a folder or pattern stands for the files that it holds.
    Raises UsageError: no source, or "-" more than once; DocumentError as `gather`.

    Args:
        limit: in bytes, for each document. say: called with a line for each file or folder that
            was left out, and why."""
    if not sources:
        raise UsageError("no document was given", "name a document, or - for standard input")
    found = gather(source_files(sources), lambda path: read_document(path, stdin, limit=limit))
    for left_out in found.left_out:
        say(left_out.line)
    return list(found.documents)


def join_documents(documents: Sequence[Document]) -> str:
    """Joins documents into one text; a line with its name precedes each of several documents."""
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


def _read_stdin(stdin: IO[Any], limit: int) -> bytes:
    if stdin.isatty():
        hint = "pipe a document in: esa ask - 'question' < FILE"
        raise DocumentError("standard input is a terminal, not a document", hint)
    try:
        data: bytes = getattr(stdin, "buffer", stdin).read(limit + 1)
    except OSError as error:
        raise DocumentError(f"standard input cannot be read: {error.strerror}") from error
    return data


def _read_file(source: str, limit: int) -> bytes:
    try:
        info = os.stat(source)
        if stat.S_ISDIR(info.st_mode):
            hint = f"name a file in it, for example: {os.path.join(source, 'notes.md')}"
            raise DocumentError(f"{source} is a folder, not a document", hint)
        if not stat.S_ISREG(info.st_mode):  # opening a pipe would wait for whoever writes to it
            raise DocumentError(
                f"{source} is a pipe, socket or device, not a file",
                f"give its contents on standard input: esa ask - 'question' < {source}",
            )
        if info.st_size > limit:
            raise _size_error(source, info.st_size, limit)
        with open(source, "rb") as stream:
            return stream.read(limit + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DocumentError(f"there is no document {source}", _suggest_path(source)) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        hint = f"try: chmod u+r {source}" if isinstance(error, PermissionError) else ""
        raise DocumentError(f"the document {source} cannot be read: {reason}", hint) from error


def _size_error(name: str, size: int, limit: int) -> DocumentError:
    return DocumentError(
        f"{label_document(name)} is {size_text(size)}, more than the limit of {size_text(limit)}",
        "split the document and ask about its parts",
    )


def _suggest_path(source: str) -> str:
    """Returns a hint for a missing file: the existing path with the most similar name."""
    import difflib

    if source.startswith(("http://", "https://")):
        return "documents are files: fetch the page first, and name the file"
    folder, name = os.path.split(source)
    try:
        others = os.listdir(folder or ".")
    except OSError:
        return f"there is no folder {folder} either"
    stems = {Path(other).stem: other for other in others}  # a common ending is no likeness
    for similar in difflib.get_close_matches(Path(name).stem, stems, n=1):
        return f"did you mean {os.path.join(folder, stems[similar])}?"
    return "check the path; it is relative to the current folder"
