"""Who is told of a reading: as it goes on, and while another process does it.

What a listener raises ends the reading, or the waiting, and passes through.
"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with (tokens read, tokens in all)."""


def hearing(*listeners: Progress | None) -> Progress:
    """All of them as one, in this order."""

    def hear(done: int, total: int) -> None:
        for one in listeners:
            if one:
                one(done, total)

    return hear


def asking(
    once: Callable[[], None] | None, again: Progress | None, tokens: int
) -> Callable[[], None]:
    """What is called again and again while another process reads a document of so many tokens.

    Args:
        once: called the first time. again: called each time, nothing having been read.
    """
    first = [once] if once else []

    def wait() -> None:
        if first:
            first.pop()()
        if again:
            again(0, tokens)

    return wait
