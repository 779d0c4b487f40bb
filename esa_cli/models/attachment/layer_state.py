"""The state of layers that keep one in place of keys: the last inputs of a convolution, or a
recurrent state. The model computes with it; here it is kept, copied and restored.

A state cannot be cropped, as keys can: it goes back to where a copy of it was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionLayer

from esa_cli.errors import UsageError

State = dict[str, Tensor]
"""A copy of one layer's state; empty: that before the first token."""
INTERRUPTED = (
    "the cache's last forward call was interrupted",
    "crop it with truncate(n) to the tokens before that call",
)
"""Message and hint where the layers have different tokens."""
KEPT = 2
"""Snapshots kept that were asked for: of a document's end, and of the turn's beginning."""


class StateLayer(LinearAttentionLayer):
    """One layer's state, as transformers' models read and write it."""

    is_croppable = False

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        # Models write into these tensors, inside of inference mode and outside.
        with torch.inference_mode(False):
            super().lazy_initialization(*args, **kwargs)

    def crop(self, tokens_to_remove: int) -> None:
        """Does nothing: `StateHistory.restore` does."""

    def clear(self) -> None:
        """Drops the state."""
        LinearAttentionLayer.__init__(self, self.number_of_states)

    def reset(self) -> None:
        """The same, by transformers' name."""
        self.clear()

    def detach(self) -> None:
        """Drops the graph of a model with gradients."""
        for tensor in self._tensors().values():
            if tensor.requires_grad:
                tensor.detach_()

    def copied(self) -> State:
        """A copy of the state."""
        with torch.inference_mode(False):
            return {name: tensor.detach().clone() for name, tensor in self._tensors().items()}

    def restore(self, state: State) -> None:
        """Goes back to a copied state."""
        self.clear()
        for name, tensor in state.items():
            kind, number = name.split(".")
            index = int(number)
            self.lazy_initialization(**{f"{kind}_states": tensor, "state_idx": index})
            if kind == "conv":
                self.has_previous_state[index] = True
        for name, tensor in self._tensors().items():
            tensor.copy_(state[name])

    def _tensors(self) -> State:
        kinds = {"conv": self.conv_states, "recurrent": self.recurrent_states}
        each = ((f"{kind}.{i}", one) for kind in kinds for i, one in kinds[kind].items())
        return {name: tensor for name, tensor in each if tensor is not None}

    @property
    def nbytes(self) -> int:
        """Bytes of the state."""
        return sum(tensor.nbytes for tensor in self._tensors().values())


class StateHistory:
    """The states of a cache's layers, and snapshots of them by the number of tokens before.

    Args:
        layers: those that keep a state; where there is none, nothing is done.

    Attributes:
        tokens: how many the states come from; None: a forward call was interrupted.
    """

    def __init__(self, layers: Sequence[StateLayer]) -> None:
        self.layers = layers
        self.tokens: int | None = 0
        self._kept: dict[int, list[State]] = {}
        self._before: tuple[int, list[State]] = (0, [])

    def snapshot(self) -> None:
        """Keeps a copy of the states, in place of the oldest of `KEPT`."""
        if not self.layers or not self.tokens or self.tokens in self._kept:
            return
        self._kept[self.tokens] = self.taken()
        while len(self._kept) > KEPT:
            del self._kept[min(self._kept)]

    def begin_call(self, tokens: int) -> None:
        """Begins a forward call of so many tokens. Before one of several a copy is made, which
        replaces that before the last such call. Raises UsageError: the last call was interrupted,
        and the cache not cropped since."""
        if not self.layers:
            return
        if self.tokens is None:
            raise UsageError(*INTERRUPTED)
        if tokens > 1 and self.tokens not in self._kept:
            self._before = (self.tokens, self.taken() if self.tokens else [])
        self.tokens = None

    def end_call(self, tokens: int) -> None:
        """Ends a forward call, after which there are so many tokens."""
        self.tokens = tokens
        for layer in self.layers:
            layer.detach()

    def restore(self, tokens: int) -> None:
        """Goes back to so many tokens, and drops the snapshots after them. Raises UsageError: no
        states were kept there."""
        before, states = self._before
        if self.layers and tokens != self.tokens:
            if tokens not in (0, before, *self._kept):
                raise UsageError(
                    f"this model's layers keep a state, which was not kept at {tokens} tokens",
                    "call snapshot() on the cache where it will be cropped to",
                )
            kept = self._kept.get(tokens) or (states if before == tokens else [])
            for layer, state in zip(self.layers, kept or [{}] * len(self.layers), strict=True):
                layer.restore(state)
        self.tokens = tokens
        self._kept = {at: kept for at, kept in self._kept.items() if at <= tokens}
        if before > tokens:
            self._before = (0, [])

    def taken(self) -> list[State]:
        """A copy of the states, one for each layer that keeps one."""
        return [layer.copied() for layer in self.layers]

    def give(self, states: Sequence[State], tokens: int) -> None:
        """Uses copied states, which come from so many tokens, in place of the present ones."""
        self._kept, self._before = {tokens: list(states)}, (0, [])
        self.tokens = None
        self.restore(tokens)

    @property
    def nbytes(self) -> int:
        """Bytes of the states, without their copies."""
        return sum(layer.nbytes for layer in self.layers)
