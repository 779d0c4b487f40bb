"""A layer's memory: the far tokens of an answer, kept from one token to the next."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from conftest import build_rope

from esa_cli.attention import method
from esa_cli.attention.compression import ClosedFormCompressor
from esa_cli.attention.method import LayerMemory, Method
from esa_cli.attention.step import LayerState
from esa_cli.storage.memory_store import MemoryKVStore


@pytest.fixture
def memory() -> LayerMemory:
    store = MemoryKVStore(2, 4, torch.float32, torch.device("cpu"))
    store.append(torch.randn(2, 30, 4), torch.randn(2, 30, 4))
    return LayerMemory(0, store)


def test_rows_are_fetched_again_where_positions_differ(memory: LayerMemory) -> None:
    at = torch.tensor([1, 5, 8])
    keys, values = memory.fetch_far_keys_and_values(at)
    assert memory.fetch_far_keys_and_values(at)[0] is keys
    assert memory.fetch_far_keys_and_values(at.clone())[0] is keys
    other, _ = memory.fetch_far_keys_and_values(torch.tensor([1, 5, 9]))
    assert torch.equal(other, memory.store.gather(torch.tensor([1, 5, 9]))[0])
    assert torch.equal(values, memory.store.gather(at)[1])
    memory.crop(-2)
    assert memory.fetched is None


def test_queries_in_half_precision_are_summed_in_single() -> None:
    """Two heads of a group: their sum, which scores see in float32, is beyond float16."""
    memory = LayerMemory(0, MemoryKVStore(1, 4, torch.float16, torch.device("cpu")))
    memory.store.append(*torch.ones(2, 1, 8, 4, dtype=torch.float16))
    q = torch.full((2, 8, 4), 4e4, dtype=torch.float16)
    memory.add_to_moments(Method(compressor=ClosedFormCompressor(rank=2)), build_rope(4), q, 0)
    assert memory.moments.queries is not None
    assert torch.equal(memory.moments.queries, torch.full((4, 4), 8 * 8e4**2).double())


def test_a_crop_that_was_interrupted_is_made_again(memory: LayerMemory) -> None:
    """`EsaCache.truncate` crops what is too long: until states are cropped, rows are."""

    class State(LayerState):
        lengths: ClassVar[list[int]] = []

        def crop(self, length: int) -> None:
            self.lengths.append(length)
            if len(self.lengths) == 1:
                raise KeyboardInterrupt

    memory.states[State] = State()
    with pytest.raises(KeyboardInterrupt):
        memory.crop(-2)
    assert len(memory.store) == 30
    memory.crop(-2)
    assert (State.lengths, len(memory.store)) == ([28, 28], 28)


class Elsewhere(MemoryKVStore):
    """A store whose rows are not in the device's memory; it notes the positions it is asked for."""

    def __init__(self) -> None:
        super().__init__(2, 4, torch.float32, torch.device("cpu"))
        self.is_on_device = False
        self.asked: list[list[int]] = []

    def gather(self, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.asked.append(at.tolist())
        return super().gather(at)


@pytest.mark.parametrize(
    ("at", "asked"),
    [
        ([1, 5, 8, 12], []),
        ([1, 5, 12], []),
        ([5], []),
        ([1, 5, 9, 12], [[9]]),
        ([0, 5, 8, 29], [[0, 29]]),
        ([1, 6, 7, 9], [[1, 6, 7, 9]]),
        ([1, 5, 8, 12, 20, 21], [[20, 21]]),
        ([], []),
    ],
)
def test_only_new_rows_are_fetched_from_elsewhere(at: list[int], asked: list[list[int]]) -> None:
    store = Elsewhere()
    rows = torch.randn(2, 30, 4), torch.randn(2, 30, 4)
    store.append(*rows)
    memory = LayerMemory(0, store)
    memory.fetch_far_keys_and_values(torch.tensor([1, 5, 8, 12]))
    store.asked.clear()
    for _ in range(2):
        fetched = memory.fetch_far_keys_and_values(torch.tensor(at, dtype=torch.long))
        assert all(torch.equal(a, b[:, at]) for a, b in zip(fetched, rows, strict=True))
    assert [one for one in store.asked if one] == asked


def test_many_far_tokens_are_not_kept(memory: LayerMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(method, "FETCH_KEPT", 2)
    memory.fetch_far_keys_and_values(torch.tensor([1, 5, 8]))
    assert memory.fetched is None
    memory.fetch_far_keys_and_values(torch.tensor([1, 5]))
    assert memory.fetched is not None
