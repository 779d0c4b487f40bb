"""A reader's result (text, page and chapter marks, what is missing), and the builder that makes it.

`TextBuilder` assembles text from the pieces of a marked-up document: white space inside a paragraph
collapses, an empty line separates paragraphs, a mark starts at the first character it holds for.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from esa_cli.errors import DocumentError

STDIN = "standard input"
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\xa0]")
_RAISED = re.compile(r"[+−-]?\d+(?:[,–-]\s?\d+)*")
_SURROGATE = re.compile(r"[\ud800-\udfff\ufffe\uffff]")


class Mark(NamedTuple):
    """Page and chapter of the text from character `start` on."""

    start: int
    page: int | None = None
    chapter: str | None = None


@dataclass(frozen=True)
class ExtractedText:
    """A document's text, with \\n line endings; its marks, by ascending starts; in words, what it
    lacks of the document; and the Python name of a plain text's encoding."""

    text: str
    marks: tuple[Mark, ...] = ()
    missing: tuple[str, ...] = ()
    encoding: str = ""


class TextBuilder:
    """Text from pieces in reading order.

    Attributes:
        page, chapter: of the next piece. left_out: kinds of contents that the text lacks, in the
            plural, and how many there are.
    """

    def __init__(self) -> None:
        self.page: int | None = None
        self.chapter: str | None = None
        self.left_out = Counter[str]()
        self._parts: list[str] = []
        self._length = 0
        self._gap = 0  # newlines owed before the next piece
        self._space = False  # a space owed before it
        self._lead = ""
        self._marks: list[Mark] = []

    def flow(self, text: str) -> None:
        """Appends words of a paragraph; any white space becomes one space."""
        words = " ".join(text.split())
        self._space |= text[:1].isspace()
        if words:
            self._put(words)
            self._space = text[-1].isspace()

    def exact(self, text: str) -> None:
        """Appends text with its white space."""
        if text:
            self._put(text.replace("\r\n", "\n").replace("\r", "\n"))

    def lead(self, text: str) -> None:
        """Puts text before the next piece, on its line, as a list's bullet."""
        self._lead = text

    def raised(self, text: str) -> None:
        """Writes ^ if `text`, which comes next, is a raised number: 10^6 would else become 106.

        Several numbers are marks of notes: 5^1,2.
        """
        last = "" if self._gap or self._space or not self._parts else self._parts[-1][-1]
        if last.isalnum() and _RAISED.fullmatch(text.rstrip()):
            self._put("^")

    def line(self) -> None:
        """Ends the line; twice gives an empty line."""
        self._gap = min(2, self._gap + 1)

    def end_line(self) -> None:
        """Starts a new line for the next piece."""
        self._gap = max(1, self._gap)

    def paragraph(self) -> None:
        """Separates the next piece by an empty line."""
        self._gap = 2

    @property
    def begun(self) -> bool:
        """True if there is text already."""
        return bool(self._length)

    def result(self, missing: Iterable[str] = ()) -> ExtractedText:
        """The text; it lacks what is `missing` besides `left_out`."""
        text = "".join(self._parts)
        counted = (f"{what} are left out: {count}" for what, count in self.left_out.items())
        return ExtractedText(text + "\n" if text else "", tuple(self._marks), (*counted, *missing))

    def text_of(self, name: str, what: str, missing: Iterable[str] = ()) -> ExtractedText:
        """As `result`, for the document `name`, a kind of `what`. Raises DocumentError: there is no
        text, since its pages may be pictures."""
        extracted = self.result(missing)
        if not extracted.text.strip():
            raise DocumentError(
                f"{label(name)} is {what} without text; it may have pictures only",
                "of pictures, save a PDF and recognise its characters: ocrmypdf in.pdf text.pdf",
            )
        return extracted

    def _put(self, text: str) -> None:
        owed = "\n" * self._gap or " " * self._space if self._length else ""
        self._length += len(owed)
        last = self._marks[-1] if self._marks else Mark(0)
        if (last.page, last.chapter) != (self.page, self.chapter):
            self._marks.append(Mark(self._length, self.page, self.chapter))
        text = printable(self._lead + text)
        self._parts += [owed, text] if owed else [text]
        self._length += len(text)
        self._gap, self._space, self._lead = 0, False, ""


def printable(text: str) -> str:
    """`text` with spaces for control characters and no-break spaces; its length is the same."""
    return _SURROGATE.sub("\ufffd", _UNPRINTABLE.sub(" ", text))


def label(name: str) -> str:
    """What messages call the document `name`."""
    return "standard input" if name == STDIN else f"the document {name}"


def first_names(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are: "a.png, b.png and 3 more"."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def path_in_hint(name: str) -> str:
    """The document as the commands in hints name it."""
    return "FILE" if name == STDIN else name


def optional_import(module: str, package: str, name: str, *, extra: str = "") -> Any:
    """A library that the reader of the document `name` needs. Raises DocumentError: it is not
    installed; `extra` is that of esa-cli which has it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DocumentError(
            f"{label(name)} cannot be read: the library {package} is not installed",
            f"pip install 'esa-cli[{extra}]'" if extra else f"pip install {package}",
        ) from error
