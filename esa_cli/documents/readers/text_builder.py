"""Assembles the text of a document, with marks where its pages and chapters begin."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from esa_cli.errors import DocumentError

STDIN = "standard input"
_Default = TypeVar("_Default")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\xa0]")
_RAISED = re.compile(r"[+−-]?\d+(?:[,–-]\s?\d+)*")
_SURROGATE = re.compile(r"[\ud800-\udfff\ufffe\uffff]")


class Mark(NamedTuple):
    """Says to which page and chapter the text belongs from character `start` on, the level of
    the chapter (1 is the highest), the title and link of the document or item, and the number of
    the row of a table that begins there and has the next rows on the next lines."""

    start: int
    page: int | None = None
    chapter: str | None = None
    level: int | None = None
    title: str | None = None
    link: str | None = None
    row: int | None = None


@dataclass(frozen=True)
class ExtractedText:
    """The text of a document, with marks where pages and chapters begin, descriptions of missing
    contents, and, for plain text, the Python name of the encoding. Lines end with \\n."""

    text: str
    marks: tuple[Mark, ...] = ()
    missing: tuple[str, ...] = ()
    encoding: str = ""


class TextBuilder:
    """Builds the text of a document, and the marks of pages and chapters, from pieces of text.

    Callers set `page`, `chapter`, `level` and `row` before the first text that they belong to.
    `left_out` counts omitted pictures, charts and other contents by their name in the plural."""

    def __init__(self) -> None:
        self.page: int | None = None
        self.chapter: str | None = None
        self.level: int | None = None
        self.row: int | None = None
        self.left_out = Counter[str]()
        self._parts: list[str] = []
        self._length = 0
        self._newlines = 0  # line breaks to write before the next piece
        self._space = False  # whether to write a space before the next piece
        self._lead = ""
        self._marks: list[Mark] = []

    def flow(self, text: str) -> None:
        """Appends words of a paragraph, and replaces any white space by one space."""
        words = " ".join(text.split())
        self._space |= text[:1].isspace()
        if words:
            self._append_text_piece(words)
            self._space = text[-1].isspace()

    def add_exact_text(self, text: str) -> None:
        """Appends text without changing its white space."""
        if text:
            self._append_text_piece(text.replace("\r\n", "\n").replace("\r", "\n"))

    def set_prefix_of_next_piece(self, prefix: str) -> None:
        """Sets a text, such as a list's bullet, that precedes the next piece of text."""
        self._lead = prefix

    def append_exponent_sign(self, next_text: str) -> None:
        """Appends ^ if `next_text`, which the caller appends next, is an exponent, as in 10^6."""
        last = "" if self._newlines or self._space or not self._parts else self._parts[-1][-1]
        if last.isalnum() and _RAISED.fullmatch(next_text.rstrip()):
            self._append_text_piece("^")

    def break_line(self) -> None:
        """Ends the current line of text; a second call leaves an empty line."""
        self._newlines = min(2, self._newlines + 1)

    def end_line(self) -> None:
        """Starts a new line for the next piece of text."""
        self._newlines = max(1, self._newlines)

    def start_paragraph(self) -> None:
        """Leaves an empty line before the next piece of text."""
        self._newlines = 2

    def append_document(self, extracted: ExtractedText, name: str) -> None:
        """Appends the text of a document inside this document, whose `name` begins its chapters."""
        page, chapter, level = self.page, self.chapter, self.level
        self.start_paragraph()
        marks = [*extracted.marks]
        if not marks or marks[0].start:
            marks.insert(0, Mark(0))
        ends = [mark.start for mark in marks[1:]] + [len(extracted.text.rstrip("\n"))]
        for mark, end in zip(marks, ends, strict=True):
            self.page, self.level, self.row = mark.page, mark.level, mark.row
            self.chapter = f"{name}: {mark.chapter}" if mark.chapter else name
            self.add_exact_text(extracted.text[mark.start : end])
        self.page, self.chapter, self.level, self.row = page, chapter, level, None

    def write_edge_lines(self, lines: Iterable[str]) -> None:
        """Writes the lines of headers before the text, or of footers as a chapter, each once."""
        if self._parts:
            self.page, self.chapter, self.level = None, "Footers", 1
        self.start_paragraph()
        for line in dict.fromkeys(" ".join(line.split()) for line in lines):
            self.end_line()
            self.flow(line)
        self.start_paragraph()

    def result(self, missing: Iterable[str] = ()) -> ExtractedText:
        """Returns the built text, with descriptions of what is `missing` and left out."""
        text = "".join(self._parts)
        counted = (f"{what} are left out: {count}" for what, count in self.left_out.items())
        return ExtractedText(text + "\n" if text else "", tuple(self._marks), (*counted, *missing))

    def _append_text_piece(self, text: str) -> None:
        gap = "\n" * self._newlines or " " * self._space if self._length else ""
        self._length += len(gap)
        last = self._marks[-1] if self._marks else Mark(0)
        if (last.page, last.chapter, last.row) != (self.page, self.chapter, self.row):
            place = self.page, self.chapter, self.level
            self._marks.append(Mark(self._length, *place, row=self.row))
        text = replace_unprintable(self._lead + text)
        self._parts += [gap, text] if gap else [text]
        self._length += len(text)
        self._newlines, self._space, self._lead = 0, False, ""


def replace_unprintable(text: str) -> str:
    """Replaces control characters and no-break spaces by as many spaces."""
    return _SURROGATE.sub("\ufffd", _UNPRINTABLE.sub(" ", text))


def parse_whole_number(text: str | None, default: _Default) -> int | _Default:
    """Returns the number of at most nine digits that an attribute has, or else `default`."""
    return int(text) if text and text.isdecimal() and len(text) < 10 else default


def label_document(document_name: str) -> str:
    """Returns words for a document in a message, such as `the document a.pdf`."""
    return STDIN if document_name == STDIN else f"the document {document_name}"


def shorten_name_list(names: Sequence[str], shown_count: int = 3) -> str:
    """Joins names to a text that lists only the first of many: "a.png, b.png and 3 more"."""
    others = len(names) - shown_count
    return ", ".join(names[:shown_count]) + (f" and {others:,} more" if others > 0 else "")


def make_damage_error(document_name: str, format_name: str, reason: str) -> DocumentError:
    return DocumentError(
        f"{label_document(document_name)} cannot be read as {format_name}; it is damaged or cut "
        f"off ({' '.join(reason.split())})",
        "get the file again; if another program can open the file, save a copy with that program",
    )


def import_package(module: str, package: str, document_name: str, *, extra: str = "") -> Any:
    """Imports a Python package that is needed to read a document. Raises DocumentError: it is not
    installed; the hint names the `extra` of esa-cli."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        problem = f"cannot be read: the library {package} is not installed"
        hint = f"pip install 'esa-cli[{extra}]'" if extra else f"pip install {package}"
        raise DocumentError(f"{label_document(document_name)} {problem}", hint) from error
