"""Forward passes of plain text through a model without an attached method.

`ModelForward` is the forward pass of transformers; `small_decoder.FusedForward` is a faster one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from esa_cli.errors import ModelError
from esa_cli.models.files.families import FAMILIES, family_of
from esa_cli.system.machine import memory_ran_out


@contextmanager
def before_each_layer(model: Any, callback: Callable[[], None]) -> Iterator[None]:
    """Calls `callback` before each decoder layer of each forward pass of a model until the block
    ends; an exception in `callback` ends the pass. Without known layers, each pass makes one call.
    """
    layers = getattr(model.base_model, "layers", [model.base_model])
    handles = [layer.register_forward_pre_hook(lambda *_: callback()) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def call_layer_hooks(layer: nn.Module) -> None:
    """Calls the hooks of `before_each_layer` for a pass that does not run the layer's module."""
    for hook in [*layer._forward_pre_hooks.values()]:
        hook(layer, ())


def share_layer_hooks(model: Any, later_model: Any) -> None:
    """Makes the layers of `later_model` call the hooks of the same layers of `model`."""
    layers = zip(model.base_model.layers, later_model.base_model.layers, strict=True)
    for layer, later in layers:
        later.register_forward_pre_hook(lambda *_, layer=layer: call_layer_hooks(layer))


GROUP = 8
"""The number of sequences, of similar lengths to avoid padding, in a forward call."""


