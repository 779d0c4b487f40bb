"""A layer's memory: the far tokens of an answer, kept from one token to the next."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch

from esa_cli.attention.interfaces import LayerState
from esa_cli.attention.layer_memory import LayerMemory
from esa_cli.storage.memory_store import MemoryStore


@pytest.fixture
def memory() -> LayerMemory:
    store = MemoryStore(2, 4, torch.float32, torch.device("cpu"))
    store.append(torch.randn(2, 30, 4), torch.randn(2, 30, 4))
    return LayerMemory(0, store)


def test_a_selection_that_is_the_same_tensor_stays_the_same_tensor(memory: LayerMemory) -> None:
    initial, picked = torch.arange(3), torch.tensor([0, 4, 9])
    first = memory.selection(initial, picked, keep=True)
    assert first.tolist() == [0, 1, 2, 3, 7, 12]
    assert memory.selection(initial, picked, keep=True) is first
    assert memory.selection(initial, picked.clone(), keep=True) is not first
    assert memory.selection(torch.arange(2), picked, keep=True).tolist() == [0, 1, 2, 6, 11]


def test_what_a_plugin_picked_may_have_changed(memory: LayerMemory) -> None:
    initial, picked = torch.arange(3), torch.tensor([0, 4, 9])
    memory.selection(initial, picked, keep=False)
    picked += 1
    assert memory.selection(initial, picked, keep=False).tolist() == [0, 1, 2, 4, 8, 13]


def test_rows_are_fetched_again_where_positions_differ(memory: LayerMemory) -> None:
    at = torch.tensor([1, 5, 8])
    keys, values = memory.fetch(at)
    assert memory.fetch(at)[0] is keys
    assert memory.fetch(at.clone())[0] is keys
    other, _ = memory.fetch(torch.tensor([1, 5, 9]))
    assert torch.equal(other, memory.store.gather(torch.tensor([1, 5, 9]))[0])
    assert torch.equal(values, memory.store.gather(at)[1])
    memory.crop(-2)
    assert memory.fetched is None


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
