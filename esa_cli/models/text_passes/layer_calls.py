"""Calls a function before each layer of a model, so that a long forward pass can be ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

_CALLS: WeakKeyDictionary[nn.Module, list[Callable[[], None]]] = WeakKeyDictionary()
"""What is called for each model at present."""


@contextmanager
def before_each_layer(model: Any, call: Callable[[], None]) -> Iterator[None]:
    """Calls `call` before each decoder layer of each forward pass, or before the pass where the
    layers are not where they are in most models; what it raises ends the pass and passes through.

    Args:
        model: a causal language model of transformers, which is as before when the block ends.
    """

    def hook(module: nn.Module, inputs: Any) -> None:
        call()

    layers = getattr(model.base_model, "layers", [model.base_model])
    handles = [layer.register_forward_pre_hook(hook) for layer in layers]
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

    def hook(module: nn.Module, inputs: Any) -> None:
        call_before_layer(first)

    for layer in other.base_model.layers:
        layer.register_forward_pre_hook(hook)
