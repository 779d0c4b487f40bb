"""Calls before each layer of a model, and forward passes that end after one of its layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

_CALLS: WeakKeyDictionary[nn.Module, list[Callable[[], None]]] = WeakKeyDictionary()
"""What is called for each model at present."""


@contextmanager
def before_each_layer(model: Any, call: Callable[[], None]) -> Iterator[None]:
    """Calls `call` before each decoder layer of each forward pass of a model of transformers until
    the block ends, or before the pass where the layers are not where they are in most models; what
    it raises ends the pass and passes through."""
    layers = getattr(model.base_model, "layers", [model.base_model])
    handles = [layer.register_forward_pre_hook(lambda *_: call()) for layer in layers]
    _CALLS.setdefault(model, []).append(call)
    try:
        yield
    finally:
        _CALLS[model].remove(call)
        for handle in handles:
            handle.remove()


def call_before_layer(model: Any) -> None:
    """Calls what is to be called before a layer of the model: for forward passes that have its
    weights and not its modules."""
    for call in _CALLS.get(model, ()):
        call()


def pass_calls_on(first: nn.Module, other: Any) -> None:
    """From now on what is called before a layer of the first model is called before each layer of
    the other one, too: it was loaded later, of the same weights."""
    for layer in other.base_model.layers:
        layer.register_forward_pre_hook(lambda *_: call_before_layer(first))


GROUP = 8
"""Sequences of a forward call: of like lengths, so that little is padded."""


class _LayerReached(Exception):
    """Ends a forward pass; `states` are the hidden states."""

    def __init__(self, states: Tensor) -> None:
        super().__init__()
        self.states = states


def hidden_states(model: Any, ids: Tensor, layers: int) -> Tensor:
    """Hidden states (B, T, H) float32 after the first `layers` layers of a causal language model,
    each of RMS 1. Later layers do not run; gradients pass through.

    Args:
        ids: (B, T); shorter sequences are padded at their end, which their tokens do not see.
    """

    def stop(module: nn.Module, inputs: Any, output: Any) -> None:
        raise _LayerReached(output[0] if isinstance(output, tuple) else output)

    handle = model.base_model.layers[layers - 1].register_forward_hook(stop)
    try:
        model.base_model(input_ids=ids.to(model.device), use_cache=False)
    except _LayerReached as reached:
        return of_size_one(reached.states)
    finally:
        handle.remove()
    raise AssertionError("the pass must reach the layer")


def of_size_one(states: Tensor) -> Tensor:
    """Hidden states as float32, each divided by the root mean square of its numbers."""
    return nn.functional.rms_norm(states.float(), states.shape[-1:], eps=1e-6)


def padded(sequences: Sequence[Sequence[int]]) -> Tensor:
    """(B, T) ids of sequences of different lengths, zeros at their ends."""
    rows = [torch.tensor(list(ids), dtype=torch.long) for ids in sequences]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def grouped(items: Sequence[int]) -> Iterator[Sequence[int]]:
    """The sequences' numbers, those of one forward call together."""
    for at in range(0, len(items), GROUP):
        yield items[at : at + GROUP]
