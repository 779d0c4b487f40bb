"""How the model package reports what it is doing: one callback, given stage and counts.

It knows nothing of how the report is shown.
"""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called with what is being done, how much of it is done, and the whole, if it is known.

    Counts are bytes for the stages "download", "extract" and "hash"; the stages "convert",
    "wait" (another process is preparing the same model), "import", "save" and "load"
    count nothing and report 0 of None.
    """

    def __call__(self, stage: str, done: int, total: int | None, /) -> None: ...


def silent(stage: str, done: int, total: int | None, /) -> None:
    """A progress callback that shows nothing."""
