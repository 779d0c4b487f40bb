"""A transformers `Cache` for one attached model: keys and values, or a state, of each layer.

A state, such as a recurrent state or the last inputs of a convolution, cannot be cropped as keys
can: a state can only be restored to a token count at which the state was copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DummyLayer, LinearAttentionLayer

from esa_cli.attention.method import KVSharingLayerMemory, LayerMemory, Method
from esa_cli.attention.step import KVStore, LayerState, Projection
from esa_cli.attention.window import Phase, QueryState
from esa_cli.errors import UsageError
from esa_cli.models.files.families import get_model_family, list_layer_contents, map_key_sources
from esa_cli.storage.memory_store import MemoryStore


@dataclass
class CurrentForwardCall:
    """The forward call of an attached model that is in progress, if any: the cache of the call, and
    the absolute positions of the call's first and last token, or None for the next positions."""

    cache: ref[EsaCache] | None = None
    span: tuple[int, int] | None = None

    def get_current_cache(self) -> EsaCache | None:
        """Returns the KV cache of the forward call in progress, or None if there is no call."""
        return None if self.cache is None else self.cache()


class KvCacheLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer of an `EsaCache`, which appends the keys and values of each forward call to the
    layer's memory. Keys and values are in host memory if `on_host`; if `stores_latents`, the layer
    receives latents for `LatentProjections` instead."""

    is_sliding = False
    is_croppable = True

    def __init__(self, layer_index: int, on_host: bool, stores_latents: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.layer, self.on_host, self.latent = layer_index, on_host, stores_latents
        self.memory: LayerMemory | None = None
        self.expected = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Does nothing, since `append` creates the key/value store."""

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Appends keys and values (G, C, D) of C tokens, with G key/value heads of dimension D."""
        if self.memory is None:
            heads, _, dim = keys.shape
            store = MemoryStore(heads, dim, keys.dtype, keys.device, self.latent, self.on_host)
            store.expect(self.expected)
            self.memory = LayerMemory(self.layer, store)
        self.memory.store.append(keys.detach(), values.detach())

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Appends keys and values of C tokens, (1, G, C, D) each, and returns both unchanged. A
        layer that stores latents returns only the first head, since ESA ignores the result."""
        if not self.latent:
            self.append(key_states[0], value_states[0])
            return key_states, value_states
        rows = torch.cat((value_states[0], key_states[0]), dim=-1)
        self.append(rows, rows)
        return key_states[:, :, :1], value_states[:, :, :1]

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
"""A copy of one layer's state; an empty dict stands for the state before the first token."""


class RecurrentLayer(LinearAttentionLayer):
    """A cache layer with a recurrent state, which the code of transformers' models updates."""

    is_croppable = False

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        # Models write into these tensors, inside of inference mode and outside.
        with torch.inference_mode(False):
            super().lazy_initialization(*args, **kwargs)

    def crop(self, tokens_to_remove: int) -> None:
        """Does nothing, since a state cannot be cropped; `StateHistory` restores earlier states."""

    def reset(self) -> None:
        """Discards the layer's state."""
        LinearAttentionLayer.__init__(self, self.number_of_states)

    @property
    def state_tensors(self) -> RecurrentState:
        """The tensors of the layer's state by names of kind and number, such as `conv.0`."""
        kinds = {"conv": self.conv_states, "recurrent": self.recurrent_states}
        each = ((f"{kind}.{i}", one) for kind in kinds for i, one in kinds[kind].items())
        return {name: tensor for name, tensor in each if tensor is not None}

    def copy_state(self) -> RecurrentState:
        """Returns a copy of the layer's state."""
        with torch.inference_mode(False):
            return {name: tensor.detach().clone() for name, tensor in self.state_tensors.items()}

    def restore_state(self, state: RecurrentState) -> None:
        """Replaces the layer's state by a state that `copy_state` returned."""
        self.reset()
        for name, tensor in state.items():
            kind, number = name.split(".")
            self.lazy_initialization(**{f"{kind}_states": tensor, "state_idx": int(number)})
            if kind == "conv":
                self.has_previous_state[int(number)] = True
        for name, tensor in self.state_tensors.items():
            tensor.copy_(state[name])


class KvAndRecurrentLayer(RecurrentLayer, KvCacheLayer):  # type: ignore[no-untyped-call]
    """A cache layer with keys and values, which can be cropped, and also a recurrent state."""

    crop = KvCacheLayer.crop

    def __init__(self, layer_index: int, on_host: bool) -> None:
        KvCacheLayer.__init__(self, layer_index, on_host)
        RecurrentLayer.__init__(self)


INTERRUPTED_CALL = (
    "the cache's last forward call was interrupted",
    "call truncate(n) with the number of tokens before the interrupted call",
)
"""The message and the hint if the layers contain different numbers of tokens."""
SNAPSHOT_COUNT = 2
"""How many snapshots are stored at once: at the document's end and at the turn's beginning."""


