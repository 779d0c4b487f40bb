"""Runs a transformers model on plain text, without an attached attention method."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from esa_cli.errors import ModelError
from esa_cli.models.files.families import FAMILIES, get_model_family
from esa_cli.system.machine import is_out_of_memory_error


@contextmanager
def call_before_each_layer(model: Any, callback: Callable[[], None]) -> Iterator[None]:
    """Calls `callback` before each decoder layer in each forward pass of a model until the block
    ends, or once before each pass if the model's layers are unknown."""
    layers = getattr(model.base_model, "layers", [model.base_model])
    handles = [layer.register_forward_pre_hook(lambda *_: callback()) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def call_layer_hooks(layer: nn.Module) -> None:
    """Calls the forward pre-hooks of a layer's module without running the module."""
    for hook in [*layer._forward_pre_hooks.values()]:
        hook(layer, ())


def share_layer_hooks(model: Any, other_model: Any) -> None:
    """Makes each layer of `other_model` call the forward pre-hooks of the same layer of `model`."""
    layers = zip(model.base_model.layers, other_model.base_model.layers, strict=True)
    for layer, later in layers:
        later.register_forward_pre_hook(lambda *_, layer=layer: call_layer_hooks(layer))


class _LastLayerReached(Exception):
    """Raised to end a forward pass after the last layer that is needed."""


def compute_hidden_states(model: Any, token_ids: Tensor, layer_count: int) -> Tensor:
    """Returns the hidden states (B, T, H) of token ids (B, T) after the first `layer_count` layers
    of a model, without running later layers, as float32 and divided by their root mean square."""
    states = list[Tensor]()

    def stop_after_layer(module: nn.Module, inputs: Any, output: Any) -> None:
        states.append(output[0] if isinstance(output, tuple) else output)
        raise _LastLayerReached

    handle = model.base_model.layers[layer_count - 1].register_forward_hook(stop_after_layer)
    try:
        model.base_model(input_ids=token_ids.to(model.device), use_cache=False)
    except _LastLayerReached:
        pass
    finally:
        handle.remove()
    return normalise_hidden_states(states[0])


def normalise_hidden_states(states: Tensor) -> Tensor:
    """Returns hidden states (..., H) as float32, each divided by its root mean square."""
    return nn.functional.rms_norm(states.float(), states.shape[-1:], eps=1e-6)


@dataclass(frozen=True)
class PastTransformersCache:
    """The KV cache of transformers for earlier tokens of a batch of sequences."""

    cache: Any
    device: torch.device

    def select_sequences(self, indices: Sequence[int]) -> PastTransformersCache:
        """Returns a copy of the KV cache with the sequences at `indices`, which may repeat."""
        out = copy.copy(self.cache)
        out.layers = [copy.copy(layer) for layer in self.cache.layers]
        for layer in out.layers:  # the same tensors, which can be replaced
            for name, value in vars(layer).items():
                if isinstance(value, dict):
                    setattr(layer, name, dict(value))
        out.reorder_cache(torch.tensor([*indices], device=self.device))
        return PastTransformersCache(out, self.device)

    def cut_to_length(self, token_count: int) -> PastTransformersCache:
        """Removes all but the first `token_count` tokens of each sequence from the KV cache."""
        if (extra := self.cache.get_seq_length() - token_count) > 0:
            self.cache.crop(-extra)
        return self


class TransformersForward:
    """Computes hidden states and logits of token ids by a transformers model's own code."""

    def __init__(self, model: Any) -> None:
        self._model, body = model, model.base_model
        # Llama 4 names its body otherwise than its class says.
        self._body = model.model if body is model else body
        self.device: torch.device = model.device

    @cached_property
    def accepts_padding(self) -> bool:
        """Whether prompts of different lengths can be processed in one padded batch."""
        from transformers.cache_utils import DynamicCache, DynamicLayer

        layers = DynamicCache(config=self._model.config).layers
        return all(type(layer) is DynamicLayer for layer in layers)

    def compute_states(
        self, token_ids: Tensor, past: PastTransformersCache | None = None
    ) -> tuple[Tensor, PastTransformersCache]:
        """Returns the hidden states (B, T, hidden) of token ids (B, T) after the tokens in `past`,
        and the extended KV cache, in place of which `past` must not be used again."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self._model.config) if past is None else past.cache
        out = self._body(input_ids=token_ids, past_key_values=cache, use_cache=True)
        return out.last_hidden_state, PastTransformersCache(cache, token_ids.device)

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Returns the logits (..., vocabulary) of hidden states (..., hidden), with the scaling and
        the soft cap of the model."""
        logits: Tensor = self._model.get_output_embeddings()(hidden_states).float()
        config, family = self._model.config, get_model_family(self._model.config)
        if family.logit_factor:
            logits = logits * getattr(config, family.logit_factor)
        if family.logit_divisor:
            logits = logits / getattr(config, family.logit_divisor)
        if family.logit_cap and (cap := getattr(config, family.logit_cap)) is not None:
            logits = cap * torch.tanh(logits / cap)
        return logits


UNFIT = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, RuntimeError,
    TypeError, ValueError,
)  # fmt: skip
"""The errors that a model raises if its KV cache cannot be used as `TransformersForward` does."""


@torch.inference_mode()
def make_transformers_forward(model: Any) -> TransformersForward:
    """Returns the `TransformersForward` of a model, after testing a model of an unknown family on a
    short text. Raises ModelError: the text gives other logits in two parts than in one pass, or
    logits that are not finite."""
    forward = TransformersForward(model)
    if model.config.model_type in FAMILIES:
        return forward
    ids = (torch.arange(1, 14) * 7 % model.config.vocab_size)[None].to(forward.device)
    try:
        first, past = forward.compute_states(ids[:, :6])
        second, _ = forward.compute_states(ids[:, 6:], past.select_sequences([0]))
        parts = forward.compute_logits(torch.cat((first, second), 1))
        whole = model(input_ids=ids, use_cache=False).logits.float()
        apart = 1e-4 if model.dtype == torch.float32 else 3e-2
        if whole.isfinite().all() and (parts - whole).abs().max() <= apart * whole.abs().max():
            return forward
    except UNFIT as error:
        if is_out_of_memory_error(error):
            raise
    dtype, kind = str(model.dtype).removeprefix("torch."), model.config.model_type
    raise ModelError(
        f"logits of models of type {kind!r} in {dtype} must be finite numbers, depend only on "
        "earlier tokens, and be the same with a KV cache",
        "choose another causal language model, or load it with --dtype float32",
    )
