"""Questions from a stream, one a line, each as it comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

from esa_cli.errors import UsageError

Line = str | UsageError
"""A question, or what is wrong with it."""


def numbered(stream: IO[Any]) -> Iterator[tuple[int, Line]]:
    """Number and text of every line that is not blank, without waiting for the next; in place of
    the text of one that is not UTF-8 an error, so that those behind it are asked."""
    for number, line in enumerate(getattr(stream, "buffer", stream), 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except AttributeError:
            text = line
        except UnicodeDecodeError:
            hint = "convert the questions first, as with iconv"
            yield number, UsageError(f"line {number}: not UTF-8", hint)
            continue
        if text.strip():
            yield number, text.rstrip("\r\n")
