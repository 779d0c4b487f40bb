"""Forward passes of plain text through a model that nothing is attached to, by two ways.

Finding and reading passages need hidden states and logits of short texts, and what is kept of them
to continue. `ModelForward` is transformers' own; `FusedForward` is the fast one.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from esa_cli.models.attachment.supported_families import family_of
from esa_cli.models.text_passes.text_past import CachePast, TextPast


class TextForward(Protocol):
    """What `PromptBatch` needs of a model."""

    @property
    def pads(self) -> bool:
        """Whether prompts that are padded at their ends can be continued."""

    @property
    def device(self) -> torch.device:
        """Where token ids are expected."""

    def states(self, ids: Tensor, past: Any = None) -> tuple[Tensor, TextPast]:
        """Hidden states (B, T, hidden) of tokens (B, T), which `logits` takes, and what is kept of
        these and those of `past`, a `TextPast` of this model, which is used up."""

    def logits(self, states: Tensor) -> Tensor:
        """Logits (..., vocabulary), float32."""


class ModelForward:
    """The forward pass of a causal language model of transformers."""

    def __init__(self, model: Any) -> None:
        self._model, body = model, model.base_model
        # Llama 4 names its body otherwise than its class says.
        self._body = model.model if body is model else body

    @property
    def device(self) -> torch.device:
        """Of the model's first weights."""
        device: torch.device = self._model.device
        return device

    @cached_property
    def pads(self) -> bool:
        """Only where every layer keeps the keys and values of all tokens."""
        from transformers.cache_utils import DynamicCache, DynamicLayer

        layers = DynamicCache(config=self._model.config).layers
        return all(type(layer) is DynamicLayer for layer in layers)

    def states(self, ids: Tensor, past: CachePast | None = None) -> tuple[Tensor, CachePast]:
        """See `TextForward`."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self._model.config) if past is None else past.cache
        out = self._body(input_ids=ids, past_key_values=cache, use_cache=True)
        return out.last_hidden_state.to(ids.device), CachePast(cache, ids.device)

    def logits(self, states: Tensor) -> Tensor:
        """See `TextForward`."""
        logits: Tensor = self._model.get_output_embeddings()(states).to(states.device)
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
