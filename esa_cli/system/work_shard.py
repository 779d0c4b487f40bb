"""A shard of a list of work: every one of several equal processes makes the same list and takes its
shard; together the shards are the list, and no two share an item."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from esa_cli.errors import UsageError

Item = TypeVar("Item")


@dataclass(frozen=True)
class WorkShard:
    """Shard `number` of `count`, from 1; the only one by default."""

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
        """True if there is no other shard."""
        return self.count == 1

    def take(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items of this shard, in order: one of `count`, in turn."""
        return islice(items, self.number - 1, None, self.count)

    def block(self, items: Sequence[Item]) -> Sequence[Item]:
        """The items of this shard as one slice, for lists whose neighbours share work. Lengths of
        slices differ by one at most."""
        begin, end = (len(items) * at // self.count for at in (self.number - 1, self.number))
        return items[begin:end]


ALL_WORK = WorkShard()
