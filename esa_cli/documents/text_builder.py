"""What every reader gives: text, marks for pages and chapters, and what the text lacks.

`TextBuilder` puts text together from the pieces of a marked-up document: white space inside a
paragraph flows, paragraphs stand apart, and a mark begins at the first letter it holds for. It does
not know any format.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from esa_cli.errors import DocumentError

UNPACKED_LIMIT = 1 << 30
"""The most bytes a packed document may unpack to."""
XML_LIMIT = 1 << 26
"""The most bytes of one XML or HTML part of it: as a tree a part takes eight times its size, the
worst one forty times."""

STDIN = "standard input"
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\xa0]")
_RAISED = re.compile(r"[+−-]?\d+")
_SURROGATE = re.compile(r"[\ud800-\udfff\ufffe\uffff]")


class Mark(NamedTuple):
    """From character `start` of the extracted text on, this page and chapter hold."""

    start: int
    page: int | None = None
    chapter: str | None = None


@dataclass(frozen=True)
class ExtractedText:
    """A document's text.

    Args:
        text: with \\n line endings. marks: ascending starts, no two alike.
        missing: what the document has and the text has not, in words, as "page 7 has no text".
        encoding: the Python name of the encoding of a plain text; empty for other formats.
    """

    text: str
    marks: tuple[Mark, ...] = ()
    missing: tuple[str, ...] = ()
    encoding: str = ""


class TextBuilder:
    """Text from pieces in reading order."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._length = 0
        self._gap = 0  # newlines owed before the next piece
        self._space = False  # a space owed before it
        self._lead = ""
        self._marks: list[Mark] = []
        self._page: int | None = None
        self._chapter: str | None = None

    def flow(self, text: str) -> None:
        """Words of a paragraph: any white space between them is one space."""
        words = " ".join(text.split())
        self._space |= text[:1].isspace()
        if words:
            self._put(words)
            self._space = text[-1].isspace()

    def exact(self, text: str) -> None:
        """Text whose white space counts."""
        if text:
            self._put(text.replace("\r\n", "\n").replace("\r", "\n"))

    def lead(self, text: str) -> None:
        """What stands before the next piece, on its line, as a list's bullet."""
        self._lead = text

    def raised(self, text: str) -> None:
        """`text` comes next and stands above the line; 10^6 would else become 106."""
        last = "" if self._gap or self._space or not self._parts else self._parts[-1][-1]
        if last.isalnum() and _RAISED.fullmatch(text.rstrip()):
            self._put("^")

    def line(self) -> None:
        """Ends the line; twice is an empty line."""
        self._gap = min(2, self._gap + 1)

    def end_line(self) -> None:
        """What comes next stands on a line of its own."""
        self._gap = max(1, self._gap)

    def paragraph(self) -> None:
        """What comes next stands behind an empty line."""
        self._gap = 2

    def page(self, number: int | None) -> None:
        """What comes next is on this page."""
        self._page = number

    @property
    def begun(self) -> bool:
        """Whether there is text already."""
        return bool(self._length)

    @property
    def here(self) -> str | None:
        """The chapter that what comes next is in."""
        return self._chapter

    def chapter(self, title: str | None) -> None:
        """What comes next is in this chapter."""
        self._chapter = title

    def result(self, missing: Iterable[str] = ()) -> ExtractedText:
        text = "".join(self._parts)
        return ExtractedText(text + "\n" if text else "", tuple(self._marks), tuple(missing))

    def _put(self, text: str) -> None:
        text, self._lead = printable(self._lead + text), ""
        if self._gap:
            if self._length:
                self._append("\n" * self._gap)
        elif self._space and self._length:
            self._append(" ")
        self._gap, self._space = 0, False
        last = self._marks[-1] if self._marks else Mark(0)
        if (last.page, last.chapter) != (self._page, self._chapter):
            self._marks.append(Mark(self._length, self._page, self._chapter))
        self._append(text)

    def _append(self, text: str) -> None:
        self._parts.append(text)
        self._length += len(text)


def printable(text: str) -> str:
    """As long as `text`; control characters and no-break spaces become spaces."""
    return _SURROGATE.sub("\ufffd", _UNPRINTABLE.sub(" ", text))


def label(name: str) -> str:
    """How a message begins that is about the document `name`."""
    return "standard input" if name == STDIN else f"the document {name}"


def listed(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are: "a.png, b.png and 3 more"."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def no_text_error(name: str, what: str) -> DocumentError:
    """The error for a document whose pages may be pictures, a kind of `what`."""
    return DocumentError(
        f"{label(name)} is {what} without text; it may hold pictures only",
        "save it as PDF, then recognise its characters: ocrmypdf document.pdf text.pdf",
    )


def path_in_hint(name: str) -> str:
    """How commands in hints call it."""
    return "FILE" if name == STDIN else name


def optional_import(module: str, package: str, name: str, *, extra: str = "") -> Any:
    """A library that a reader needs, imported for the first document that does.

    Args:
        name: the document. extra: of esa-cli, where the library comes with one.

    Raises:
        DocumentError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DocumentError(
            f"{label(name)} cannot be read: the library {package} is not installed",
            f"pip install 'esa-cli[{extra}]'" if extra else f"pip install {package}",
        ) from error
