"""Answers broken at spaces as they are generated: terminals break them inside words."""

from __future__ import annotations

import re
from typing import IO

from rich.cells import cell_len

from esa_cli.apps.cli.output.wrapped_lines import LEAST, columns

_WORDS = re.compile(r"\s*\S+|\s+")
"""A word with the white space before it."""


class WordWrap:
    """Text that comes in pieces, broken at spaces into lines of a terminal's width; unchanged where
    the stream is no terminal.

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
        if self._breaks_anywhere(self._held.lstrip()):
            whole, self._held = [*whole, self._held], ""
        return "".join(map(self._placed, whole))

    def rest(self) -> str:
        """What was held back, without white space behind the last word."""
        held, self._held = self._held.rstrip(), ""
        return self._placed(held) if held else ""

    def _breaks_anywhere(self, word: str) -> bool:
        return len(word) >= self._width or cell_len(word) != len(word)

    def _placed(self, part: str) -> str:
        """White space with the word behind it, on this line or on the next."""
        word = part.lstrip()
        gap = part[: len(part) - len(word)]
        if "\n" in gap:
            last = gap.rpartition("\n")[2]
            gap = gap[: len(gap) - len(last)] + self._indent + last
            self._column = len(self._indent) + len(last)
        elif self._column + len(gap) + cell_len(word) > self._width and gap:
            gap, self._column = "\n" + self._indent, len(self._indent)
        else:
            self._column += len(gap)
        self._column += cell_len(word)
        if self._column > self._width:  # the terminal breaks it
            self._column %= self._width
        return gap + word


def wrapped_text(text: str, stream: IO[str]) -> str:
    """As `WordWrap`, of a text that is there as a whole."""
    wrap = WordWrap(stream)
    return wrap.add(text) + wrap.rest()