def padded(sequences: Sequence[Sequence[int]]) -> Tensor:
    """Returns the token ids (B, T) of sequences of different lengths, padded with zeros."""
    rows = [torch.tensor(list(ids), dtype=torch.long) for ids in sequences]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def grouped(items: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yields groups of sequence numbers; each group is processed by one forward call."""
    for at in range(0, len(items), GROUP):
        yield items[at : at + GROUP]


class _LastLayerReached(Exception):
    """An exception that ends a forward pass after the last layer that is needed."""


def hidden_states(model: Any, ids: Tensor, layer_count: int) -> Tensor:
    """Returns the hidden states (B, T, H), float32 and of RMS 1, of token ids (B, T) after the
    first `layer_count` layers of a model. Later layers do not run; gradients are computed if
    enabled."""
    states = list[Tensor]()

    def stop_after_layer(module: nn.Module, inputs: Any, output: Any) -> None:
        states.append(output[0] if isinstance(output, tuple) else output)
        raise _LastLayerReached

    handle = model.base_model.layers[layer_count - 1].register_forward_hook(stop_after_layer)
    try:
        model.base_model(input_ids=ids.to(model.device), use_cache=False)
    except _LastLayerReached:
        pass
    finally:
        handle.remove()
    return of_size_one(states[0])


def of_size_one(states: Tensor) -> Tensor:
    """Returns hidden states as float32, each divided by the root mean square of its numbers."""
    return nn.functional.rms_norm(states.float(), states.shape[-1:], eps=1e-6)


KeysValues = tuple[Tensor, Tensor]
"""The keys and the values of a layer, each (B, G, N, D): G key/value heads of dimension D."""


@dataclass(frozen=True)
class KeyValuePast:
    """The KV cache of all layers for B sequences, padded to N tokens each."""

    pairs: Sequence[KeysValues]

    def select_sequences(self, numbers: Sequence[int]) -> KeyValuePast:
        """Returns the KV cache of the sequences with these numbers; a number may be repeated."""
        if len({*numbers}) == 1:
            only, shape = slice(numbers[0], numbers[0] + 1), (len(numbers), -1, -1, -1)
            return KeyValuePast(
                [(k[only].expand(shape), v[only].expand(shape)) for k, v in self.pairs]
            )
        at = torch.tensor([*numbers], device=self.pairs[0][0].device)
        return KeyValuePast([(keys[at], values[at]) for keys, values in self.pairs])

    def cut_to_length(self, length: int) -> KeyValuePast:
        """Returns the KV cache of the first `length` tokens, without the padding of a prompt."""
        return KeyValuePast([(k[:, :, :length], v[:, :, :length]) for k, v in self.pairs])


@dataclass(frozen=True)
class CachePast:
    """A transformers cache with layers of any type, which has the methods of `KeyValuePast`."""

    cache: Any
    device: torch.device

    def select_sequences(self, numbers: Sequence[int]) -> CachePast:
        """Returns the cache of the sequences with these numbers; a number may be repeated."""
        out = copy.copy(self.cache)
        out.layers = [copy.copy(layer) for layer in self.cache.layers]
        for layer in out.layers:  # the same tensors, which can be replaced
            for name, value in vars(layer).items():
                if isinstance(value, dict):
                    setattr(layer, name, dict(value))
        out.reorder_cache(torch.tensor([*numbers], device=self.device))
        return CachePast(out, self.device)

    def cut_to_length(self, length: int) -> CachePast:
        """Crops the cache to the first `length` tokens."""
        if (extra := self.cache.get_seq_length() - length) > 0:
            self.cache.crop(-extra)
        return self


TextPast = KeyValuePast | CachePast


class TextForward(Protocol):
    """The interface of a forward pass of token ids, for one or several (padded) prompts."""

    @property
    def accepts_padding(self) -> bool: ...

    @property
    def device(self) -> torch.device: ...

    def states(self, ids: Tensor, past: Any = None) -> tuple[Tensor, TextPast]:
        """Returns the hidden states (B, T, hidden) of token ids (B, T), as input of `logits`, and
        the KV cache `past` extended by these tokens. The old `past` must not be used again."""

    def logits(self, states: Tensor) -> Tensor:
        """Returns logits (..., vocabulary), float32, of hidden states."""


class ModelForward:
    """The forward pass of a causal language model of transformers; it implements `TextForward`."""

    def __init__(self, model: Any) -> None:
        self._model, body = model, model.base_model
        # Llama 4 names its body otherwise than its class says.
        self._body = model.model if body is model else body
        self.device: torch.device = model.device

    @cached_property
    def accepts_padding(self) -> bool:
        """Whether padded prompts can be continued: every layer stores the keys of all tokens."""
        from transformers.cache_utils import DynamicCache, DynamicLayer

        layers = DynamicCache(config=self._model.config).layers
        return all(type(layer) is DynamicLayer for layer in layers)

    def states(self, ids: Tensor, past: CachePast | None = None) -> tuple[Tensor, CachePast]:
        """Returns the hidden states of token ids, and the cache extended by these tokens."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self._model.config) if past is None else past.cache
        out = self._body(input_ids=ids, past_key_values=cache, use_cache=True)
        return out.last_hidden_state, CachePast(cache, ids.device)

    def logits(self, states: Tensor) -> Tensor:
        """Returns logits, scaled and capped as the model's family does."""
        logits: Tensor = self._model.get_output_embeddings()(states).float()
        config, family = self._model.config, family_of(self._model.config)
        if family.multiply:
            logits = logits * getattr(config, family.multiply)
        if family.divide:
            logits = logits / getattr(config, family.divide)
        if family.cap and (cap := getattr(config, family.cap)) is not None:
            logits = cap * torch.tanh(logits / cap)
        return logits


class PromptBatch:
    """Prompts that a model has processed, given as token ids, and the `logits` (prompts,
    vocabulary), float32, of the token that follows each prompt."""

    def __init__(self, forward: TextForward, prompts: Sequence[Sequence[int]]) -> None:
        self._forward, self._lengths = forward, [len(ids) for ids in prompts]
        logits: list[Tensor] = [torch.empty(0)] * len(prompts)
        order = sorted(range(len(prompts)), key=lambda n: self._lengths[n])
        self._places: dict[int, tuple[TextPast, int]] = {}
        for group in grouped(order) if forward.accepts_padding else [[n] for n in order]:
            batch = padded([prompts[n] for n in group])
            states, past = forward.states(batch.to(forward.device))
            last = torch.tensor([self._lengths[n] - 1 for n in group])
            lines = forward.logits(states[torch.arange(len(group)), last])
            for row, (n, line) in enumerate(zip(group, lines, strict=True)):
                self._places[n], logits[n] = (past, row), line
        self.logits = torch.stack(logits) if logits else torch.empty(0, 0)

    def continuation(self, prompt_index: int) -> Continuation:
        """Returns a `Continuation` of one prompt, to which tokens can be appended."""
        past, row = self._places[prompt_index]
        alone = past.select_sequences([row]).cut_to_length(self._lengths[prompt_index])
        return Continuation(self._forward, alone)


class Continuation:
    """A prompt with alternative continuations of one length; the prompt is continuation 0."""

    def __init__(self, forward: TextForward, past: TextPast) -> None:
        self._forward, self._past = forward, past

    def append(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """Returns logits (n, vocabulary) after n tokens; token i extends number `parents[i]`."""
        ids = torch.tensor(list(tokens), device=self._forward.device)[:, None]
        states, self._past = self._forward.states(ids, self._past.select_sequences(parents))
        return self._forward.logits(states[:, -1])


UNFIT = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, RuntimeError,
    TypeError, ValueError,
)  # fmt: skip
"""The errors of a model whose text cannot be continued; `before_each_layer` raises others."""


@torch.inference_mode()
def plain_forward(model: Any) -> ModelForward:
    """Returns the forward pass of a model without an attached method. A model of an unsupported
    family is tested first: a short text in two parts must give the same logits as in one pass.
    Raises ModelError: the logits differ, or are not numbers in the model's number type."""
    forward = ModelForward(model)
    if model.config.model_type in FAMILIES:
        return forward
    ids = (torch.arange(1, 14) * 7 % model.config.vocab_size)[None].to(forward.device)
    try:
        first, past = forward.states(ids[:, :6])
        second, _ = forward.states(ids[:, 6:], past.select_sequences([0]))
        parts = forward.logits(torch.cat((first, second), 1))
        whole = model(input_ids=ids, use_cache=False).logits.float()
        apart = 1e-4 if model.dtype == torch.float32 else 3e-2
        if whole.isfinite().all() and (parts - whole).abs().max() <= apart * whole.abs().max():
            return forward
    except UNFIT as error:
        if memory_ran_out(error):
            raise
    dtype, kind = str(model.dtype).removeprefix("torch."), model.config.model_type
    raise ModelError(
        f"logits of models of type {kind!r} in {dtype} must be numbers, depend on earlier tokens "
        "alone, and be the same with a KV cache",
        "choose another causal language model, or use --dtype float32",
    )
