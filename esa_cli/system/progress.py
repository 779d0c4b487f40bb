"""Progress callbacks. An exception raised in one stops the work and propagates."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with (tokens done, tokens in all); questions where the caller says so."""

StageProgress = Callable[[str, int, int | None], None]
"""Called with the stage, how much of it is done, and the whole, if it is known.

Counts are bytes for the stages "download", "extract" and "convert", where esa converts by itself;
the stages "wait" (another process is preparing the same model), "import", "save" and "load" count
nothing and report 0 of None, and so does "convert" where transformers converts."""


def silent(stage: str, done: int, total: int | None, /) -> None:
    """A StageProgress that shows nothing."""


def combined(*callbacks: Progress | None) -> Progress:
    """Calls all of them, in this order."""

    def call(done: int, total: int) -> None:
        for callback in callbacks:
            if callback:
                callback(done, total)

    return call


class WaitNotice:
    """Called again and again while another process ingests the same document: calls `started` the
    first time, and `progress` each time, with 0 of `tokens`."""

    def __init__(
        self, started: Callable[[], None] | None, progress: Progress | None, tokens: int
    ) -> None:
        self.started, self.progress, self.tokens = started, progress, tokens

    def __call__(self) -> None:
        started, self.started = self.started, None
        if started:
            started()
        if self.progress:
            self.progress(0, self.tokens)
