"""Reads documents from files, folders, patterns or standard input, and finds pages, lines and
sentences of texts. A newline ends a sentence in verse, code and tables, not in wrapped prose."""

from __future__ import annotations

import os
import re
import stat
import sys
import warnings
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple

from esa_cli.documents import readers
from esa_cli.documents.readers.text_builder import STDIN, Mark, label_document
from esa_cli.documents.sources import (
    DocumentFilePath,
    InputFiles,
    LeftOutFiles,
    find_files,
    make_missing_document_error,
)
from esa_cli.documents.zotero import name_zotero_item
from esa_cli.errors import DocumentError, UsageError
from esa_cli.system.files import compute_file_stamp
from esa_cli.system.machine import format_size
from esa_cli.system.progress import WorkShard

LIMIT = 1 << 30
"""The maximum size of a document in bytes."""
LONGEST = 600
"""Maximum characters of a sentence; a longer one is cut at its lines, or else at spaces."""
PROSE = range(40, 121)
"""Lengths in characters of a line of prose that may have been wrapped to a width."""

_STOPS = "。！？｡।॥؟۔։።፧။។៕"
"""Ends of sentences in scripts that need no space after them."""
_CLOSING = r"(?:[\"'”’“‘»«›‹)\]]|[ \u00a0\u202f]»(?=\s|$))*+"
END = re.compile(
    rf"[.!?…](?<![.!?…].)[.!?…]*+{_CLOSING}(?=\s|$)"
    rf"|(?:\u037e|(?<=[\u0370-\u03ff\u1f00-\u1fff]);){_CLOSING}(?=\s|$)"  # Greek question mark
    rf"|(?:[{_STOPS}]|(?<!\d)．)[.!?…{_STOPS}]*+[\"'”’»」』｣）》〉】〕)\]]*+(?!と)|\n"
)
_SHORT = """
Mr Mrs Ms Dr Prof St Jr Sr Capt Col Gen Fig vs Messrs Lt Sgt Rev Hon Gov Mt Ste Mme Mmes Mlle Mlles
MM Mgr Sra Srta Dra Hr Sig Dott Avv Chr Mio Mrd bzw ggf inkl vgl sog evtl ca approx viz cf Fr Fa rd
med gem exkl zzgl Hrsg éd av apr Av ex eks Ing Lic Gral Excmo Excma Dña Dn EE Arq Dhr mevr bijv Ir
Drs drs np tj ul prof им Им ул напр проф акад св κ κα डॉ प्रो पं
"""
SHORT = frozenset(_SHORT.split())
"""Abbreviations before a name or a noun: their full stop ends no sentence."""
_NUMBERED = """
no nos nr nrs p pp vol vols fig figs art arts ch chap cap sec sect par abs kap abb bd ed tab eq para
núm pág págs pag pagg стр рис гл табл al apdo tel str blz kl ss bl št čl bkz
"""
NUMBERED = frozenset(_NUMBERED.split())
"""Abbreviations, in lower case, that end no sentence before a number."""
NUMBER = re.compile(r"\s*(?:\d|[IVXLC]{2,}\b)")
LETTERS = re.compile(r"(?<![\w\u093e-\u094d])([\w\u093e-\u094d]+)\.$")
OF_SEVERAL = re.compile(r"(?<!\w)(?!(?:a|p)\.\s?m\.)[a-z]\.\s?[a-z]\.$")
"""The end of an abbreviation of several letters (`i.e.`, `z. B.`), but not of a.m. and p.m."""
MORE_LETTERS = re.compile(r"\s?[^\W\d_]\.(?!\w\w)")
_MONTHS = (
    "Januar|Jänner|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember"
)
DATED = re.compile(rf"\s(?:(?:{_MONTHS}|Jahrhundert|Jh)\b|\d{{1,2}}\.\s?\d{{2,4}}\b)")
"""What follows the day in a German date, or the number of a century."""
ORDINAL = re.compile(r"\b(?:[Dd]er|das|dem|den|des|im|vom|zum|zur|beim)\s\d{1,2}\.$")
MONTH_NUMBER = re.compile(r"\b\d{1,2}\.\s?\d{1,2}\.$")
LOOK_BACK = 24
"""Characters before and after a full stop that tell whether it ends a sentence."""
MIN_PROSE_WORDS = 5
CELL = re.compile(r"[^:;|]+: ")
"""The beginning of a cell of a table, which has its column's name."""


class TextLocation(NamedTuple):
    """A place in a text: the line, or row of a table, from 1, and what the document's mark says."""

    page: int | None
    line: int
    chapter: str | None
    title: str | None
    link: str | None


