"""transformers' `Cache`, with a layer memory of ours behind every layer.

It can be given to `model(...)` and to stock `model.generate(...)` of the model it was made for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from esa_cli.attention.interfaces import KVStore, Projection
from esa_cli.attention.layer_memory import LayerMemory
from esa_cli.errors import UsageError
from esa_cli.storage.memory_store import MemoryStore

if TYPE_CHECKING:
    from esa_cli.models.attach import Attachment


MakeStore = Callable[[int, int, int, torch.dtype, torch.device], KVStore]
"""(layer, G, D, dtype, device) -> the store of that layer."""


def in_memory(
    layer: int, heads: int, dim: int, dtype: torch.dtype, device: torch.device
) -> KVStore:
    """Keys and values on the device they come from."""
    return MemoryStore(heads, dim, dtype, device)


class EsaLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer: appends the chunk to its memory and hands the chunk itself on."""

    is_sliding = False
    is_croppable = True

    def __init__(self, layer: int, shared: dict[str, Any], make: MakeStore) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.layer, self.shared, self.make = layer, shared, make
        self.memory: LayerMemory | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        heads, dim = key_states.shape[1], key_states.shape[3]
        store = self.make(self.layer, heads, dim, key_states.dtype, key_states.device)
        self.memory = LayerMemory(self.layer, store, self.shared)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Appends C tokens, (1, G, C, D) each, and returns them as they came."""
        if key_states.shape[0] != 1:
            raise UsageError(
                f"ESA attends to one sequence at a time, not a batch of {key_states.shape[0]}",
                "ask the questions one after another; the document is read only once",
            )
        if self.memory is None:
            self.lazy_initialization(key_states, value_states)
        assert self.memory is not None
        self.memory.store.append(key_states[0].detach(), value_states[0].detach())
        return key_states, value_states

    def hold(self, store: KVStore, projection: Projection | None, fitted: bool) -> None:
        """Takes a store that something was read into before, with its fitted compressor."""
        self.memory = LayerMemory(
            self.layer, store, self.shared, projection=projection, fitted=fitted
        )
        self.is_initialized = True

    def get_seq_length(self) -> int:
        return len(self.memory.store) if self.memory else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        """Takes back the last -tokens_to_remove tokens; the fitted compressor stays."""
        if tokens_to_remove > 0:
            raise ValueError("crop takes a negative number: how many tokens to take back")
        if tokens_to_remove and self.memory:
            self.shared.clear()
            self.memory.store.crop(tokens_to_remove)

    def reset(self) -> None:
        self.memory = None
        self.shared.clear()
        self.is_initialized = False

    def _one_sequence(self, *args: Any) -> Any:
        raise UsageError(
            "ESA attends to one sequence at a time: no beams, no several answers at once",
            "use greedy search or sampling with num_return_sequences=1",
        )

    reorder_cache = batch_repeat_interleave = batch_select_indices = _one_sequence  # type: ignore[assignment]


class EsaCache(Cache):
    """The memory of one document for one attached model; `Attachment.new_cache` makes it.

    Attributes:
        shared: side data that all layers share; emptied when tokens are taken back.
        mode: `reading` (chunks are only read), `asking` (every chunk selects), or `auto`: of what
            one forward call is given, the last chunk is taken to hold the question.
    """

    def __init__(self, attachment: Attachment, layers: int, make: MakeStore = in_memory) -> None:
        self.shared: dict[str, Any] = {}
        self.own = [EsaLayer(i, self.shared, make) for i in range(layers)]
        super().__init__(layers=[*self.own])
        self.attachment = attachment
        self.mode = "auto"

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.attachment.running:
            raise UsageError(
                "this cache was made for another model, or for one that is not attached any more",
                "use new_cache() of the model's own attachment",
            )
        if layer_idx == 0:
            self._check_places(key_states.shape[2])
        chunk = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        self.attachment.arriving[layer_idx] = self
        return chunk

    def _check_places(self, count: int) -> None:
        """Raises UsageError when the host has these tokens anywhere but behind the cached ones."""
        length, places = self.get_seq_length(), self.attachment.places
        if places is not None and places != (length, length + count - 1):
            raise UsageError(
                f"{count} tokens at the places {places[0]} to {places[1]} do not follow the "
                f"{length} cached ones",
                "leave position_ids out, and use_cache on",
            )

    def memory(self, layer_idx: int) -> LayerMemory:
        memory = self.own[layer_idx].memory
        assert isinstance(memory, LayerMemory), "the layer has read nothing yet"
        return memory

    def hold(
        self, stores: Sequence[KVStore], projections: Sequence[Projection | None] | None
    ) -> None:
        """Takes stores that something was read into before, one for each layer.

        Args:
            projections: the compressors fitted then; None: nothing was fitted yet.
        """
        for i, layer in enumerate(self.own):
            layer.hold(stores[i], projections[i] if projections else None, projections is not None)

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and reduced keys in use, all layers."""
        stores = [layer.memory.store for layer in self.own if layer.memory]
        return sum(store.nbytes for store in stores)

    def truncate(self, length: int) -> None:
        """Crops to `length` tokens, also after an interrupted forward left layers uneven."""
        for layer in self.own:
            extra = layer.get_seq_length() - length
            if extra > 0:
                layer.crop(-extra)

    @torch.no_grad()
    def project(self) -> None:
        """Does now what the first question would: fits compressors, computes reduced keys."""
        for layer in self.own:
            if layer.memory:
                layer.memory.project(self.attachment.method, len(layer.memory.store))
