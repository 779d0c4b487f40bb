"""Runs a transformers model on plain text, without an attached attention method."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def call_before_each_layer(model: Any, callback: Callable[[], None]) -> Iterator[None]:
    """Calls `callback` before each decoder layer in each forward pass of a model until the block
    ends, or once before each pass if the model's layers are unknown."""
    layers = getattr(model.base_model, "layers", [model.base_model])
    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(layer.register_forward_pre_hook(lambda *_: callback()))
        yield


def call_layer_hooks(layer: nn.Module) -> None:
    """Calls the forward pre-hooks of a layer's module without running the module."""
    for hook in [*layer._forward_pre_hooks.values()]:
        hook(layer, ())


def share_layer_hooks(model: Any, other_model: Any) -> None:
    """Makes each layer of `other_model` call the forward pre-hooks of the same layer of `model`."""
    for layer, later in zip(model.base_model.layers, other_model.base_model.layers, strict=True):
        later.register_forward_pre_hook(lambda *_, layer=layer: call_layer_hooks(layer))


class _LastLayerReached(Exception):
    """Raised to end a forward pass after the last layer that is needed."""


def compute_hidden_states(
    model: Any, token_ids: Tensor, layer_count: int, lengths: Tensor | None = None
) -> Tensor:
    """Returns the hidden states (B, T, H) of token ids (B, T) after the first `layer_count` layers
    of a model, without running later layers, as float32 and divided by their root mean square. With
    the number of tokens of each sequence that are not padding, `lengths` (B,), each token attends
    to all tokens of its sequence; without them, to itself and earlier ones."""
    states = list[Tensor]()

    def stop_after_layer(module: nn.Module, inputs: Any, output: Any) -> None:
        states.append(output[0] if isinstance(output, tuple) else output)
        raise _LastLayerReached

    options = {}
    if lengths is not None:
        count = token_ids.shape[1]
        padding = torch.arange(count, device=lengths.device) >= lengths[:, None]
        mask = torch.zeros(len(lengths), 1, count, count, dtype=model.dtype, device=lengths.device)
        mask.masked_fill_(padding[:, None, None], torch.finfo(model.dtype).min)
        options["attention_mask"] = mask.to(model.device)
    last = model.base_model.layers[layer_count - 1]
    with last.register_forward_hook(stop_after_layer), suppress(_LastLayerReached):
        model.base_model(input_ids=token_ids.to(model.device), use_cache=False, **options)
    return normalise_hidden_states(states[0])


def normalise_hidden_states(states: Tensor) -> Tensor:
    """Returns hidden states (..., H) as float32, each divided by its root mean square."""
    return nn.functional.rms_norm(states.float(), states.shape[-1:], eps=1e-6)
