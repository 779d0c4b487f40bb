"""Progress callbacks, and shards of a list of work. An exception raised in a callback stops the
work and propagates."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from esa_cli.errors import UsageError

Item = TypeVar("Item")
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
    """Returns a progress callback that calls several others in their order."""

    def call(done: int, total: int) -> None:
        for callback in callbacks:
            if callback:
                callback(done, total)

    return call


class WaitNotice:
    """Called again and again while another process ingests a document: calls `started` the first
    time, and `progress` each time, with 0 of `tokens`."""

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


@dataclass(frozen=True)
class WorkShard:
    """Shard `number` of `count`, from 1, of a list that several processes make and divide: together
    the shards are the list, and no two share an item."""

    number: int = 1
    count: int = 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @classmethod
    def parse(cls, text: str | None) -> WorkShard:
        """ "3/16" -> the third of sixteen; None: the whole. Raises UsageError."""
        match = re.fullmatch(r"\s*([0-9]{1,9})\s*/\s*([0-9]{1,9})\s*", text or "1/1")
        shard = cls(int(match[1]), int(match[2])) if match and text != "" else cls(0)
        if not 1 <= shard.number <= shard.count:
            raise UsageError(
                f"--shard must be K/N with K from 1 to N, got {text!r}",
                "for example: 3/16 for the third of sixteen processes",
            )
        return shard

    @property
    def whole(self) -> bool:
        """Whether the shard is the whole list."""
        return self.count == 1

    def take(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yields the items of this shard, in order: one of `count`, in turn."""
        return islice(items, self.number - 1, None, self.count)

    def block(self, items: Sequence[Item]) -> Sequence[Item]:
        """Returns the items of this shard as one slice, for lists whose neighbours share work.
        Lengths of slices differ by one at most."""
        begin, end = (len(items) * at // self.count for at in (self.number - 1, self.number))
        return items[begin:end]


ALL_WORK = WorkShard()
