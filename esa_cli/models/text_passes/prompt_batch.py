"""Several short prompts in one forward call, any of which can then be continued.

The prompts are padded at their ends: with causal attention a token sees nothing of what follows it,
so no mask is needed. Where layers keep a state or the last tokens only, which padding would change,
each prompt has a call of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from esa_cli.models.text_passes.text_forward import TextForward
from esa_cli.models.text_passes.text_past import TextPast

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
        logits: list[Tensor] = [torch.empty(0)] * len(prompts)
        # The last token of a prompt is its own: its logits are wanted.
        shared = min([shared, *(length - 1 for length in self._lengths)])
        before: TextPast | None = None
        if shared:
            first = torch.tensor([list(prompts[0][:shared])], device=forward.device)
            _, before = forward.states(first)
        order = sorted(range(len(prompts)), key=lambda n: self._lengths[n])
        where: dict[int, tuple[TextPast, int]] = {}
        together = GROUP if forward.pads else 1
        for at in range(0, len(order), together):
            group = order[at : at + together]
            width = self._lengths[group[-1]] - shared
            batch = torch.zeros(len(group), width, dtype=torch.long)
            for row, n in enumerate(group):
                batch[row, : self._lengths[n] - shared] = torch.tensor(list(prompts[n][shared:]))
            past = None if before is None else before.chosen([0] * len(group))
            states, kept = forward.states(batch.to(forward.device), past)
            last = torch.tensor([self._lengths[n] - shared - 1 for n in group])
            lines = forward.logits(states[torch.arange(len(group)), last])
            for row, (n, line) in enumerate(zip(group, lines, strict=True)):
                where[n], logits[n] = (kept, row), line
        self._where = [where[n] for n in range(len(prompts))]
        self.logits = torch.stack(logits) if logits else torch.empty(0, 0)

    def continuation(self, number: int) -> Continuation:
        """Prompt `number` alone, to append tokens to."""
        kept, row = self._where[number]
        return Continuation(self._forward, kept.chosen([row]).cut(self._lengths[number]))


class Continuation:
    """One prompt with several alternative continuations, all of the same length.

    Args:
        past: what is kept of the prompt.
    """

    def __init__(self, forward: TextForward, past: TextPast) -> None:
        self._forward, self._past = forward, past

    def append(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """Logits (len(tokens), vocabulary) behind each token, float32.

        Args:
            parents: which continuation each token extends; the first time 0, the prompt.
        """
        ids = torch.tensor(list(tokens), device=self._forward.device)[:, None]
        states, self._past = self._forward.states(ids, self._past.chosen(parents))
        return self._forward.logits(states[:, -1])
