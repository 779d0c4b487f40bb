"""Shards are a partition, and wrong ones are refused."""

from __future__ import annotations

from itertools import chain

import pytest

from esa_cli.errors import UsageError
from esa_cli.system.progress import WorkShard


@pytest.mark.parametrize("length", [0, 1, 5, 16, 17])
@pytest.mark.parametrize("count", [1, 3, 16])
def test_shards_are_a_partition_of_equal_parts(length: int, count: int) -> None:
    items = list(range(length))
    shards = [WorkShard(number, count) for number in range(1, count + 1)]
    in_turn = [list(shard.select_items(items)) for shard in shards]
    blocks = [list(shard.select_contiguous_items(items)) for shard in shards]
    assert sorted(chain(*in_turn)) == items
    assert list(chain(*blocks)) == items
    for parts in (in_turn, blocks):
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("text", ["", "0/4", "5/4", "1/0", "1/2/3"])
def test_another_shard_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--shard must be K/N with K from 1 to N, got"):
        WorkShard.parse(text)
