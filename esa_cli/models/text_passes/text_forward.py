"""Forward passes of plain text through a model that nothing is attached to.

`ModelForward` is transformers' own pass, `small_decoder.FusedForward` the quick one.
"""

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
def before_each_layer(model: Any, call: Callable[[], None]) -> Iterator[None]:
    """Calls `call` before each decoder layer of each forward pass of a model until the block ends;
    what it raises ends the pass. A model with its layers in another place calls it once a pass."""
    layers = getattr(model.base_model, "layers", [model.base_model])
    handles = [layer.register_forward_pre_hook(lambda *_: call()) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def call_hooks(layer: nn.Module) -> None:
    """Makes the calls of `before_each_layer` for a pass that does not run the layer's module."""
    for hook in [*layer._forward_pre_hooks.values()]:
        hook(layer, ())


def pass_calls_on(first: Any, other: Any) -> None:
    """Makes the calls before a layer of the first model before this layer of the other one, too,
    which was loaded later with the same weights."""
    for layer, later in zip(first.base_model.layers, other.base_model.layers, strict=True):
        later.register_forward_pre_hook(lambda *_, layer=layer: call_hooks(layer))


GROUP = 8
"""Sequences of a forward call: of like lengths, so that little is padded."""


def padded(sequences: Sequence[Sequence[int]]) -> Tensor:
    """(B, T) ids of sequences of different lengths, zeros at their ends."""
    rows = [torch.tensor(list(ids), dtype=torch.long) for ids in sequences]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def grouped(items: Sequence[int]) -> Iterator[Sequence[int]]:
    """The sequences' numbers, those of one forward call together."""
    for at in range(0, len(items), GROUP):
        yield items[at : at + GROUP]


class _LayerReached(Exception):
    """Ends a forward pass after the last layer that is needed."""


def hidden_states(model: Any, ids: Tensor, layers: int) -> Tensor:
    """Hidden states (B, T, H) float32, of RMS 1, of ids (B, T) after the first `layers` layers of a
    model. Later layers do not run; gradients pass through."""
    states = list[Tensor]()

    def stop(module: nn.Module, inputs: Any, output: Any) -> None:
        states.append(output[0] if isinstance(output, tuple) else output)
        raise _LayerReached

    handle = model.base_model.layers[layers - 1].register_forward_hook(stop)
    try:
        model.base_model(input_ids=ids.to(model.device), use_cache=False)
    except _LayerReached:
        pass
    finally:
        handle.remove()
    return of_size_one(states[0])


def of_size_one(states: Tensor) -> Tensor:
    """Hidden states as float32, each divided by the root mean square of its numbers."""
    return nn.functional.rms_norm(states.float(), states.shape[-1:], eps=1e-6)


KeysValues = tuple[Tensor, Tensor]
"""Keys and values of a layer, each (B, G, N, D)."""


@dataclass(frozen=True)
class KeyValuePast:
    """Keys and values of all layers, of B sequences of N tokens each, with padding."""

    pairs: Sequence[KeysValues]

    def select(self, rows: Sequence[int]) -> KeyValuePast:
        """The past of these sequences, each as often as it is named."""
        if len({*rows}) == 1:
            only, shape = slice(rows[0], rows[0] + 1), (len(rows), -1, -1, -1)
            return KeyValuePast(
                [(k[only].expand(shape), v[only].expand(shape)) for k, v in self.pairs]
            )
        at = torch.tensor([*rows], device=self.pairs[0][0].device)
        return KeyValuePast([(keys[at], values[at]) for keys, values in self.pairs])

    def cut(self, length: int) -> KeyValuePast:
        """The past of the first tokens alone, where prompts are padded."""
        return KeyValuePast([(k[:, :, :length], v[:, :, :length]) for k, v in self.pairs])


@dataclass(frozen=True)
class CachePast:
    """A cache of transformers, whatever its layers keep. Methods: as of `KeyValuePast`."""

    cache: Any
    device: torch.device

    def select(self, rows: Sequence[int]) -> CachePast:
        out = copy.copy(self.cache)
        out.layers = [copy.copy(layer) for layer in self.cache.layers]
        for layer in out.layers:  # the same tensors, which can be replaced
            for name, value in vars(layer).items():
                if isinstance(value, dict):
                    setattr(layer, name, dict(value))
        out.reorder_cache(torch.tensor([*rows], device=self.device))
        return CachePast(out, self.device)

    def cut(self, length: int) -> CachePast:
        if (extra := self.cache.get_seq_length() - length) > 0:
            self.cache.crop(-extra)
        return self


TextPast = KeyValuePast | CachePast


class TextForward(Protocol):
    """A forward pass of token ids on a device, of several prompts with padding, or of one."""

    @property
    def takes_padding(self) -> bool: ...

    @property
    def device(self) -> torch.device: ...

    def states(self, ids: Tensor, past: Any = None) -> tuple[Tensor, TextPast]:
        """Hidden states (B, T, hidden) of tokens (B, T), which `logits` takes, and the past with
        these tokens; `past`, a `TextPast` of this model, is used up."""

    def logits(self, states: Tensor) -> Tensor:
        """Logits (..., vocabulary), float32."""


class ModelForward:
    """The forward pass of a causal language model of transformers: a `TextForward`."""

    def __init__(self, model: Any) -> None:
        self._model, body = model, model.base_model
        # Llama 4 names its body otherwise than its class says.
        self._body = model.model if body is model else body
        self.device: torch.device = model.device

    @cached_property
    def takes_padding(self) -> bool:
        """Whether padded prompts can be continued: every layer keeps the keys of all tokens."""
        from transformers.cache_utils import DynamicCache, DynamicLayer

        layers = DynamicCache(config=self._model.config).layers
        return all(type(layer) is DynamicLayer for layer in layers)

    def states(self, ids: Tensor, past: CachePast | None = None) -> tuple[Tensor, CachePast]:
        from transformers import DynamicCache

        cache = DynamicCache(config=self._model.config) if past is None else past.cache
        out = self._body(input_ids=ids, past_key_values=cache, use_cache=True)
        return out.last_hidden_state, CachePast(cache, ids.device)

    def logits(self, states: Tensor) -> Tensor:
        """Logits as the family's models scale and cap the output of their last matrix."""
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
    """Prompts, by their token ids, that a model has processed, and the `logits` (prompts,
    vocabulary), float32, of the token that follows each."""

    def __init__(self, forward: TextForward, prompts: Sequence[Sequence[int]]) -> None:
        self._forward, self._lengths = forward, [len(ids) for ids in prompts]
        logits: list[Tensor] = [torch.empty(0)] * len(prompts)
        order = sorted(range(len(prompts)), key=lambda n: self._lengths[n])
        self._places: dict[int, tuple[TextPast, int]] = {}
        for group in grouped(order) if forward.takes_padding else [[n] for n in order]:
            batch = padded([prompts[n] for n in group])
            states, past = forward.states(batch.to(forward.device))
            last = torch.tensor([self._lengths[n] - 1 for n in group])
            lines = forward.logits(states[torch.arange(len(group)), last])
            for row, (n, line) in enumerate(zip(group, lines, strict=True)):
                self._places[n], logits[n] = (past, row), line
        self.logits = torch.stack(logits) if logits else torch.empty(0, 0)

    def continuation(self, number: int) -> Continuation:
        """Prompt `number` alone, to append tokens to."""
        past, row = self._places[number]
        return Continuation(self._forward, past.select([row]).cut(self._lengths[number]))


class Continuation:
    """One prompt, which is continuation 0, with alternative continuations of one length."""

    def __init__(self, forward: TextForward, past: TextPast) -> None:
        self._forward, self._past = forward, past

    def append(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """Logits (n, vocabulary) after n tokens; each extends the continuation `parents[i]`."""
        ids = torch.tensor(list(tokens), device=self._forward.device)[:, None]
        states, self._past = self._forward.states(ids, self._past.select(parents))
        return self._forward.logits(states[:, -1])


UNFIT = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, RuntimeError,
    TypeError, ValueError,
)  # fmt: skip
"""Errors of a model that cannot be continued; `before_each_layer` ends a pass by others."""


@torch.inference_mode()
def plain_forward(model: Any) -> ModelForward:
    """A bare model's forward pass. Models of no supported family are tried: a short text in two
    parts must give the logits of a whole pass.

    Raises:
        ModelError: the logits differ, or are no numbers in the model's type.
    """
    forward = ModelForward(model)
    if model.config.model_type in FAMILIES:
        return forward
    ids = (torch.arange(1, 14) * 7 % model.config.vocab_size)[None].to(forward.device)
    try:
        first, past = forward.states(ids[:, :6])
        second, _ = forward.states(ids[:, 6:], past.select([0]))
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
