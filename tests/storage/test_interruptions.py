"""Stores after Ctrl-C at any line of an append or a crop, which then go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from interruptions import interrupted

from esa_cli import storage
from esa_cli.storage.memory_store import AppendableKVStoreChain, KVStoreSlice, MemoryKVStore

HEADS, DIM, RANK = 2, 4, 3
CPU = torch.device("cpu")
FOLDERS = [Path(storage.__path__[0])]
pytestmark = pytest.mark.usefixtures("small_segments")

random = torch.Generator().manual_seed(1)
ROWS = torch.randn(2, HEADS, 100, DIM, generator=random)
FEATURES = torch.randn(100, RANK, generator=random)
READ, REDUCED = 50, 30
"""Tokens, and those with a reduced key, before the interruption."""


def memory() -> MemoryKVStore:
    return MemoryKVStore(HEADS, DIM, torch.float32, CPU)


def host() -> MemoryKVStore:
    return MemoryKVStore(HEADS, DIM, torch.float32, CPU, on_host=True)


def joined() -> AppendableKVStoreChain:
    document = memory()
    document.append(*ROWS[:, :, :20])
    document.append_reduced_keys(FEATURES[:20])
    return AppendableKVStoreChain([KVStoreSlice(document, 0, 20)], memory())


def append(store: Any, first: int, last: int) -> None:
    for low in range(first, last, 7):
        store.append(*ROWS[:, :, low : min(last, low + 7)])


def reduce(store: Any) -> None:
    for low in (30, 40):
        store.append_reduced_keys(FEATURES[low : low + 10])


ACTIONS: dict[str, Callable[[Any], None]] = {
    "append": lambda store: append(store, READ, 80),
    "reduced keys": reduce,
    "crop": lambda store: store.crop(-1),
}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("make", [memory, host, joined])
def test_a_store_goes_on_after_an_interruption(make: Callable[[], Any], action: str) -> None:
    step, after = 1, 0
    while True:
        store = make()
        before = len(store)
        append(store, 0, READ)
        store.append_reduced_keys(FEATURES[: READ if action == "crop" else REDUCED])
        if action == "crop":
            append(store, 0, 1)
            store.append_reduced_keys(FEATURES[:1])
        was = interrupted(lambda: ACTIONS[action](store), after, FOLDERS)  # noqa: B023
        if len(store) > before + READ:
            store.crop(before + READ - len(store))
        append(store, READ, 100)
        done = store.reduced_key_count - before
        store.append_reduced_keys(FEATURES[done:])
        keys, values = (one[:, before:] for one in store.span(0, before + 100))
        assert torch.equal(torch.stack((keys, values)), ROWS), after
        at = torch.arange(before, before + 100, 3)
        assert torch.equal(torch.stack(store.gather(at)), ROWS[:, :, ::3]), after
        found = [features for _, features in store.get_reduced_blocks(before, before + 100)]
        assert torch.equal(torch.cat(found), FEATURES), after
        if not was:
            break
        after += step
    assert after
