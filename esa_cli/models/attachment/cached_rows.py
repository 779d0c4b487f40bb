"""A layer of a transformers `Cache` that keeps keys and values in a `LayerMemory`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from esa_cli.attention.layer_memory import LayerMemory
from esa_cli.attention.step import KVStore
from esa_cli.errors import UsageError
from esa_cli.storage.memory_store import MemoryStore
from esa_cli.storage.reduced_rows import ReducedRows
from esa_cli.storage.store_places import MakeStore


def in_memory(
    layer: int, heads: int, dim: int, dtype: torch.dtype, device: torch.device,
    shared: bool = False,
) -> KVStore:  # fmt: skip
    """A store on the device of the keys; see `MakeStore`."""
    return MemoryStore(heads, dim, dtype, device, shared)


def check_alone(count: int) -> None:
    """Raises UsageError where there are several sequences."""
    if count != 1:
        raise UsageError(
            f"ESA attends to one sequence at a time, not a batch of {count}",
            "ask the questions one after another; the document is read only once",
        )


class EsaLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer: appends a forward call's keys and values to its memory, and returns them.

    Args:
        latent: it gets latents and rotary parts of keys; see `LatentHeads`.

    Attributes:
        expected: tokens there will be, 0 if that is not known; see `EsaCache.expect`.
    """

    is_sliding = False
    is_croppable = True

    def __init__(self, layer: int, make: MakeStore, latent: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.layer, self.make, self.latent = layer, make, latent
        self.memory: LayerMemory | None = None
        self.expected = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: the store is made with the first rows."""

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Appends rows of C tokens, (G, C, D) each."""
        if self.memory is None:
            heads, _, dim = keys.shape
            store = self.make(self.layer, heads, dim, keys.dtype, keys.device, self.latent)
            if self.expected and isinstance(store, ReducedRows):
                store.expect(self.expected)
            self.hold(LayerMemory(self.layer, store))
        assert self.memory is not None
        self.memory.store.append(keys.detach(), values.detach())

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Appends C tokens, (1, G, C, D) each, and returns them as they came. Of latents (1, 1, C,
        L) and rotary parts of keys (1, 1, C, R) one is returned, since the model expands what it
        gets for an attention function that does not use it."""
        check_alone(key_states.shape[0])
        if not self.latent:
            self.append(key_states[0], value_states[0])
            return key_states, value_states
        rows = torch.cat((value_states[0], key_states[0]), dim=-1)
        self.append(rows, rows)
        return key_states[:, :, :1], value_states[:, :, :1]

    def hold(self, memory: LayerMemory) -> None:
        """Uses a memory whose store has tokens already."""
        self.memory = memory
        self.is_initialized = True

    def get_seq_length(self) -> int:
        return len(self.memory.store) if self.memory else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last -tokens_to_remove tokens; the fitted projection stays."""
        if tokens_to_remove > 0:
            raise ValueError(f"crop takes a negative number of tokens, got {tokens_to_remove}")
        if tokens_to_remove and self.memory:
            self.memory.crop(tokens_to_remove)

    def reset(self) -> None:
        self.memory = None
        self.is_initialized = False
