"""Questions from a stream, one a line, each as it comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

from ..errors import UsageError


def numbered(stream: IO[Any]) -> Iterator[tuple[int, str]]:
    """Number and text of every line that is not blank, without waiting for the next.

    Raises:
        UsageError: a line is not UTF-8.
    """
    for number, line in enumerate(getattr(stream, "buffer", stream), 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except AttributeError:
            text = line
        except UnicodeDecodeError as error:
            raise UsageError(
                f"standard input, line {number}: not UTF-8", "convert it first, as with iconv"
            ) from error
        if text.strip():
            yield number, text.rstrip("\r\n")
