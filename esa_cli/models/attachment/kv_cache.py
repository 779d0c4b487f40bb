"""A transformers `Cache` for one attached model, with keys and values and recurrent states.

The state of a recurrent or convolution layer cannot be cropped as keys can, but only restored to a
token count at which the state was copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DummyLayer, LinearAttentionLayer

from esa_cli.attention.method import KVSharingLayerMemory, LayerMemory, Method
from esa_cli.attention.step import KVStore, LayerState, Projection
from esa_cli.attention.window import Phase, QueryState
from esa_cli.errors import UsageError
from esa_cli.models.files import families
from esa_cli.storage.memory_store import MemoryKVStore


@dataclass
class CurrentForwardCall:
    """The `EsaCache` of an attached model's running forward call, or None, and the absolute
    positions of the call's first and last token, if the caller gave positions."""

    cache: ref[EsaCache] | None = None
    span: tuple[int, int] | None = None

    def get_current_cache(self) -> EsaCache | None:
        return None if self.cache is None else self.cache()


class KvCacheLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """The keys and values of one layer of an `EsaCache`, or its MLA latents if `stores_latents`, in
    a store that `make_store` makes of heads, dimension, number type and device."""

    is_sliding = False
    is_croppable = True

    def __init__(
        self, layer_index: int, make_store: Callable[..., MemoryKVStore], stores_latents: bool
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.layer, self.latent, self._make_store = layer_index, stores_latents, make_store
        self.memory: LayerMemory | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Does nothing, since `update` creates the store of keys and values."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Appends keys and values (1, G, C, D) of C tokens; ESA ignores what is returned."""
        keys, values = key_states[0].detach(), value_states[0].detach()
        if self.latent:
            keys = values = torch.cat((values, keys), dim=-1)
            key_states, value_states = key_states[:, :, :1], value_states[:, :, :1]
        if self.memory is None:
            store = self._make_store(keys.shape[0], keys.shape[2], keys.dtype, keys.device)
            self.memory = LayerMemory(self.layer, store)
        self.memory.store.append(keys, values)
        return key_states, value_states

    def get_seq_length(self) -> int:
        return len(self.memory.store) if self.memory else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove and self.memory:
            self.memory.crop(tokens_to_remove)


RecurrentState = dict[str, Tensor]
"""A copy of a recurrent layer's state; an empty dict is the state before the first token."""


class RecurrentLayer(LinearAttentionLayer):
    """One layer's recurrent state, which the code of transformers' models updates."""

    is_croppable = False

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        # Models write into these tensors, inside of inference mode and outside.
        with torch.inference_mode(False):
            super().lazy_initialization(*args, **kwargs)

    def crop(self, tokens_to_remove: int) -> None:
        """Does nothing, since recurrent states cannot be cropped, only restored from copies."""

    def reset(self) -> None:
        LinearAttentionLayer.__init__(self, self.number_of_states)

    @property
    def state_tensors(self) -> RecurrentState:
        """The tensors of the layer's recurrent state by name, such as `conv.0`."""
        kinds = {"conv": self.conv_states, "recurrent": self.recurrent_states}
        each = ((f"{kind}.{i}", one) for kind in kinds for i, one in kinds[kind].items())
        return {name: tensor for name, tensor in each if tensor is not None}

    def copy_state(self) -> RecurrentState:
        with torch.inference_mode(False):
            return {name: tensor.detach().clone() for name, tensor in self.state_tensors.items()}

    def restore_state(self, state: RecurrentState) -> None:
        self.reset()
        for name, tensor in state.items():
            kind, number = name.split(".")
            self.lazy_initialization(**{f"{kind}_states": tensor, "state_idx": int(number)})
            if kind == "conv":
                self.has_previous_state[int(number)] = True
        for name, tensor in self.state_tensors.items():
            tensor.copy_(state[name])


class KvAndRecurrentLayer(RecurrentLayer, KvCacheLayer):  # type: ignore[no-untyped-call]
    """One layer that has both keys and values, and a recurrent state."""

    crop = KvCacheLayer.crop

    def __init__(self, *options: Any) -> None:
        KvCacheLayer.__init__(self, *options)
        RecurrentLayer.__init__(self)


INTERRUPTED_CALL = (
    "the cache's last forward call was interrupted",
    "call truncate(n) with the number of tokens before the interrupted call",
)
"""The error if an interrupted call left different numbers of tokens in the layers."""
SNAPSHOT_COUNT = 2
"""How many snapshots are kept: one at the document's end, one at the last question's beginning."""


class RecurrentStates:
    """The recurrent states of all layers of a KV cache, and snapshots of earlier states."""

    def __init__(self, layers: Sequence[RecurrentLayer]) -> None:
        self.layers = layers
        self.tokens: int | None = 0  # None after an interrupted forward call
        self._snapshots: dict[int, list[RecurrentState]] = {}
        self._automatic: dict[int, list[RecurrentState]] = {}

    def store_state_snapshot(self) -> None:
        """Stores a copy of the recurrent states, and deletes all copies but the latest two."""
        if self.layers and self.tokens and self.tokens not in self._snapshots:
            self._snapshots[self.tokens] = self.copy_states()
            for oldest in sorted(self._snapshots)[:-SNAPSHOT_COUNT]:
                del self._snapshots[oldest]

    def record_forward_start(self, new_token_count: int) -> None:
        """Copies states before several tokens. Raises UsageError: a call was interrupted."""
        if not self.layers:
            return
        if self.tokens is None:
            raise UsageError(*INTERRUPTED_CALL)
        if new_token_count > 1 and self.tokens not in self._snapshots:
            self._automatic = {self.tokens: self.copy_states()}
        self.tokens = None

    def record_forward_end(self, cached_token_count: int) -> None:
        self.tokens = cached_token_count
        for tensor in self.list_state_tensors():
            if tensor.requires_grad:  # of a model with gradients
                tensor.detach_()

    def restore_states(self, token_count: int) -> None:
        """Restores the states after `token_count` tokens. Raises UsageError: no copy exists."""
        if self.layers and token_count != self.tokens:
            known = {0: [RecurrentState()] * len(self.layers), **self._automatic, **self._snapshots}
            if token_count not in known:
                raise UsageError(
                    f"the recurrent states of the cache were not copied at {token_count} tokens",
                    "call store_state_snapshot() at each length to which you will crop the cache",
                )
            for layer, state in zip(self.layers, known[token_count], strict=True):
                layer.restore_state(state)
        self.tokens = token_count
        for kept in (self._automatic, self._snapshots):
            for later in [at for at in kept if at > token_count]:
                del kept[later]

    def copy_states(self) -> list[RecurrentState]:
        return [layer.copy_state() for layer in self.layers]

    def replace_states(self, states: Sequence[RecurrentState], token_count: int) -> None:
        """Replaces the recurrent states by copies that were made after `token_count` tokens."""
        self._snapshots, self._automatic = {token_count: list(states)}, {}
        self.tokens = None
        self.restore_states(token_count)

    def list_state_tensors(self) -> list[Tensor]:
        return [tensor for layer in self.layers for tensor in layer.state_tensors.values()]


class EsaCache(Cache):
    """The KV cache of one sequence in an attached model, which `AttachedModel.new_cache` creates.
    `kv_layers` are the layers with keys and values, and `states` the recurrent states."""

    def __init__(
        self, current_call: CurrentForwardCall, method: Method, config: Any,
        method_layers: Sequence[int], on_cpu: bool, expected_tokens: int,
    ) -> None:  # fmt: skip
        latent = families.get_model_family(config).latent
        store = partial(MemoryKVStore, shared=latent, on_host=on_cpu, expected=expected_tokens)
        new: dict[str, Callable[[int], Any]] = {
            "attention": lambda layer: KvCacheLayer(layer, store, latent),
            "both": lambda layer: KvAndRecurrentLayer(layer, store, latent),
            "state": lambda layer: RecurrentLayer(),
        }
        layers = [
            new.get(kind, lambda layer: DummyLayer())(i)  # type: ignore[no-untyped-call]
            for i, kind in enumerate(families.list_layer_cache_kinds(config))
        ]
        super().__init__(layers=layers)
        self.kv_layers = [layer for layer in layers if isinstance(layer, KvCacheLayer)]
        self.states = RecurrentStates([one for one in layers if isinstance(one, RecurrentLayer)])
        self._method_layers = method_layers
        self._sources = families.map_key_source_layers(config)
        self.forward_pass, self.method, self.query = current_call, method, QueryState()

    def begin_query(self, query_state: QueryState, method: Method | None = None) -> None:
        """Prepares the cache for a question or a prefill, with another attention method if one is
        given. A snapshot of recurrent states is stored, so that the cache can be cropped."""
        self.store_state_snapshot()
        self.query = query_state
        self.method = self.method if method is None else method

    def check_belongs_to_model(self, current_call: CurrentForwardCall | None) -> None:
        if current_call is not self.forward_pass:
            raise UsageError(
                "the KV cache belongs to another model, or to a model that was detached",
                "make the cache by new_cache() of the attached model that you call",
            )

    @property
    def is_unobserved_prefill(self) -> bool:
        """Whether the next forward call is a prefill that no selector or trace observes."""
        phase, trace = self.query.phase, self.query.trace
        return phase is Phase.PREFILL and trace is None and not self.method.selector.is_observer

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if self.forward_pass.get_current_cache() is not self:
            self.check_belongs_to_model(None)
        if layer_idx == self.kv_layers[0].layer:
            self._check_token_positions(key_states.shape[2])
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def _check_token_positions(self, token_count: int) -> None:
        """Raises UsageError if the tokens of a forward call do not follow the cached tokens."""
        length = self.kv_layers[0].get_seq_length()
        if any(layer.get_seq_length() != length for layer in self.kv_layers):
            raise UsageError(*INTERRUPTED_CALL)
        span = self.forward_pass.span or (length, length + token_count - 1)
        if span != (length, length + token_count - 1):
            raise UsageError(
                f"the positions of {token_count} tokens must follow the {length} cached tokens, "
                f"got {span[0]} to {span[1]}",
                "call the model without position_ids, and with use_cache=True",
            )
        # After the cache was cropped, a new question begins.
        if self.query.phase is Phase.AUTO and self.query.stop != length:
            self.query = QueryState(trace=self.query.trace)

    def get_layer_kv_cache(self, layer_index: int) -> LayerMemory:
        """Returns the keys, values and selector states that one layer's attention uses."""
        if layer_index in self._sources:
            source = self.get_layer_kv_cache(self._sources[layer_index])
            return KVSharingLayerMemory(layer_index, source.store, source.states, source=source)
        layer = self.layers[layer_index]
        assert isinstance(layer, KvCacheLayer), "the layer keeps no keys"
        assert layer.memory, "the layer has no tokens"
        return layer.memory

    @property
    def layer_kv_caches(self) -> list[LayerMemory]:
        """The keys, values and selector states of each layer that stores keys, in layer order."""
        return [self.get_layer_kv_cache(layer.layer) for layer in self.kv_layers]

    def use_filled_kv_stores(
        self, stores: Sequence[KVStore], projections: Sequence[Projection | None] | None,
        layer_states: Sequence[dict[Any, LayerState]] = (),
        recurrent_states: Sequence[RecurrentState] = (),
    ) -> None:  # fmt: skip
        """Makes the cache use stores that already contain keys and values, one for each layer that
        stores keys. `projections` is None if no compressor of keys has been fitted yet."""
        assert len(recurrent_states) == len(self.states.layers), "some states are missing"
        self.states.replace_states(recurrent_states, len(stores[0]))
        for i, layer in enumerate(self.kv_layers):
            memory = LayerMemory(layer.layer, stores[i], layer_states[i] if layer_states else {})
            memory.projection = projections[i] if projections else None
            memory.fitted = projections is not None
            layer.memory = memory

    @property
    def nbytes(self) -> int:
        stores: list[Any] = [one.memory.store for one in self.kv_layers if one.memory]
        return sum(one.nbytes for one in [*stores, *self.states.list_state_tensors()])

    def store_state_snapshot(self) -> None:
        """Copies the recurrent states, so that the cache can be cropped to its present length."""
        self.states.store_state_snapshot()

    def free_temporary_copies(self) -> None:
        """Frees the temporary copies of cached keys and values that a question needed."""
        for layer in self.kv_layers:
            if layer.memory:
                layer.memory.fetched = None

    def truncate(self, token_count: int) -> None:
        """Crops the KV cache to its first `token_count` tokens, even after an interrupted call.
        Raises UsageError: the model has recurrent states, but no snapshot at this length."""
        shortest = min(layer.get_seq_length() for layer in self.kv_layers)
        self.states.restore_states(min(token_count, shortest))
        for layer in self.kv_layers:
            extra = layer.get_seq_length() - token_count
            if extra > 0:
                layer.crop(-extra)

    def crop(self, tokens_to_remove: int) -> None:
        """Removes -`tokens_to_remove` tokens at the end. Raises UsageError: see `truncate`."""
        if tokens_to_remove > 0:
            raise ValueError(f"tokens_to_remove must be negative or 0, got {tokens_to_remove}")
        self.truncate(max(0, self.get_seq_length() + tokens_to_remove))

    def reset(self) -> None:
        self.truncate(0)
        for layer in self.kv_layers:
            layer.memory = None

    @torch.no_grad()
    def compute_reduced_keys(self) -> None:
        """Fits compressors and reduces all cached keys, which would else delay the first answer."""
        for layer in self.kv_layers:
            if layer.memory and layer.layer in self._method_layers:
                layer.memory.add_reduced_keys(self.method, len(layer.memory.store))

    def _refuse_batch_operation(self, *args: Any, **kwargs: Any) -> Any:
        raise UsageError(
            "ESA attends to one sequence at a time, so beam search and batches are impossible",
            "generate by greedy search, or by sampling with num_return_sequences=1",
        )

    reorder_cache = batch_repeat_interleave = batch_select_indices = _refuse_batch_operation
