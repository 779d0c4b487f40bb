"""Notes and errors broken at spaces: terminals break them inside words."""

from __future__ import annotations

import os
import textwrap
from contextlib import suppress
from typing import IO

LEAST = 20
"""Columns of a terminal, at least."""


def wrapped(text: str, stream: IO[str]) -> str:
    """The line, as lines of the terminal's width; unchanged where the stream is no terminal.

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
