"""A transformers `Cache` for one attached model: a `LayerMemory` or the state of each layer.

A state, a convolution's last inputs or a recurrent one, cannot be cropped, as keys can: it goes
back to where a copy of it was made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DummyLayer, LinearAttentionLayer

from esa_cli.attention.method import LayerMemory, Method, SharedMemory
from esa_cli.attention.step import KVStore, LayerState, Projection
from esa_cli.attention.window import Phase, QueryState
from esa_cli.errors import UsageError
from esa_cli.models.files.families import family_of, layer_kinds, source_layers
from esa_cli.storage.memory_store import MakeStore, MemoryStore


@dataclass
class ForwardPass:
    """The forward call in progress of one attached model, if there is one: its cache, and absolute
    positions of its first and last token (None: they follow the cached ones)."""

    cache: ref[EsaCache] | None = None
    span: tuple[int, int] | None = None

    def current_cache(self) -> EsaCache | None:
        """The cache of the call in progress; an interrupted call does not keep it alive."""
        return None if self.cache is None else self.cache()


class EsaLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer: appends a forward call's keys and values to its memory, and returns them.

    Args:
        make: makes the store with the first rows. latent: for `LatentHeads`.
    """

    is_sliding = False
    is_croppable = True

    def __init__(self, layer: int, make: MakeStore, latent: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.layer, self.make, self.latent = layer, make, latent
        self.memory: LayerMemory | None = None
        self.expected = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Does nothing: `append` makes the store."""

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Appends keys and values of C tokens, (G, C, D) each."""
        if self.memory is None:
            heads, _, dim = keys.shape
            store = self.make(self.layer, heads, dim, keys.dtype, keys.device, self.latent)
            if self.expected and isinstance(store, MemoryStore):
                store.expect(self.expected)
            self.memory = LayerMemory(self.layer, store)
        self.memory.store.append(keys.detach(), values.detach())

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Appends C tokens, (1, G, C, D) each, and returns them as they came. Of latents one is
        returned, since the model expands it for an attention function that does not use it."""
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
"""A copy of one layer's state; empty: that before the first token."""


class StateLayer(LinearAttentionLayer):
    """One layer's state, as transformers' models read and write it."""

    is_croppable = False

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        # Models write into these tensors, inside of inference mode and outside.
        with torch.inference_mode(False):
            super().lazy_initialization(*args, **kwargs)

    def crop(self, tokens_to_remove: int) -> None:
        """Does nothing: `StateHistory.restore` does."""

    def reset(self) -> None:
        """Drops the state."""
        LinearAttentionLayer.__init__(self, self.number_of_states)

    @property
    def tensors(self) -> State:
        """The state's tensors by kind and number, such as `conv.0`."""
        kinds = {"conv": self.conv_states, "recurrent": self.recurrent_states}
        each = ((f"{kind}.{i}", one) for kind in kinds for i, one in kinds[kind].items())
        return {name: tensor for name, tensor in each if tensor is not None}

    def copied(self) -> State:
        """A copy of the state."""
        with torch.inference_mode(False):
            return {name: tensor.detach().clone() for name, tensor in self.tensors.items()}

    def restore(self, state: State) -> None:
        """Goes back to a copied state."""
        self.reset()
        for name, tensor in state.items():
            kind, number = name.split(".")
            self.lazy_initialization(**{f"{kind}_states": tensor, "state_idx": int(number)})
            if kind == "conv":
                self.has_previous_state[int(number)] = True
        for name, tensor in self.tensors.items():
            tensor.copy_(state[name])


class MixedLayer(StateLayer, EsaLayer):  # type: ignore[no-untyped-call]
    """A layer with keys and values, which can be cropped, and a state."""

    crop = EsaLayer.crop

    def __init__(self, layer: int, make: MakeStore) -> None:
        EsaLayer.__init__(self, layer, make)
        StateLayer.__init__(self)


INTERRUPTED = (
    "the cache's last forward call was interrupted",
    "crop it with truncate(n) to the tokens before that call",
)
"""Message and hint where the layers have different tokens."""
KEPT = 2
"""Snapshots kept at once: of a document's end, and of the turn's beginning."""


class StateHistory:
    """The states of the layers that keep one, and snapshots of them by the number of tokens before.

    Attributes:
        tokens: how many the states come from; None: a forward call was interrupted.
    """

    def __init__(self, layers: Sequence[StateLayer]) -> None:
        self.layers = layers
        self.tokens: int | None = 0
        self._snapshots: dict[int, list[State]] = {}
        self._automatic: dict[int, list[State]] = {}

    def snapshot(self) -> None:
        """Keeps a copy of the states; only the last `KEPT` copies stay."""
        if self.layers and self.tokens and self.tokens not in self._snapshots:
            self._snapshots[self.tokens] = self.taken()
            for oldest in sorted(self._snapshots)[:-KEPT]:
                del self._snapshots[oldest]

    def begin_call(self, tokens: int) -> None:
        """Begins a forward call; before one of several tokens the states are copied. Raises
        UsageError: the last call was interrupted, and not cropped since."""
        if not self.layers:
            return
        if self.tokens is None:
            raise UsageError(*INTERRUPTED)
        if tokens > 1 and self.tokens not in self._snapshots:
            self._automatic = {self.tokens: self.taken()}
        self.tokens = None

    def end_call(self, tokens: int) -> None:
        """Ends a forward call, after which there are so many tokens."""
        self.tokens = tokens
        for tensor in [one for layer in self.layers for one in layer.tensors.values()]:
            if tensor.requires_grad:  # of a model with gradients
                tensor.detach_()

    def restore(self, tokens: int) -> None:
        """Goes back to so many tokens. Raises UsageError: no states were kept there."""
        if self.layers and tokens != self.tokens:
            known = {0: [State()] * len(self.layers), **self._automatic, **self._snapshots}
            if tokens not in known:
                raise UsageError(
                    f"this model's layers keep a state, which was not kept at {tokens} tokens",
                    "call snapshot() on the cache where it will be cropped to",
                )
            for layer, state in zip(self.layers, known[tokens], strict=True):
                layer.restore(state)
        self.tokens = tokens
        for kept in (self._automatic, self._snapshots):
            for later in [at for at in kept if at > tokens]:
                del kept[later]

    def taken(self) -> list[State]:
        """A copy of the states, one for each layer that keeps one."""
        return [layer.copied() for layer in self.layers]

    def give(self, states: Sequence[State], tokens: int) -> None:
        """Uses copied states, which come from so many tokens, in place of the present ones."""
        self._snapshots, self._automatic = {tokens: list(states)}, {}
        self.tokens = None
        self.restore(tokens)

    @property
    def nbytes(self) -> int:
        """Bytes of the states, without their copies."""
        return sum(one.nbytes for layer in self.layers for one in layer.tensors.values())


class EsaCache(Cache):
    """The memory of one document for one attached model; `Attachment.new_cache` makes it.

    Attributes:
        method: what runs now. query: the state of the turn in progress; see `begin`.
        own: the layers with keys and values. states: of the recurrent layers.
    """

    def __init__(
        self, forward: ForwardPass, method: Method, config: Any, make: MakeStore,
        method_layers: Sequence[int],
    ) -> None:  # fmt: skip
        latent = family_of(config).latent
        new: dict[str, Callable[[int], Any]] = {
            "attention": lambda layer: EsaLayer(layer, make, latent),
            "both": lambda layer: MixedLayer(layer, make),
            "state": lambda layer: StateLayer(),
        }
        layers = [
            new.get(kind, lambda layer: DummyLayer())(i)  # type: ignore[no-untyped-call]
            for i, kind in enumerate(layer_kinds(config.to_dict()))
        ]
        super().__init__(layers=layers)
        self.own = [layer for layer in layers if isinstance(layer, EsaLayer)]
        self.states = StateHistory([layer for layer in layers if isinstance(layer, StateLayer)])
        self._method_layers, self._sources = method_layers, source_layers(config)
        self.forward_pass, self.method, self.query = forward, method, QueryState()

    def expect(self, tokens: int) -> None:
        """Announces the number of tokens before the first, so that a GPU allocates memory once."""
        for layer in self.own:
            layer.expected = tokens

    def begin(self, query: QueryState, method: Method | None = None) -> None:
        """Begins a turn, to whose beginning the cache can be cropped, by a method from now on."""
        self.snapshot()
        self.query = query
        self.method = self.method if method is None else method

    def check_owner(self, forward_pass: ForwardPass | None) -> None:
        """Raises UsageError where the cache is not one of the model with this `ForwardPass`."""
        if forward_pass is not self.forward_pass:
            raise UsageError(
                "this cache was made for another model, or for one that is not attached any more",
                "use new_cache() of the model's own attachment",
            )

    @property
    def is_plain_prefill(self) -> bool:
        """Whether the tokens to come are prefilled without a trace or an observing selector."""
        phase, trace = self.query.phase, self.query.trace
        return phase is Phase.PREFILL and trace is None and not self.method.selector.observes

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if self.forward_pass.current_cache() is not self:
            self.check_owner(None)
        if layer_idx == self.own[0].layer:
            self._check_positions(key_states.shape[2])
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def _check_positions(self, count: int) -> None:
        """Checks that a call's tokens follow the cached ones. After a crop another turn begins."""
        length = self.own[0].get_seq_length()
        if any(layer.get_seq_length() != length for layer in self.own):
            raise UsageError(*INTERRUPTED)
        span = self.forward_pass.span or (length, length + count - 1)
        if span != (length, length + count - 1):
            raise UsageError(
                f"positions of {count} tokens must follow the {length} cached ones, got "
                f"{span[0]} to {span[1]}",
                "leave position_ids out, and use_cache on",
            )
        if self.query.phase is Phase.AUTO and self.query.stop != length:
            self.query = QueryState(trace=self.query.trace)

    def memory(self, layer_idx: int) -> LayerMemory:
        """The memory of the model's layer with this index, perhaps over another layer's keys."""
        if layer_idx in self._sources:
            source = self.memory(self._sources[layer_idx])
            return SharedMemory(layer_idx, source.store, source.states, source=source)
        layer = self.layers[layer_idx]
        assert isinstance(layer, EsaLayer), "the layer keeps no keys"
        assert layer.memory, "the layer has no tokens"
        return layer.memory

    @property
    def memories(self) -> list[LayerMemory]:
        """The memories of all layers with keys and values."""
        return [self.memory(layer.layer) for layer in self.own]

    def hold(
        self, stores: Sequence[KVStore], projections: Sequence[Projection | None] | None,
        states: Sequence[dict[Any, LayerState]] = (), recurrent: Sequence[State] = (),
    ) -> None:  # fmt: skip
        """Uses stores that have tokens already, one for each layer with keys and values, and what
        is
        known of these tokens; projections None: nothing was fitted yet."""
        assert len(recurrent) == len(self.states.layers), "some states are missing"
        self.states.give(recurrent, len(stores[0]))
        for i, layer in enumerate(self.own):
            memory = LayerMemory(layer.layer, stores[i], states[i] if states else {})
            memory.projection = projections[i] if projections else None
            memory.fitted = projections is not None
            layer.memory = memory

    @property
    def nbytes(self) -> int:
        """Bytes that keys, values, reduced keys and states of all layers take."""
        stores = [layer.memory.store for layer in self.own if layer.memory]
        return sum(store.nbytes for store in stores) + self.states.nbytes

    def snapshot(self) -> None:
        """Copies the layers' states: the cache can be cropped to here, as to the snapshot
        before."""
        self.states.snapshot()

    def release(self) -> None:
        """Frees the memories' copies of keys and values."""
        for layer in self.own:
            if layer.memory:
                layer.memory.release()

    def truncate(self, length: int) -> None:
        """Crops to `length` tokens, also after an interrupted forward call. Raises UsageError: some
        layers keep a state, and no snapshot was made there."""
        shortest = min(layer.get_seq_length() for layer in self.own)
        self.states.restore(min(length, shortest))
        for layer in self.own:
            extra = layer.get_seq_length() - length
            if extra > 0:
                layer.crop(-extra)

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last -tokens_to_remove tokens. Raises: as `truncate`."""
        if tokens_to_remove > 0:
            raise ValueError(f"crop takes a negative number of tokens, got {tokens_to_remove}")
        self.truncate(max(0, self.get_seq_length() + tokens_to_remove))

    def reset(self) -> None:
        """Drops all tokens."""
        self.truncate(0)
        for layer in self.own:
            layer.memory = None

    @torch.no_grad()
    def project(self) -> None:
        """Fits compressors and computes reduced keys, as the first question would."""
        for layer in self.own:
            if layer.memory and layer.layer in self._method_layers:
                layer.memory.project(self.method, len(layer.memory.store))

    def _one_sequence(self, *args: Any, **kwargs: Any) -> Any:
        raise UsageError(
            "ESA attends to one sequence at a time: no beams, no several answers at once",
            "use greedy search or sampling with num_return_sequences=1",
        )

    reorder_cache = batch_repeat_interleave = batch_select_indices = _one_sequence
