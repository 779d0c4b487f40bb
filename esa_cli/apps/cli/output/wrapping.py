"""Lines and answers broken at spaces: terminals break them inside words.

What is no terminal gets its text unchanged. rich is not imported here: errors are written with it.
"""

from __future__ import annotations

import os
import re
import textwrap
from contextlib import suppress
from typing import IO

LEAST = 20
"""Columns of a terminal, at least."""
_WORDS = re.compile(r"\s*\S+|\s+")
"""A word with the white space before it."""


def wrapped(text: str, stream: IO[str]) -> str:
    """A note or an error, as lines of the terminal's width.

    What follows the first line is below its words. A word that is longer than a line, as a path,
    stays in one piece, so that it can be copied.
    """
    if not stream.isatty():
        return text
    begin = "esa: " if text.startswith("esa: ") else text[: len(text) - len(text.lstrip(" "))]
    return textwrap.fill(
        text,
        max(LEAST, columns(stream)),
        subsequent_indent=" " * len(begin),
        break_long_words=False,
        break_on_hyphens=False,
    )


def columns(stream: IO[str]) -> int:
    """Of the terminal; `COLUMNS` goes first, as in rich and `shutil.get_terminal_size`."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    with suppress(OSError, ValueError):
        return os.get_terminal_size(stream.fileno()).columns or 80
    return 80


class WordWrap:
    """Text that comes in pieces, broken at spaces.

    A word is held back until it is whole, but not one longer than a line, and none of a script that
    is written without spaces.

    Args:
        stream: where the text goes. indent: what every line begins with; the caller writes the
            first one's.
    """

    def __init__(self, stream: IO[str], indent: str = "") -> None:
        self._width = max(LEAST, columns(stream)) if stream.isatty() else 0
        self._indent, self._column, self._held = indent, len(indent), ""

    def add(self, piece: str) -> str:
        """What is to be written now."""
        if not self._width:
            return piece
        *whole, self._held = _WORDS.findall(self._held + piece) or [""]
        word = self._held.lstrip()
        if len(word) >= self._width or _cells(word) != len(word):
            whole, self._held = [*whole, self._held], ""
        return "".join(map(self._placed, whole))

    def rest(self) -> str:
        """What was held back, without white space after the last word."""
        held, self._held = self._held.rstrip(), ""
        return self._placed(held) if held else ""

    def _placed(self, part: str) -> str:
        """White space with the word after it, on this line or on the next."""
        word = part.lstrip()
        gap = part[: len(part) - len(word)]
        if "\n" in gap:
            last = gap.rpartition("\n")[2]
            gap = gap[: len(gap) - len(last)] + self._indent + last
            self._column = len(self._indent) + len(last)
        elif self._column + len(gap) + _cells(word) > self._width and gap:
            gap, self._column = "\n" + self._indent, len(self._indent)
        else:
            self._column += len(gap)
        self._column += _cells(word)
        if self._column > self._width:  # the terminal breaks it
            self._column %= self._width
        return gap + word


def _cells(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def wrapped_text(text: str, stream: IO[str]) -> str:
    """As `WordWrap`, of a whole text."""
    wrap = WordWrap(stream)
    return wrap.add(text) + wrap.rest()
