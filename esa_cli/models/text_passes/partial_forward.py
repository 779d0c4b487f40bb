"""The hidden states behind one of a model's layers, from a forward pass that ends there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

GROUP = 8
"""Sequences of a forward call: of like lengths, so that little is padded."""


class _LayerReached(Exception):
    """Ends a forward pass; `states` are the hidden states."""

    def __init__(self, states: Tensor) -> None:
        super().__init__()
        self.states = states


def hidden_states(model: Any, ids: Tensor, layers: int) -> Tensor:
    """Hidden states (B, T, H) float32 behind the first `layers` layers, each of RMS 1.

    Later layers do not run. Gradients pass through.

    Args:
        model: a causal language model of transformers, bare or with adapters; it is not changed.
        ids: (B, T); shorter sequences are padded at their end, which their tokens do not see.
    """

    def stop(module: nn.Module, inputs: Any, output: Any) -> None:
        raise _LayerReached(output[0] if isinstance(output, tuple) else output)

    handle = model.base_model.layers[layers - 1].register_forward_hook(stop)
    try:
        model.base_model(input_ids=ids.to(model.device), use_cache=False)
    except _LayerReached as reached:
        # Layers may be on other devices than the embedding.
        return of_size_one(reached.states.to(model.device))
    finally:
        handle.remove()
    raise AssertionError("the pass must reach the layer")


def of_size_one(states: Tensor) -> Tensor:
    """Hidden states as float32, each divided by the root mean square of its numbers."""
    return nn.functional.rms_norm(states.float(), states.shape[-1:], eps=1e-6)


def padded(sequences: Sequence[Sequence[int]]) -> Tensor:
    """(B, T) ids of sequences of different lengths, zeros at their ends."""
    out = torch.zeros(len(sequences), max(map(len, sequences)), dtype=torch.long)
    for row, ids in enumerate(sequences):
        out[row, : len(ids)] = torch.tensor(list(ids))
    return out


def grouped(items: Sequence[int]) -> Iterator[Sequence[int]]:
    """The sequences' numbers, those of one forward call together."""
    for at in range(0, len(items), GROUP):
        yield items[at : at + GROUP]
