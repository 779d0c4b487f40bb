"""One forward call of one token, recorded, and whether a replay of it computes the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from esa_cli.models.attachment.layer_state import State, StateLayer
from esa_cli.models.decoding.answer_cache import AnswerCache
from esa_cli.models.decoding.cuda_graph import Graph

ALIKE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.2}
"""Largest difference of logits, root mean square, in standard deviations of the logits, by the type
that a model computes in: room for another kernel's rounding. Chosen without a GPU."""


class RecordedToken:
    """One forward call of one token, recorded.

    Args:
        model: attached. cache: that it reads and writes. graph: records it.

    Attributes:
        count: tokens so far.
    """

    def __init__(self, model: Any, cache: AnswerCache, graph: Graph) -> None:
        self.cache, self.count = cache, 0
        self._model, self._graph = model, graph
        self._token = torch.zeros(1, 1, dtype=torch.long, device=cache.step.device)
        before = self.states()
        cache.forward_pass.unread = True
        try:
            self._logits = graph.record(self._forward)
        finally:
            cache.forward_pass.unread = False
            self.go_back(before)  # recording has computed a token

    def states(self) -> list[State]:
        """Copies of the states of layers that keep one."""
        return [one.copied() for one in self._state_layers]

    def go_back(self, states: list[State]) -> None:
        """Puts copied states in place of the present ones."""
        for one, state in zip(self._state_layers, states, strict=True):
            one.write(state)

    @property
    def _state_layers(self) -> list[StateLayer]:
        return [one for one in self.cache.layers if isinstance(one, StateLayer)]

    def _forward(self) -> Tensor:
        at = self.cache.begin_token()
        logits: Tensor = self._model(
            input_ids=self._token, position_ids=at, past_key_values=self.cache, use_cache=True
        ).logits
        return logits

    def __call__(self, token: Tensor) -> Tensor:
        """Logits (1, 1, V) behind a token (1, 1); they change with the next call."""
        self._token.copy_(token)
        self._graph.replay()
        self.cache.step.add_(1)
        self.count += 1
        return self._logits


def alike(logits: Tensor, others: Tensor) -> bool:
    """Whether logits (1, 1, V) are others but for rounding. Reads both, so it waits for a GPU."""
    difference, spread = (logits - others).float().norm(), others.float().std(unbiased=False)
    share = difference / (spread * others.numel() ** 0.5)
    return bool(share <= ALIKE.get(others.dtype, ALIKE[torch.float32]))
