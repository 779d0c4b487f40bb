"""The forward pass of transformers, for plain text and without an attached method."""

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
    ends; an exception in `callback` ends the pass. In a model whose layers are unknown, `callback`
    is called once in each pass."""
    layers = getattr(model.base_model, "layers", [model.base_model])
    handles = [layer.register_forward_pre_hook(lambda *_: callback()) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def call_layer_hooks(layer: nn.Module) -> None:
    """Calls the hooks of a layer's module in a forward pass that does not run the module."""
    for hook in [*layer._forward_pre_hooks.values()]:
        hook(layer, ())


def share_layer_hooks(model: Any, other_model: Any) -> None:
    """Makes each layer of `other_model` call the hooks of the same layer of `model`."""
    layers = zip(model.base_model.layers, other_model.base_model.layers, strict=True)
    for layer, later in layers:
        later.register_forward_pre_hook(lambda *_, layer=layer: call_layer_hooks(layer))


class _LastLayerReached(Exception):
    """An exception that ends a forward pass after the last layer that is needed."""


def compute_hidden_states(model: Any, token_ids: Tensor, layer_count: int) -> Tensor:
    """Returns the hidden states (B, T, H), float32 and of RMS 1, of token ids (B, T) after the
    first `layer_count` layers of a model. Later layers do not run; gradients are computed if torch
    has them enabled."""
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
    """Returns hidden states as float32, each divided by the root mean square of its numbers."""
    return nn.functional.rms_norm(states.float(), states.shape[-1:], eps=1e-6)


@dataclass(frozen=True)
class PastTransformersCache:
    """A transformers cache of earlier tokens, which has the methods of `PastKeysValues`."""

    cache: Any
    device: torch.device

    def select_sequences(self, indices: Sequence[int]) -> PastTransformersCache:
        """Returns the cache of the sequences with these indices; an index may be repeated."""
        out = copy.copy(self.cache)
        out.layers = [copy.copy(layer) for layer in self.cache.layers]
        for layer in out.layers:  # the same tensors, which can be replaced
            for name, value in vars(layer).items():
                if isinstance(value, dict):
                    setattr(layer, name, dict(value))
        out.reorder_cache(torch.tensor([*indices], device=self.device))
        return PastTransformersCache(out, self.device)

    def cut_to_length(self, token_count: int) -> PastTransformersCache:
        """Removes all but the first `token_count` tokens of each sequence from the cache."""
        if (extra := self.cache.get_seq_length() - token_count) > 0:
            self.cache.crop(-extra)
        return self


class TransformersForward:
    """The forward pass of a causal language model of transformers, by the model's own code."""

    def __init__(self, model: Any) -> None:
        self._model, body = model, model.base_model
        # Llama 4 names its body otherwise than its class says.
        self._body = model.model if body is model else body
        self.device: torch.device = model.device

    @cached_property
    def accepts_padding(self) -> bool:
        """Whether padded prompts can be continued, since every layer stores all tokens' keys."""
        from transformers.cache_utils import DynamicCache, DynamicLayer

        layers = DynamicCache(config=self._model.config).layers
        return all(type(layer) is DynamicLayer for layer in layers)

    def compute_states(
        self, token_ids: Tensor, past: PastTransformersCache | None = None
    ) -> tuple[Tensor, PastTransformersCache]:
        """Returns the hidden states (B, T, hidden) of token ids (B, T), and the cache `past`
        extended by these tokens. `past` itself must not be used again."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self._model.config) if past is None else past.cache
        out = self._body(input_ids=token_ids, past_key_values=cache, use_cache=True)
        return out.last_hidden_state, PastTransformersCache(cache, token_ids.device)

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Returns the logits (..., vocabulary) of hidden states, scaled and capped as the model's
        family does."""
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
"""The errors of a model whose text cannot be continued; `call_before_each_layer` raises others."""


@torch.inference_mode()
def make_transformers_forward(model: Any) -> TransformersForward:
    """Returns the forward pass of a model without an attached method. A model of an unknown family
    is tested first: a short text in two parts must give the same logits as in one pass. Raises
    ModelError: the logits differ, or some are not numbers in the model's number type."""
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
        f"logits of models of type {kind!r} in {dtype} must be numbers, depend on earlier tokens "
        "alone, and be the same with a KV cache",
        "choose another causal language model, or use --dtype float32",
    )
