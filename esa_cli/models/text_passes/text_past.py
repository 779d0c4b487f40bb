"""What a forward pass over text keeps of the tokens before, so that they can be continued."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor

KeysValues = tuple[Tensor, Tensor]
"""Keys and values of a layer, each (B, G, N, D)."""


class TextPast(Protocol):
    """What is kept of B sequences of N tokens each, padding included."""

    def chosen(self, rows: Sequence[int]) -> Self:
        """Of these sequences, each as often as it is named; what is appended to them does not
        change this."""

    def cut(self, length: int) -> Self:
        """Of the first tokens alone; where prompts are padded."""


@dataclass(frozen=True)
class KeyValuePast:
    """Keys and values of all layers."""

    pairs: Sequence[KeysValues]

    def chosen(self, rows: Sequence[int]) -> KeyValuePast:
        """See `TextPast`."""
        if len({*rows}) == 1:
            only, shape = slice(rows[0], rows[0] + 1), (len(rows), -1, -1, -1)
            return KeyValuePast([
                (keys[only].expand(shape), values[only].expand(shape))
                for keys, values in self.pairs
            ])  # fmt: skip
        at = torch.tensor([*rows], device=self.pairs[0][0].device)
        return KeyValuePast([(keys[at], values[at]) for keys, values in self.pairs])

    def cut(self, length: int) -> KeyValuePast:
        """See `TextPast`."""
        return KeyValuePast([
            (keys[:, :, :length], values[:, :, :length]) for keys, values in self.pairs
        ])  # fmt: skip


@dataclass(frozen=True)
class CachePast:
    """A cache of transformers, whatever its layers keep."""

    cache: Any
    device: torch.device

    def chosen(self, rows: Sequence[int]) -> CachePast:
        """See `TextPast`."""
        out = copy.copy(self.cache)
        out.layers = [_shallow(layer) for layer in self.cache.layers]
        out.reorder_cache(torch.tensor([*rows], device=self.device))
        return CachePast(out, self.device)

    def cut(self, length: int) -> CachePast:
        """See `TextPast`."""
        if (more := self.cache.get_seq_length() - length) > 0:
            self.cache.crop(-more)
        return self


def _shallow(layer: Any) -> Any:
    """A layer of a cache with the same tensors, which can get others."""
    out = copy.copy(layer)
    for name, value in vars(layer).items():
        if isinstance(value, dict):
            setattr(out, name, dict(value))
    return out