@dataclass(frozen=True)
class Document:
    """A document's text with \\n line endings, and the file from which the text was read.

    Args:
        source: the path as the user gave it, or "-" for standard input.
        encoding, marks, missing: as in `ExtractedText`.
        bytes: the length of the file.
        stamp: `compute_file_stamp` before the file was read, or None if no file was read."""

    name: str
    text: str = field(repr=False)  # a notebook would print a whole book
    source: str
    encoding: str
    bytes: int
    marks: tuple[Mark, ...] = field(default=(), repr=False)
    missing: tuple[str, ...] = ()
    stamp: str | None = field(default=None, compare=False)

    def place(self, offset: int) -> TextLocation:
        """Returns the page, line or row, and chapter of the character at `offset` in the text."""
        if not 0 <= offset <= len(self.text):
            raise IndexError(f"offset {offset} is outside a text of {len(self.text)} characters")
        number = bisect_right(self.marks, offset, key=lambda mark: mark.start) - 1
        mark = self.marks[number] if number >= 0 else Mark(0)
        line = bisect_left(self._newline_offsets, offset) + 1
        if mark.row is not None:
            line += mark.row - bisect_left(self._newline_offsets, mark.start) - 1
        return TextLocation(mark.page, line, mark.chapter, mark.title, mark.link)

    @cached_property
    def _newline_offsets(self) -> array[int]:
        return array("q", (newline.start() for newline in re.finditer("\n", self.text)))


def read_document(
    source: str | os.PathLike[str], stdin: IO[Any] | None = None, *, limit: int = LIMIT
) -> Document:
    """Reads the document at a path and extracts its text; "-" reads `stdin`, by default sys.stdin.

    Raises DocumentError: the document is missing, a folder, device or pipe, unreadable, larger than
    `limit` bytes, empty, binary, or in an unknown encoding."""
    source = os.fspath(source)
    stamp, path = None, STDIN if source == "-" else source
    if source == "-":
        data = _read_stdin_bytes(stdin or sys.stdin, limit)
    else:
        stamp = ""
        with suppress(OSError, ValueError):  # `_read_document_bytes` reports what is wrong
            stamp = compute_file_stamp(source)
        data = _read_document_bytes(source, limit)
    if len(data) > limit:
        raise _make_document_size_error(path, len(data), limit)
    extracted = readers.extract_text(data, path)
    text, missing = extracted.text, extracted.missing
    name, marks = Path(path).name or path, name_zotero_item(path, extracted.marks)
    return Document(name, text, source, extracted.encoding, len(data), marks, missing, stamp)


@dataclass(frozen=True)
class GatheredDocuments:
    """The documents that were read, in order, and the files that were left out."""

    documents: tuple[Document, ...] = ()
    left_out: tuple[LeftOutFiles, ...] = ()

    def remove_repeated_texts(self) -> GatheredDocuments:
        """Returns one document for each different text, and lists the other copies as left out."""
        unique: dict[str, Document] = {}
        copies = []
        for document in self.documents:
            if unique.setdefault(document.text, document) is not document:
                why = f"{document.source}: the same text again, asked once"
                copies.append(LeftOutFiles(document.source, why))
        return GatheredDocuments(tuple(unique.values()), (*self.left_out, *copies))


def select_files_of_shard(files: InputFiles, shard: WorkShard) -> InputFiles:
    """Returns the files that one of several processes (shard) reads, and all left-out files."""
    unique: dict[str, DocumentFilePath] = {}
    for source in files.sources:
        unique.setdefault(source.path, source)
    return InputFiles(tuple(shard.select_items(unique.values())), files.left_out, divided=True)


def gather_documents(
    files: InputFiles, read_file: Callable[[str], Document] | None = None
) -> GatheredDocuments:
    """Reads each file, but leaves out unreadable ones of a folder or pattern. Raises DocumentError:
    a named file cannot be read; or nothing can be read, and no other shard has the rest."""
    documents, left_out, refusals = [], [], list[DocumentError]()
    for path, folder in files.sources:
        try:
            documents.append((read_file or read_document)(path))
        except DocumentError as error:
            if not folder:
                raise
            refusals.append(error)
            left_out.append(LeftOutFiles(path, f"{error.message}; {error.hint}".rstrip("; ")))
    if refusals and not documents and not files.divided:
        raise refusals[0]
    return GatheredDocuments(tuple(documents), (*files.left_out, *left_out))


def read_documents(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    stdin: IO[Any] | None = None,
    say: Callable[[str], None] = warnings.warn,
) -> list[Document]:  # fmt: skip
    """Reads one or several documents, in order; a folder or pattern stands for its files.
    `say` is called with a message for each file or folder that is left out. Raises UsageError:
    `sources` is empty, or has "-" more than once. DocumentError: a document that was named cannot
    be read, or none of the documents can be read."""
    sources = [sources] if isinstance(sources, str | os.PathLike) else sources
    if not sources:
        raise UsageError("no document was given", "name a document, or - for standard input")
    files = find_files([os.fspath(source) for source in sources])
    found = gather_documents(files, lambda path: read_document(path, stdin))
    for left_out in found.left_out:
        say(left_out.message)
    return list(found.documents)


def join_texts(documents: Sequence[Document]) -> str:
    """Joins document texts, each below a line with the document's name if there are several."""
    if len(documents) == 1:
        return documents[0].text
    names = [document.name for document in documents]
    parts = []
    for number, document in enumerate(documents, 1):
        name = document.name if names.count(document.name) == 1 else document.source
        name = name.encode("utf-8", "replace").decode()  # a file's name may not be UTF-8
        head = f"===== Document {number} of {len(documents)}: {name} ====="
        parts.append(f"{head}\n\n{document.text.removesuffix(chr(10))}\n")
    return "\n".join(parts)


