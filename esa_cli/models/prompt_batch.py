"""Several short prompts in one forward call of a bare model, any of which can then be continued.

The prompts are padded at their ends: with causal attention a token sees nothing of what follows it,
so no mask is needed, and transformers uses its fastest attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

GROUP = 8
"""Prompts of a forward call: of like lengths, so that little is padded."""


class PromptBatch:
    """Prompts that a model has processed, with the logits behind each.

    Args:
        model: a causal language model of transformers, nothing attached. prompts: their token ids.
        shared: first tokens that all prompts have in common, which are processed once.

    `logits` is (prompts, vocabulary), float32: of the token that follows each prompt.
    """

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], shared: int = 0) -> None:
        self.model, self._lengths = model, [len(ids) for ids in prompts]
        self._where: list[tuple[Any, int]] = [(None, 0)] * len(prompts)
        logits: list[Tensor] = [torch.empty(0)] * len(prompts)
        # The last token of a prompt is its own: its logits are wanted.
        shared = min([shared, *(length - 1 for length in self._lengths)])
        before = self._processed(prompts[0][:shared]) if shared else None
        order = sorted(range(len(prompts)), key=lambda n: self._lengths[n])
        for at in range(0, len(order), GROUP):
            group = order[at : at + GROUP]
            width = self._lengths[group[-1]] - shared
            batch = torch.zeros(len(group), width, dtype=torch.long)
            for row, n in enumerate(group):
                batch[row, : self._lengths[n] - shared] = torch.tensor(list(prompts[n][shared:]))
            cache = DynamicCache(config=model.config)
            for index, layer in enumerate(before.layers if before else ()):
                rows = layer.keys.expand(len(group), -1, -1, -1)
                cache.update(rows, layer.values.expand(len(group), -1, -1, -1), index)
            out = model.base_model(
                input_ids=batch.to(model.device), past_key_values=cache, use_cache=True
            )
            last = torch.tensor([self._lengths[n] - shared - 1 for n in group])
            hidden = out.last_hidden_state[torch.arange(len(group)), last]
            for row, (n, line) in enumerate(zip(group, model.lm_head(hidden).float(), strict=True)):
                self._where[n], logits[n] = (cache, row), line
        self.logits = torch.stack(logits) if logits else torch.empty(0, 0)

    def _processed(self, ids: Sequence[int]) -> Any:
        """The cache behind some tokens."""
        cache = DynamicCache(config=self.model.config)
        batch = torch.tensor([list(ids)], device=self.model.device)
        self.model.base_model(input_ids=batch, past_key_values=cache, use_cache=True)
        return cache

    def continuation(self, number: int) -> Continuation:
        """Prompt `number` alone, to append tokens to."""
        cache, row = self._where[number]
        length = self._lengths[number]
        own = DynamicCache(config=self.model.config)
        for index, layer in enumerate(cache.layers):
            rows = slice(row, row + 1)
            own.update(layer.keys[rows, :, :length], layer.values[rows, :, :length], index)
        return Continuation(self.model, own, length)


class Continuation:
    """One prompt with several alternative continuations, all of the same length."""

    def __init__(self, model: Any, cache: Any, length: int) -> None:
        self.model, self.cache, self.length = model, cache, length

    def append(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """Logits (len(tokens), vocabulary) behind each token, float32.

        Args:
            parents: which continuation each token extends; the first time 0, the prompt.
        """
        device = self.model.device
        self.cache.reorder_cache(torch.tensor(list(parents), device=device))
        ids = torch.tensor(list(tokens), device=device)[:, None]
        out = self.model.base_model(input_ids=ids, past_key_values=self.cache, use_cache=True)
        self.length += 1
        logits: Tensor = self.model.lm_head(out.last_hidden_state[:, -1]).float()
        return logits
