"""Forward passes of plain text through a model that nothing is attached to, by two ways.

Finding and reading passages need hidden states and logits of short texts, and the keys and values
behind them to continue. `ModelForward` is transformers' own; `FusedForward` is the fast one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from esa_cli.models.supported_families import family_of

KeysValues = tuple[Tensor, Tensor]
"""Keys and values of a layer, each (B, G, N, D)."""


class TextForward(Protocol):
    """What `PromptBatch` needs of a model."""

    @property
    def device(self) -> torch.device:
        """Where token ids are expected."""

    def states(
        self, ids: Tensor, past: Sequence[KeysValues] = ()
    ) -> tuple[Tensor, list[KeysValues]]:
        """Hidden states (B, T, hidden) of tokens (B, T), which `logits` takes, and the keys and
        values of all layers up to them, those of `past` first."""

    def logits(self, states: Tensor) -> Tensor:
        """Logits (..., vocabulary), float32."""


class ModelForward:
    """The forward pass of a causal language model of transformers."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @property
    def device(self) -> torch.device:
        """Of the model's first weights."""
        device: torch.device = self._model.device
        return device

    def states(
        self, ids: Tensor, past: Sequence[KeysValues] = ()
    ) -> tuple[Tensor, list[KeysValues]]:
        """See `TextForward`."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self._model.config)
        for index, (keys, values) in enumerate(past):
            cache.update(keys, values, index)
        out = self._model.base_model(input_ids=ids, past_key_values=cache, use_cache=True)
        layers: Sequence[Any] = cache.layers
        return out.last_hidden_state, [(layer.keys, layer.values) for layer in layers]

    def logits(self, states: Tensor) -> Tensor:
        """See `TextForward`."""
        logits: Tensor = self._model.lm_head(states)
        return scaled_logits(logits.float(), self._model.config)


def scaled_logits(logits: Tensor, config: Any) -> Tensor:
    """What a family's models do with the output of their last matrix."""
    family = family_of(config)
    if family.multiply:
        logits = logits * getattr(config, family.multiply)
    if family.divide:
        logits = logits / getattr(config, family.divide)
    if family.cap and (cap := getattr(config, family.cap)) is not None:
        logits = cap * torch.tanh(logits / cap)
    return logits