def _read_stdin_bytes(stdin: IO[Any], byte_limit: int) -> bytes:
    if stdin.isatty():
        hint = "pipe a document in: esa ask - 'question' < FILE"
        raise DocumentError("standard input is a terminal, not a document", hint)
    try:
        return bytes(getattr(stdin, "buffer", stdin).read(byte_limit + 1))
    except OSError as error:
        raise DocumentError(f"standard input cannot be read: {error.strerror}") from error


def _read_document_bytes(path: str, byte_limit: int) -> bytes:
    try:
        info = os.stat(path)
        if stat.S_ISDIR(info.st_mode):
            hint = f"name a file in it, for example: {os.path.join(path, 'notes.md')}"
            raise DocumentError(f"{path} is a folder, not a document", hint)
        if not stat.S_ISREG(info.st_mode):  # opening a pipe would wait for whoever writes to it
            hint = f"give the contents on standard input: esa ask - 'question' < {path}"
            raise DocumentError(f"{path} is a pipe, socket or device, not a file", hint)
        if info.st_size > byte_limit:
            raise _make_document_size_error(path, info.st_size, byte_limit)
        with open(path, "rb") as stream:
            return stream.read(byte_limit + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise make_missing_document_error(path) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        hint = f"try: chmod u+r {path}" if isinstance(error, PermissionError) else ""
        raise DocumentError(f"the document {path} cannot be read: {reason}", hint) from error


def _make_document_size_error(document_name: str, size: int, size_limit: int) -> DocumentError:
    sizes = f"{format_size(size)}, more than the limit of {format_size(size_limit)}"
    hint = "split the document and ask about its parts"
    return DocumentError(f"{label_document(document_name)} is {sizes}", hint)


def find_sentence_ends(text: str, paragraph_start: int, paragraph_end: int) -> list[int]:
    """Returns the offsets at which a paragraph's sentences, cut at LONGEST, and lines end."""
    ends: list[int] = []
    start = paragraph_start
    for end in (*_iterate_sentence_ends(text, paragraph_start, paragraph_end), paragraph_end):
        while end - start > LONGEST:
            cut = text.rfind("\n", start + 1, start + LONGEST)
            cut = cut if cut > start else text.rfind(" ", start + 1, start + LONGEST)
            start = cut + 1 if cut > start else start + LONGEST
            ends.append(start)
        ends.append(end)
        start = end
    return ends


def _iterate_sentence_ends(text: str, paragraph_start: int, paragraph_end: int) -> Iterator[int]:
    line = paragraph_start
    for found in END.finditer(text, paragraph_start, paragraph_end):
        end = found.end()
        if found[0] != "\n":
            if not (
                text[end : end + 40].lstrip().lstrip("—–―- ")[:1].islower()
                or _is_full_stop_of_abbreviation(text, paragraph_start, end)
            ):
                yield end
            continue
        broken, line = text[line : end - 1], end
        if not _is_wrapped_prose_line(broken, text[end : end + 1]):
            yield end


def _is_full_stop_of_abbreviation(text: str, paragraph_start: int, stop_end: int) -> bool:
    """Whether the full stop that ends at `stop_end` is of an abbreviation or an ordinal number."""
    before = text[max(paragraph_start, stop_end - LOOK_BACK) : stop_end]
    found = LETTERS.search(before)
    if found is None:
        return False
    word, following_text = found[1], text[stop_end : stop_end + LOOK_BACK]
    if word in SHORT or (len(word) == 1 and word.isalpha() and not word.islower()):
        return True
    number = NUMBER.match(following_text) is not None
    if len(word) == 1 and word.isalpha():
        return bool(number or OF_SEVERAL.search(before) or MORE_LETTERS.match(following_text))
    if word.isdigit() and len(word) <= 2:
        month = number and MONTH_NUMBER.search(before)
        return bool(month or DATED.match(following_text) or ORDINAL.search(before))
    return number and (word.lower() in NUMBERED or word.endswith("str"))


def _is_wrapped_prose_line(line: str, following_text: str) -> bool:
    """Returns True if a line is wrapped prose, so that its sentence may continue in the next."""
    if not (following_text.isalpha() or following_text in "\"'“‘(") or is_table_row(line):
        return False
    return len(line) in PROSE and len(line.split()) >= MIN_PROSE_WORDS and line[:1] not in "#|>-*"


def is_table_row(line: str) -> bool:
    """Whether a line is a row of a table, as the readers write it: `Client: Ann; Town: Ulm`, also
    with a first cell without a name, or at least two cells with ` | ` between them."""
    return " | " in line or sum(map(bool, map(CELL.match, line.split("; ")[:3]))) > 1


def strip_span(text: str, start: int, end: int) -> tuple[int, int]:
    """Returns `start` and `end` without the white space at both ends of `text[start:end]`."""
    words = text[start:end].lstrip()
    start = end - len(words)
    return start, start + len(words.rstrip())
