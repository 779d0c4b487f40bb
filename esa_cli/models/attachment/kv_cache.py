"""A transformers `Cache` for one attached model, which holds a `LayerMemory` or a state for each
layer.

A state, such as a convolution's last inputs or a recurrent state, cannot be cropped as keys can: it
can only be restored to a token count at which it was copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DummyLayer, LinearAttentionLayer

from esa_cli.attention.method import LayerMemory, Method, SharedLayerMemory
from esa_cli.attention.step import KVStore, LayerState, Projection
from esa_cli.attention.window import Phase, QueryState
from esa_cli.errors import UsageError
from esa_cli.models.files.families import get_family, list_layer_kinds, map_source_layers
from esa_cli.storage.memory_store import MemoryStore


@dataclass
class CurrentCall:
    """The forward call of an attached model that is in progress, if any: its cache, and the
    absolute positions of its first and last token, or None if the tokens follow the cached ones."""

    cache: ref[EsaCache] | None = None
    span: tuple[int, int] | None = None

    def get_current_cache(self) -> EsaCache | None:
        """Returns the cache of the call in progress, without keeping it in memory, or None."""
        return None if self.cache is None else self.cache()


class KvCacheLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer of the cache, which appends a forward call's keys and values to the layer's memory.
    The memory is created at the first tokens; its keys and values are in host memory if `on_host`.
    `latent` says whether the layer receives latents for `LatentHeads`."""

    is_sliding = False
    is_croppable = True

    def __init__(self, layer: int, on_host: bool, latent: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.layer, self.on_host, self.latent = layer, on_host, latent
        self.memory: LayerMemory | None = None
        self.expected = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Does nothing, since `append` creates the key/value store."""

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Appends keys and values (G, C, D) of C tokens: G key/value heads of dimension D."""
        if self.memory is None:
            heads, _, dim = keys.shape
            store = MemoryStore(heads, dim, keys.dtype, keys.device, self.latent, self.on_host)
            store.expect(self.expected)
            self.memory = LayerMemory(self.layer, store)
        self.memory.store.append(keys.detach(), values.detach())

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Appends keys and values of C tokens, (1, G, C, D) each, and returns both unchanged. If
        the layer receives latents, only the first head is returned, since ESA ignores the result.
        """
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


State = dict[str, Tensor]
"""A copy of one layer's state; an empty one stands for the state before the first token."""


class StateLayer(LinearAttentionLayer):
    """A cache layer with a state that the code of transformers' models reads and writes."""

    is_croppable = False

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        # Models write into these tensors, inside of inference mode and outside.
        with torch.inference_mode(False):
            super().lazy_initialization(*args, **kwargs)

    def crop(self, tokens_to_remove: int) -> None:
        """Does nothing, since `StateHistory` restores states."""

    def reset(self) -> None:
        """Discards the layer's state."""
        LinearAttentionLayer.__init__(self, self.number_of_states)

    @property
    def state_tensors(self) -> State:
        """The tensors of the layer's state by kind and number, such as `conv.0`."""
        kinds = {"conv": self.conv_states, "recurrent": self.recurrent_states}
        each = ((f"{kind}.{i}", one) for kind in kinds for i, one in kinds[kind].items())
        return {name: tensor for name, tensor in each if tensor is not None}

    def copy_state(self) -> State:
        """Returns a copy of the layer's state."""
        with torch.inference_mode(False):
            return {name: tensor.detach().clone() for name, tensor in self.state_tensors.items()}

    def restore_state(self, state: State) -> None:
        """Replaces the layer's state by a copied one."""
        self.reset()
        for name, tensor in state.items():
            kind, number = name.split(".")
            self.lazy_initialization(**{f"{kind}_states": tensor, "state_idx": int(number)})
            if kind == "conv":
                self.has_previous_state[int(number)] = True
        for name, tensor in self.state_tensors.items():
            tensor.copy_(state[name])


class KvAndStateLayer(StateLayer, KvCacheLayer):  # type: ignore[no-untyped-call]
    """A cache layer with both keys and values, which can be cropped, and a state."""

    crop = KvCacheLayer.crop

    def __init__(self, layer: int, on_host: bool) -> None:
        KvCacheLayer.__init__(self, layer, on_host)
        StateLayer.__init__(self)


INTERRUPTED_CALL = (
    "the cache's last forward call was interrupted",
    "call truncate(n) with the number of tokens before the interrupted call",
)
"""The message and the hint if the layers contain different numbers of tokens."""
SNAPSHOT_COUNT = 2
"""How many snapshots are stored at once: at the document's end and at the turn's beginning."""


class StateHistory:
    """The layers' states, and snapshots of the states by the number of tokens processed. `tokens`
    says how many tokens the states result from, and is None after an interrupted forward call."""

    def __init__(self, layers: Sequence[StateLayer]) -> None:
        self.layers = layers
        self.tokens: int | None = 0
        self._snapshots: dict[int, list[State]] = {}
        self._automatic: dict[int, list[State]] = {}

    def snapshot(self) -> None:
        """Stores a copy of the layers' states, and forgets all but the latest ones."""
        if self.layers and self.tokens and self.tokens not in self._snapshots:
            self._snapshots[self.tokens] = self.copy_states()
            for oldest in sorted(self._snapshots)[:-SNAPSHOT_COUNT]:
                del self._snapshots[oldest]

    def begin_call(self, new_tokens: int) -> None:
        """Begins a forward call; before a call of several tokens the states are copied. Raises
        UsageError: the previous call was interrupted, and the cache was not cropped since."""
        if not self.layers:
            return
        if self.tokens is None:
            raise UsageError(*INTERRUPTED_CALL)
        if new_tokens > 1 and self.tokens not in self._snapshots:
            self._automatic = {self.tokens: self.copy_states()}
        self.tokens = None

    def end_call(self, tokens: int) -> None:
        """Ends a forward call, after which the cache has `tokens` tokens."""
        self.tokens = tokens
        for tensor in self.list_tensors():
            if tensor.requires_grad:  # of a model with gradients
                tensor.detach_()

    def restore_states(self, tokens: int) -> None:
        """Restores the states as they were after `tokens` tokens. Raises UsageError: no copy
        exists."""
        if self.layers and tokens != self.tokens:
            known = {0: [State()] * len(self.layers), **self._automatic, **self._snapshots}
            if tokens not in known:
                raise UsageError(
                    f"this model's layers have states, and no copy was stored at {tokens} tokens",
                    "call snapshot() at the number of tokens to which the cache will be cropped",
                )
            for layer, state in zip(self.layers, known[tokens], strict=True):
                layer.restore_state(state)
        self.tokens = tokens
        for kept in (self._automatic, self._snapshots):
            for later in [at for at in kept if at > tokens]:
                del kept[later]

    def copy_states(self) -> list[State]:
        """Returns a copy of the state of each layer that has a state."""
        return [layer.copy_state() for layer in self.layers]

    def replace_states(self, states: Sequence[State], tokens: int) -> None:
        """Replaces the states by copied ones, which result from `tokens` tokens."""
        self._snapshots, self._automatic = {tokens: list(states)}, {}
        self.tokens = None
        self.restore_states(tokens)

    def list_tensors(self) -> list[Tensor]:
        """Returns the tensors of all states, without their snapshots."""
        return [tensor for layer in self.layers for tensor in layer.state_tensors.values()]


class EsaCache(Cache):
    """The KV cache and the states of one document in one attached model; `Attachment.new_cache`
    creates it.

    Attributes:
        method: the method that runs now. query: the state of the current turn; see `begin`.
        kv_layers: the layers with keys and values. states: the recurrent layers' states."""

    def __init__(
        self, forward: CurrentCall, method: Method, config: Any, on_host: bool,
        method_layers: Sequence[int],
    ) -> None:  # fmt: skip
        latent = get_family(config).latent
        new: dict[str, Callable[[int], Any]] = {
            "attention": lambda layer: KvCacheLayer(layer, on_host, latent),
            "both": lambda layer: KvAndStateLayer(layer, on_host),
            "state": lambda layer: StateLayer(),
        }
        layers = [
            new.get(kind, lambda layer: DummyLayer())(i)  # type: ignore[no-untyped-call]
            for i, kind in enumerate(list_layer_kinds(config.to_dict()))
        ]
        super().__init__(layers=layers)
        self.kv_layers = [layer for layer in layers if isinstance(layer, KvCacheLayer)]
        self.states = StateHistory([layer for layer in layers if isinstance(layer, StateLayer)])
        self._method_layers, self._sources = method_layers, map_source_layers(config)
        self.forward_pass, self.method, self.query = forward, method, QueryState()

    def expect(self, tokens: int) -> None:
        """Announces how many tokens will be cached, so that a GPU allocates memory only once."""
        for layer in self.kv_layers:
            layer.expected = tokens

    def begin(self, query: QueryState, method: Method | None = None) -> None:
        """Begins a turn, to whose start the cache can be cropped; `method` replaces the cache's."""
        self.snapshot()
        self.query = query
        self.method = self.method if method is None else method

    def check_owner(self, forward_pass: CurrentCall | None) -> None:
        """Raises UsageError where the cache belongs to another attached model."""
        if forward_pass is not self.forward_pass:
            raise UsageError(
                "the KV cache belongs to another model, or to a model that was detached",
                "call new_cache() of this model's attachment",
            )

    @property
    def is_plain_prefill(self) -> bool:
        """Whether the next forward call is a prefill that no trace or selector observes."""
        phase, trace = self.query.phase, self.query.trace
        return phase is Phase.PREFILL and trace is None and not self.method.selector.observes

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if self.forward_pass.get_current_cache() is not self:
            self.check_owner(None)
        if layer_idx == self.kv_layers[0].layer:
            self._check_token_positions(key_states.shape[2])
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def _check_token_positions(self, token_count: int) -> None:
        """Checks that a call's tokens follow the cached ones. After a crop, a new turn begins."""
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

    def memory(self, layer_idx: int) -> LayerMemory:
        """Returns the memory of one layer, which may share the keys of another layer."""
        if layer_idx in self._sources:
            source = self.memory(self._sources[layer_idx])
            return SharedLayerMemory(layer_idx, source.store, source.states, source=source)
        layer = self.layers[layer_idx]
        assert isinstance(layer, KvCacheLayer), "the layer keeps no keys"
        assert layer.memory, "the layer has no tokens"
        return layer.memory

    @property
    def memories(self) -> list[LayerMemory]:
        """The memories of all layers with keys and values."""
        return [self.memory(layer.layer) for layer in self.kv_layers]

    def adopt_stores(
        self, stores: Sequence[KVStore], projections: Sequence[Projection | None] | None,
        states: Sequence[dict[Any, LayerState]] = (), recurrent: Sequence[State] = (),
    ) -> None:  # fmt: skip
        """Uses stores that already contain tokens, one for each layer with keys and values, with
        their states. Without `projections`, no compressor has been fitted yet."""
        assert len(recurrent) == len(self.states.layers), "some states are missing"
        self.states.replace_states(recurrent, len(stores[0]))
        for i, layer in enumerate(self.kv_layers):
            memory = LayerMemory(layer.layer, stores[i], states[i] if states else {})
            memory.projection = projections[i] if projections else None
            memory.fitted = projections is not None
            layer.memory = memory

    @property
    def nbytes(self) -> int:
        """The bytes of all layers' keys, values, reduced keys and states."""
        stores: list[Any] = [one.memory.store for one in self.kv_layers if one.memory]
        return sum(one.nbytes for one in [*stores, *self.states.list_tensors()])

    def snapshot(self) -> None:
        """Copies the layers' states, so that the cache can later be cropped to this length."""
        self.states.snapshot()

    def release(self) -> None:
        """Frees the copies of keys and values that the layers' memories hold."""
        for layer in self.kv_layers:
            if layer.memory:
                layer.memory.free_fetched_tokens()

    def truncate(self, length: int) -> None:
        """Crops the cache to `length` tokens, even after an interrupted forward call. Raises
        UsageError: some layers have a state, and there is no snapshot at this length."""
        shortest = min(layer.get_seq_length() for layer in self.kv_layers)
        self.states.restore_states(min(length, shortest))
        for layer in self.kv_layers:
            extra = layer.get_seq_length() - length
            if extra > 0:
                layer.crop(-extra)

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last tokens from the cache; `tokens_to_remove` is minus their number. Raises
        UsageError: see `truncate`."""
        if tokens_to_remove > 0:
            raise ValueError(f"tokens_to_remove must be negative or 0, got {tokens_to_remove}")
        self.truncate(max(0, self.get_seq_length() + tokens_to_remove))

    def reset(self) -> None:
        """Removes all tokens from the cache."""
        self.truncate(0)
        for layer in self.kv_layers:
            layer.memory = None

    @torch.no_grad()
    def project(self) -> None:
        """Fits compressors and computes the reduced keys of all cached tokens, which otherwise the
        first question does."""
        for layer in self.kv_layers:
            if layer.memory and layer.layer in self._method_layers:
                layer.memory.add_reduced_keys(self.method, len(layer.memory.store))

    def _refuse_several_sequences(self, *args: Any, **kwargs: Any) -> Any:
        """Refuses the operations of transformers that need several sequences."""
        raise UsageError(
            "ESA attends to one sequence at a time, so beam search and batches are impossible",
            "use greedy search or sampling with num_return_sequences=1",
        )

    reorder_cache = batch_repeat_interleave = batch_select_indices = _refuse_several_sequences
