"""Defines progress callbacks, and shards that divide a list of work among processes. An exception
raised in a progress callback stops the work and propagates to the caller."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from esa_cli.errors import UsageError

Item = TypeVar("Item")
Progress = Callable[[int, int], None]
"""A callback that is called with (tokens done, total tokens), or with counts of questions."""

StageProgress = Callable[[str, int, int | None], None]
"""A callback that is called with the stage, the amount done, and the total amount if it is known.

Amounts are bytes in the stages "download" and "extract", and in the stage "convert" if esa converts
the model itself. The other stages report 0 of None: "wait" (another process is preparing the same
model), "import", "save", "load", and "convert" if transformers converts the model."""


def ignore_stage_progress(stage: str, done: int, total: int | None, /) -> None:
    """A `StageProgress` callback that does nothing, for callers that show no progress."""


def combine_progress_callbacks(*callbacks: Progress | None) -> Progress:
    """Returns a progress callback that calls several progress callbacks, in their order."""

    def call_all_callbacks(done: int, total: int) -> None:
        for callback in filter(None, callbacks):
            callback(done, total)

    return call_all_callbacks


@dataclass(frozen=True)
class WorkShard:
    """Shard `number`, from 1, of the `count` shards into which processes divide a list of work.
    Each item of the list belongs to exactly one shard."""

    number: int = 1
    count: int = 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @classmethod
    def parse(cls, shard_text: str | None) -> WorkShard:
        """Parses a shard such as "3/16"; None means the whole list of work. Raises UsageError."""
        match = re.fullmatch(r"\s*([0-9]{1,9})\s*/\s*([0-9]{1,9})\s*", shard_text or "1/1")
        shard = cls(int(match[1]), int(match[2])) if match and shard_text != "" else cls(0)
        if not 1 <= shard.number <= shard.count:
            hint = "for example, give --shard 3/16 to the third of sixteen processes"
            raise UsageError(f"--shard must be K/N with K from 1 to N, got {shard_text!r}", hint)
        return shard

    def select_items(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yields the items of this shard in their order: every `count`-th item of the list."""
        return islice(items, self.number - 1, None, self.count)

    def select_contiguous_items(self, items: Sequence[Item]) -> Sequence[Item]:
        """Returns the items of this shard as one slice of the list, for lists whose neighbouring
        items share work. The slices of all shards differ in length by at most one item."""
        begin, end = (len(items) * at // self.count for at in (self.number - 1, self.number))
        return items[begin:end]


ALL_WORK = WorkShard()
