"""A transformers `Cache` with a `LayerMemory` for each layer, for one attached model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from esa_cli.attention.interfaces import KVStore, LayerState, Projection
from esa_cli.attention.layer_memory import LayerMemory
from esa_cli.attention.method import Method
from esa_cli.attention.query_state import Phase, QueryState
from esa_cli.errors import UsageError
from esa_cli.models.forward_pass import ForwardPass
from esa_cli.storage.memory_store import MemoryStore
from esa_cli.storage.store_places import MakeStore


def in_memory(
    layer: int, heads: int, dim: int, dtype: torch.dtype, device: torch.device,
    shared: bool = False,
) -> KVStore:  # fmt: skip
    """A store on the device of the keys; see `MakeStore`."""
    return MemoryStore(heads, dim, dtype, device, shared)


class EsaLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer: appends a forward call's keys and values to its memory, and returns them.

    Args:
        latent: it gets latents and rotary parts of keys; see `LatentHeads`.
    """

    is_sliding = False
    is_croppable = True

    def __init__(self, layer: int, make: MakeStore, latent: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.layer, self.make, self.latent = layer, make, latent
        self.memory: LayerMemory | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: the store is made with the first rows."""

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Appends rows of C tokens, (G, C, D) each."""
        if self.memory is None:
            heads, _, dim = keys.shape
            store = self.make(self.layer, heads, dim, keys.dtype, keys.device, self.latent)
            self.hold(LayerMemory(self.layer, store))
        assert self.memory is not None
        self.memory.store.append(keys.detach(), values.detach())

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Appends C tokens, (1, G, C, D) each, and returns them as they came. Of latents (1, 1, C,
        L) and rotary parts of keys (1, 1, C, R) one is returned, since the model expands what it
        gets for an attention function that does not use it."""
        if key_states.shape[0] != 1:
            raise UsageError(
                f"ESA attends to one sequence at a time, not a batch of {key_states.shape[0]}",
                "ask the questions one after another; the document is read only once",
            )
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

    def _one_sequence(self, *args: Any) -> Any:
        raise UsageError(
            "ESA attends to one sequence at a time: no beams, no several answers at once",
            "use greedy search or sampling with num_return_sequences=1",
        )

    reorder_cache = batch_repeat_interleave = batch_select_indices = _one_sequence  # type: ignore[assignment]


class EsaCache(Cache):
    """The memory of one document for one attached model; `Attachment.new_cache` makes it.

    Args:
        forward: of the attached model. method: runs unless `begin` gives another. layers: of the
            model. make: makes each layer's store. method_layers: those that run the method; None:
            all. latent: layers keep latents.

    Attributes:
        method: what runs now. query: the state of the turn in progress; see `begin`.
    """

    def __init__(
        self,
        forward: ForwardPass[EsaCache],
        method: Method,
        layers: int,
        make: MakeStore = in_memory,
        method_layers: Sequence[int] | None = None,
        latent: bool = False,
    ) -> None:
        self._method_layers = range(layers) if method_layers is None else method_layers
        self.own = [EsaLayer(i, make, latent) for i in range(layers)]
        super().__init__(layers=[*self.own])
        self.forward_pass, self.method, self.query = forward, method, QueryState()

    def begin(self, query: QueryState, method: Method | None = None) -> None:
        """Begins a turn. In phase AUTO one also begins where the cache was cropped before.

        Args:
            query: its state, shared by all layers. method: from now on; None: the same.
        """
        self.query = query
        self.method = self.method if method is None else method

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.forward_pass.running:
            raise UsageError(
                "this cache was made for another model, or for one that is not attached any more",
                "use new_cache() of the model's own attachment",
            )
        if layer_idx == 0:
            self._check_span(key_states.shape[2])
            if self.query.phase is Phase.AUTO and self.query.stop != self.get_seq_length():
                # Tokens were cropped: this is another turn.
                self.query = QueryState(trace=self.query.trace)
        chunk = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        self.forward_pass.enter(layer_idx, self)
        return chunk

    def _check_span(self, count: int) -> None:
        """Raises UsageError when these tokens do not follow the cached ones."""
        length, span = self.get_seq_length(), self.forward_pass.span
        if span is not None and span != (length, length + count - 1):
            raise UsageError(
                f"positions of {count} tokens must follow the {length} cached ones, got "
                f"{span[0]} to {span[1]}",
                "leave position_ids out, and use_cache on",
            )

    def memory(self, layer_idx: int) -> LayerMemory:
        memory = self.own[layer_idx].memory
        assert isinstance(memory, LayerMemory), "the layer has no tokens"
        return memory

    def hold(
        self,
        stores: Sequence[KVStore],
        projections: Sequence[Projection | None] | None,
        states: Sequence[dict[type, LayerState]] = (),
    ) -> None:
        """Uses stores that have tokens already, one for each layer.

        Args:
            projections: fitted to them; None: nothing was fitted yet.
            states: each layer's states of selectors.
        """
        for i, layer in enumerate(self.own):
            layer.hold(
                LayerMemory(
                    i,
                    stores[i],
                    states[i] if states else {},
                    projection=projections[i] if projections else None,
                    fitted=projections is not None,
                )
            )

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and reduced keys in use, all layers."""
        stores = [layer.memory.store for layer in self.own if layer.memory]
        return sum(store.nbytes for store in stores)

    def release(self) -> None:
        """Frees the stores' copies of rows."""
        for layer in self.own:
            if layer.memory:
                layer.memory.release()

    def truncate(self, length: int) -> None:
        """Crops to `length` tokens, also after an interrupted forward left layers uneven."""
        for layer in self.own:
            extra = layer.get_seq_length() - length
            if extra > 0:
                layer.crop(-extra)

    @torch.no_grad()
    def project(self) -> None:
        """Fits compressors and computes reduced keys, as the first question would."""
        for index in self._method_layers:
            if memory := self.own[index].memory:
                memory.project(self.method, len(memory.store))