class StateHistory:
    """The recurrent states of a cache's layers, and snapshots of the states by the number of tokens
    processed. `tokens` is the number of tokens from which the current states result, or None after
    an interrupted forward call."""

    def __init__(self, layers: Sequence[RecurrentLayer]) -> None:
        self.layers = layers
        self.tokens: int | None = 0
        self._snapshots: dict[int, list[RecurrentState]] = {}
        self._automatic: dict[int, list[RecurrentState]] = {}

    def store_snapshot(self) -> None:
        """Stores a copy of the layers' states, and deletes all but the latest copies."""
        if self.layers and self.tokens and self.tokens not in self._snapshots:
            self._snapshots[self.tokens] = self.copy_states()
            for oldest in sorted(self._snapshots)[:-SNAPSHOT_COUNT]:
                del self._snapshots[oldest]

    def begin_forward_call(self, new_token_count: int) -> None:
        """Notes that a forward call begins, and copies the states if it has several tokens.
        Raises UsageError: the last call was interrupted, and the cache was not cropped after it."""
        if not self.layers:
            return
        if self.tokens is None:
            raise UsageError(*INTERRUPTED_CALL)
        if new_token_count > 1 and self.tokens not in self._snapshots:
            self._automatic = {self.tokens: self.copy_states()}
        self.tokens = None

    def end_forward_call(self, token_count: int) -> None:
        """Notes that a forward call has ended, after which the cache has `token_count` tokens."""
        self.tokens = token_count
        for tensor in self.list_state_tensors():
            if tensor.requires_grad:  # of a model with gradients
                tensor.detach_()

    def restore_states(self, token_count: int) -> None:
        """Restores the layers' states to those after `token_count` tokens. Raises UsageError: the
        states were not copied at this number of tokens."""
        if self.layers and token_count != self.tokens:
            known = {0: [RecurrentState()] * len(self.layers), **self._automatic, **self._snapshots}
            if token_count not in known:
                raise UsageError(
                    f"the states of this model's layers were not copied at {token_count} tokens",
                    "call store_snapshot() of the cache at each length to which it will be cropped",
                )
            for layer, state in zip(self.layers, known[token_count], strict=True):
                layer.restore_state(state)
        self.tokens = token_count
        for kept in (self._automatic, self._snapshots):
            for later in [at for at in kept if at > token_count]:
                del kept[later]

    def copy_states(self) -> list[RecurrentState]:
        """Returns a copy of the current state of each layer that has a recurrent state."""
        return [layer.copy_state() for layer in self.layers]

    def replace_states(self, states: Sequence[RecurrentState], token_count: int) -> None:
        """Replaces the layers' states by copied states that result from `token_count` tokens."""
        self._snapshots, self._automatic = {token_count: list(states)}, {}
        self.tokens = None
        self.restore_states(token_count)

    def list_state_tensors(self) -> list[Tensor]:
        """Returns the tensors of the layers' current states, without those of snapshots."""
        return [tensor for layer in self.layers for tensor in layer.state_tensors.values()]


