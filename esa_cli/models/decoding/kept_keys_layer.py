"""A layer whose keys stay: those that the tokens of an answer attend to, and one more each time."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from esa_cli.attention.answer_keys import AnswerKeys
from esa_cli.models.decoding.answer_layer import AnswerLayer, LayerFacts, TokenOperands, whole


class TokenPlace(NamedTuple):
    """One token's place: `slot` (1,), the row of its key; `ends` (2,) int32, 0 and the number of
    rows it attends to; cosines and sines (1, R) of its position."""

    slot: Tensor
    ends: Tensor
    cos: Tensor
    sin: Tensor


class KeptKeysLayer(AnswerLayer):  # type: ignore[no-untyped-call]
    """One layer's rotated keys, its values, and the new tokens' as they came.

    Args:
        given: of the tokens before. Others: see `AnswerLayer`.

    Attributes:
        at: the next token's place.
        key_rows, value_rows: (G, rows, D); keys are rotated.
    """

    at: TokenPlace

    def __init__(
        self, layer: int, latent: bool, given: AnswerKeys, start: int, room: int, heads: int,
        traced: bool, step: Tensor,
    ) -> None:  # fmt: skip
        facts = LayerFacts(given.rope, given.scale, given.cap, given.kernel, given.temperature)
        super().__init__(layer, latent, facts, start, room, heads, traced, step, given.keys)
        groups, self.count, dim = given.keys.shape
        most = self.count + room
        self.slots = min(given.window or most, most)
        self.position, self.near = given.position, given.near
        # Zeros: rows that are not attended to are multiplied with weights of 0.
        self.key_rows = given.keys.new_zeros(groups, whole(self.slots), dim)
        self.value_rows = self.key_rows.clone()
        self._fresh = self.key_rows.new_zeros(2, groups, room, dim)
        self.key_rows[:, : self.count], self.value_rows[:, : self.count] = given.keys, given.values

    @property
    def fresh(self) -> Tensor:
        return self._fresh

    @property
    def kind(self) -> tuple[Any, ...]:
        """Layers of one kind have the same `TokenPlace`."""
        return self.facts.rope, self.position, self.count, self.slots, self.key_rows.dtype

    def place(self) -> TokenPlace:
        """The next token's place."""
        step, last = self.step, self.step + self.count
        ends = torch.cat((torch.zeros_like(step), (last + 1).clamp(max=self.slots))).int()
        angles = self.facts.rope.angles(step + self.position, self.key_rows)
        return TokenPlace(last % self.slots, ends, *angles)

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Keeps the token's key and value, (G, 1, D) each."""
        at = self.at
        self.key_rows.index_copy_(1, at.slot, self.facts.rope.turn(keys, at.cos, at.sin))
        self.value_rows.index_copy_(1, at.slot, values)
        self._fresh.index_copy_(2, self.step, torch.stack((keys, values)))

    def near_position(self) -> Tensor:
        return self.step + self.near

    def operands(self, q: Tensor, scaled: Tensor) -> TokenOperands:
        query = self.facts.rope.turn(scaled, self.at.cos, self.at.sin)
        return TokenOperands(query, self.key_rows, self.value_rows, self.at.ends)
