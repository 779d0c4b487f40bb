"""A store whose keys and values are in host memory does what one on the device does."""

from __future__ import annotations

from typing import Any

import properties
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esa_cli.storage import memory_store
from esa_cli.storage.memory_store import MemoryStore

assert properties
HEADS, DIM, RANK = 2, 4, 3
CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("small_segments")


def assert_equal(mine: Any, theirs: Any) -> None:
    for one, other in zip(mine, theirs, strict=True):
        assert one.shape == other.shape
        assert torch.equal(one, other)


def some(length: int, seed: int) -> torch.Tensor:
    """Ascending positions below `length`."""
    random = torch.Generator().manual_seed(seed)
    return torch.rand(length, generator=random).lt(0.4).nonzero()[:, 0]


ACTIONS = st.sampled_from(["append", "crop", "span", "last", "gather", "blocks", "features",
                           "release"])  # fmt: skip


@given(st.lists(st.tuples(ACTIONS, st.integers(0, 99), st.integers(0, 99)), max_size=60),
       st.integers(1, 40))  # fmt: skip
def test_it_does_what_a_store_on_the_device_does(
    steps: list[tuple[str, int, int]], most: int
) -> None:
    host = MemoryStore(HEADS, DIM, torch.float32, CPU, on_host=True)
    plain = MemoryStore(HEADS, DIM, torch.float32, CPU)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_store, "LAST_KEPT", most)
        for action, first, second in [("append", 7, 0), *steps]:
            low, high = sorted((first * len(plain) // 99, second * len(plain) // 99))
            if action == "append":
                rows = torch.randn(2, HEADS, 1 + first % 23, DIM)
                host.append(*rows)
                plain.append(*rows)
            elif action == "crop":
                for store in (host, plain):
                    store.crop(-min(first, len(plain)))
            elif action in ("span", "last"):
                stop = high if action == "span" else len(plain)
                assert_equal(host.span(low, stop), plain.span(low, stop))
            elif action == "gather":
                at = some(len(plain), second)
                assert_equal(host.gather(at), plain.gather(at))
            elif action == "blocks" and high > low:
                groups = [None, [1], [1, 0]][second % 3]
                found = [
                    torch.cat(
                        [keys for _, keys in store.key_blocks(low, high, 1 + first % 9, groups)], 1
                    )
                    for store in (host, plain)
                ]
                assert torch.equal(*found)
            elif action == "features":
                made = torch.randn(min(first, len(plain) - plain.reduced), RANK)
                for store in (host, plain):
                    store.append_features(made)
            else:
                host.release()
            assert (len(host), host.reduced) == (len(plain), plain.reduced)


def test_the_last_tokens_are_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    host, copied = MemoryStore(HEADS, DIM, torch.float32, CPU, on_host=True), list[int]()
    host.append(*torch.randn(2, HEADS, 75, DIM))
    real = host._copied
    monkeypatch.setattr(
        host, "_copied", lambda low, high: copied.append(high - low) or real(low, high)
    )
    for low in range(55, 75):
        host.span(low, 75)
    assert copied == [20]