class EsaCache(Cache):
    """The KV cache and the states of one document in one attached model; `Attachment.new_cache`
    creates it.

    Attributes:
        method: the method by which the layers attend. query: the state of the current question.
        kv_layers: the layers with keys and values. states: the states of the recurrent layers."""

    def __init__(
        self, current_call: CurrentForwardCall, method: Method, config: Any, on_host: bool,
        method_layers: Sequence[int],
    ) -> None:  # fmt: skip
        latent = get_model_family(config).latent
        new: dict[str, Callable[[int], Any]] = {
            "attention": lambda layer: KvCacheLayer(layer, on_host, latent),
            "both": lambda layer: KvAndRecurrentLayer(layer, on_host),
            "state": lambda layer: RecurrentLayer(),
        }
        layers = [
            new.get(kind, lambda layer: DummyLayer())(i)  # type: ignore[no-untyped-call]
            for i, kind in enumerate(list_layer_contents(config.to_dict()))
        ]
        super().__init__(layers=layers)
        self.kv_layers = [layer for layer in layers if isinstance(layer, KvCacheLayer)]
        self.states = StateHistory([layer for layer in layers if isinstance(layer, RecurrentLayer)])
        self._method_layers, self._sources = method_layers, map_key_sources(config)
        self.forward_pass, self.method, self.query = current_call, method, QueryState()

    def announce_token_count(self, token_count: int) -> None:
        """Announces how many tokens will be cached, so that a GPU allocates memory only once."""
        for layer in self.kv_layers:
            layer.expected = token_count

    def begin_query(self, query_state: QueryState, method: Method | None = None) -> None:
        """Begins a question or a prefill, and stores a snapshot, so that the cache can be cropped
        to its present length. `method`, if given, replaces the method of the cache."""
        self.store_snapshot()
        self.query = query_state
        self.method = self.method if method is None else method

    def check_belongs_to_model(self, current_call: CurrentForwardCall | None) -> None:
        """Raises UsageError if the cache belongs to another model than the one that is called."""
        if current_call is not self.forward_pass:
            raise UsageError(
                "the KV cache belongs to another model, or to a model that was detached",
                "call new_cache() of this model's attachment",
            )

    @property
    def is_plain_prefill(self) -> bool:
        """Whether the next forward call is a prefill that no trace and no selector observes."""
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
        """Raises UsageError if the tokens of a forward call do not follow the cached tokens. After
        the cache was cropped, a new question begins."""
        length = self.kv_layers[0].get_seq_length()
        if any(layer.get_seq_length() != length for layer in self.kv_layers):
            raise UsageError(*INTERRUPTED_CALL)
        span = self.forward_pass.span or (length, length + token_count - 1)
        if span != (length, length + token_count - 1):
            raise UsageError(
                f"the positions of {token_count} tokens must follow the {length} cached tokens, "
                f"got {span[0]} to {span[1]}",
                "omit position_ids, and set use_cache=True",
            )
        if self.query.phase is Phase.AUTO and self.query.stop != length:
            self.query = QueryState(trace=self.query.trace)

    def get_layer_memory(self, layer_index: int) -> LayerMemory:
        """Returns the keys, values and states of one layer; it may use another layer's keys."""
        if layer_index in self._sources:
            source = self.get_layer_memory(self._sources[layer_index])
            return KVSharingLayerMemory(layer_index, source.store, source.states, source=source)
        layer = self.layers[layer_index]
        assert isinstance(layer, KvCacheLayer), "the layer keeps no keys"
        assert layer.memory, "the layer has no tokens"
        return layer.memory

    @property
    def memories(self) -> list[LayerMemory]:
        """The memory of each layer with keys and values of its own, in the order of the layers."""
        return [self.get_layer_memory(layer.layer) for layer in self.kv_layers]

    def use_filled_stores(
        self, stores: Sequence[KVStore], projections: Sequence[Projection | None] | None,
        layer_states: Sequence[dict[Any, LayerState]] = (),
        recurrent_states: Sequence[RecurrentState] = (),
    ) -> None:  # fmt: skip
        """Makes the cache use stores that already contain tokens, one for each layer with keys and
        values, and the layers' states. `projections` is None if no compressor was fitted yet."""
        assert len(recurrent_states) == len(self.states.layers), "some states are missing"
        self.states.replace_states(recurrent_states, len(stores[0]))
        for i, layer in enumerate(self.kv_layers):
            memory = LayerMemory(layer.layer, stores[i], layer_states[i] if layer_states else {})
            memory.projection = projections[i] if projections else None
            memory.fitted = projections is not None
            layer.memory = memory

    @property
    def nbytes(self) -> int:
        """The number of bytes of all layers' keys, values, reduced keys and states."""
        stores: list[Any] = [one.memory.store for one in self.kv_layers if one.memory]
        return sum(one.nbytes for one in [*stores, *self.states.list_state_tensors()])

    def store_snapshot(self) -> None:
        """Copies the layers' states, so that the cache can be cropped to its present length."""
        self.states.store_snapshot()

    def free_copies(self) -> None:
        """Frees the temporary copies of keys and values that the layers' memories contain."""
        for layer in self.kv_layers:
            if layer.memory:
                layer.memory.free_fetched_keys_and_values()

    def truncate(self, token_count: int) -> None:
        """Crops the cache to `token_count` tokens, even after an interrupted forward call. Raises
        UsageError: some layers have a state, and no snapshot was stored at this length."""
        shortest = min(layer.get_seq_length() for layer in self.kv_layers)
        self.states.restore_states(min(token_count, shortest))
        for layer in self.kv_layers:
            extra = layer.get_seq_length() - token_count
            if extra > 0:
                layer.crop(-extra)

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last n tokens from the cache, for `tokens_to_remove` = -n as in transformers.
        Raises UsageError: see `truncate`."""
        if tokens_to_remove > 0:
            raise ValueError(f"tokens_to_remove must be negative or 0, got {tokens_to_remove}")
        self.truncate(max(0, self.get_seq_length() + tokens_to_remove))

    def reset(self) -> None:
        """Removes all tokens from the cache."""
        self.truncate(0)
        for layer in self.kv_layers:
            layer.memory = None

    @torch.no_grad()
    def compute_reduced_keys(self) -> None:
        """Fits the method's compressors, and computes the reduced keys of all cached tokens, so
        that the first question need not."""
        for layer in self.kv_layers:
            if layer.memory and layer.layer in self._method_layers:
                layer.memory.add_reduced_keys(self.method, len(layer.memory.store))

    def _refuse_several_sequences(self, *args: Any, **kwargs: Any) -> Any:
        """Raises UsageError in place of the cache operations that need several sequences."""
        raise UsageError(
            "ESA attends to one sequence at a time, so beam search and batches are impossible",
            "use greedy search or sampling with num_return_sequences=1",
        )

    reorder_cache = batch_repeat_interleave = batch_select_indices = _refuse_several_sequences
