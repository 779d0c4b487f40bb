"""Calls a function before each layer of a model, so that a long forward pass can be ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def before_each_layer(model: Any, call: Callable[[], None]) -> Iterator[None]:
    """Calls `call` before each decoder layer of each forward pass; what it raises ends the pass and
    passes through.

    Args:
        model: a causal language model of transformers, which is as before when the block ends.
    """

    def hook(module: nn.Module, inputs: Any) -> None:
        call()

    handles = [layer.register_forward_pre_hook(hook) for layer in model.base_model.layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
