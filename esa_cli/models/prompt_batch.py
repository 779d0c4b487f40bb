"""Several short prompts in one forward call, any of which can then be continued.

The prompts are padded at their ends: with causal attention a token sees nothing of what follows it,
so no mask is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from esa_cli.models.text_forward import KeysValues, TextForward

GROUP = 8
"""Prompts of a forward call: of like lengths, so that little is padded."""


class PromptBatch:
    """Prompts that a model has processed, with the logits behind each.

    Args:
        prompts: their token ids. shared: first tokens that all prompts have in common, which are
            processed once.

    `logits` is (prompts, vocabulary), float32: of the token that follows each prompt.
    """

    def __init__(
        self, forward: TextForward, prompts: Sequence[Sequence[int]], shared: int = 0
    ) -> None:
        self._forward, self._lengths = forward, [len(ids) for ids in prompts]
        self._where: list[tuple[list[KeysValues], int]] = [([], 0)] * len(prompts)
        logits: list[Tensor] = [torch.empty(0)] * len(prompts)
        # The last token of a prompt is its own: its logits are wanted.
        shared = min([shared, *(length - 1 for length in self._lengths)])
        before: list[KeysValues] = []
        if shared:
            first = torch.tensor([list(prompts[0][:shared])], device=forward.device)
            _, before = forward.states(first)
        order = sorted(range(len(prompts)), key=lambda n: self._lengths[n])
        for at in range(0, len(order), GROUP):
            group = order[at : at + GROUP]
            width = self._lengths[group[-1]] - shared
            batch = torch.zeros(len(group), width, dtype=torch.long)
            for row, n in enumerate(group):
                batch[row, : self._lengths[n] - shared] = torch.tensor(list(prompts[n][shared:]))
            past = [
                (keys.expand(len(group), -1, -1, -1), values.expand(len(group), -1, -1, -1))
                for keys, values in before
            ]
            states, pairs = forward.states(batch.to(forward.device), past)
            last = torch.tensor([self._lengths[n] - shared - 1 for n in group])
            lines = forward.logits(states[torch.arange(len(group)), last])
            for row, (n, line) in enumerate(zip(group, lines, strict=True)):
                self._where[n], logits[n] = (pairs, row), line
        self.logits = torch.stack(logits) if logits else torch.empty(0, 0)

    def continuation(self, number: int) -> Continuation:
        """Prompt `number` alone, to append tokens to."""
        pairs, row = self._where[number]
        rows, length = slice(row, row + 1), self._lengths[number]
        own = [(keys[rows, :, :length], values[rows, :, :length]) for keys, values in pairs]
        return Continuation(self._forward, own)


class Continuation:
    """One prompt with several alternative continuations, all of the same length.

    Args:
        pairs: keys and values of the prompt, (1, G, N, D) a layer.
    """

    def __init__(self, forward: TextForward, pairs: Sequence[KeysValues]) -> None:
        self._forward, self._pairs = forward, list(pairs)

    def append(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """Logits (len(tokens), vocabulary) behind each token, float32.

        Args:
            parents: which continuation each token extends; the first time 0, the prompt.
        """
        device = self._forward.device
        chosen = torch.tensor(list(parents), device=device)
        past = [(keys[chosen], values[chosen]) for keys, values in self._pairs]
        ids = torch.tensor(list(tokens), device=device)[:, None]
        states, self._pairs = self._forward.states(ids, past)
        return self._forward.logits(states[:, -1])
