"""A layer in which each token of an answer selects its own far tokens from the store, by numbers
that the device alone knows."""

from __future__ import annotations

import torch
from torch import Tensor

from esa_cli.attention.answer_selection import AnswerSelection
from esa_cli.models.decoding.answer_layer import AnswerLayer, LayerFacts, TokenOperands, whole


class SelectingLayer(AnswerLayer):  # type: ignore[no-untyped-call]
    """One layer's local and new tokens; far ones are fetched from the store, which stays as it is.

    Args:
        given: what the tokens select from. Others: see `AnswerLayer`.
    """

    def __init__(
        self, layer: int, latent: bool, given: AnswerSelection, heads: int, traced: bool,
        step: Tensor,
    ) -> None:  # fmt: skip
        attention, start, room, local = given.attention, given.start, given.room, given.local
        rope = attention.rope_at(start + 1)
        facts = LayerFacts(
            rope, attention.scale, attention.cap, attention.method.kernel, attention.temperature
        )
        both = torch.stack(given.memory.store.span(start - local, start))
        super().__init__(layer, latent, facts, start, room, heads, traced, step, both)
        self._given = given
        _, groups, _, dim = both.shape
        self._rows = both.new_zeros(2, groups, local + room, dim)
        """Keys and values of the local tokens and the new ones, unrotated."""
        self._rows[:, :, :local] = both
        # A recording reads this table's memory, and the embedding may replace it by a longer one.
        self._table = rope.table(given.last_position() + 1, both[0])
        first, second = (given.near_position(more) for more in (0, 1))
        self._near, self._follows = first, int(second - first)
        self.chosen = step.new_zeros(room, given.far) if traced else None

    @property
    def fresh(self) -> Tensor:
        return self._rows[:, :, self._given.local :]

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Keeps the token's key and value, (G, 1, D) each."""
        both = torch.stack((keys, values))
        self._rows.index_copy_(2, self.step + self._given.local, both)

    def near_position(self) -> Tensor:
        return self.step * self._follows + self._near

    def operands(self, q: Tensor, scaled: Tensor) -> TokenOperands:
        given, step = self._given, self.step
        far = given.select(q, step)
        if self.chosen is not None:
            self.chosen.index_copy_(0, step, far[None])
        count = whole(given.far + given.most_near) - given.far
        at = torch.arange(count, device=step.device) + step * given.moves
        near = self._rows.index_select(2, at.clamp(max=self._rows.shape[2] - 1))
        fetched = given.memory.store.gather(far)
        keys, values = (torch.cat(rows, 1) for rows in zip(fetched, near, strict=True))
        place = given.positions(far, step, count)
        last = given.near(step) + (given.far + 1)
        ends = torch.cat((torch.zeros_like(step), last)).int()
        return TokenOperands(
            self._rotated(scaled, place.query), self._rotated(keys, place.key), values, ends
        )

    def _rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        """x (heads, n, D) at positions (n,), which are not read."""
        if self._table is None:
            return self.facts.rope.turn(x, *self.facts.rope.angles(positions, x))
        cos, sin = (one.index_select(0, positions) for one in self._table)
        return self.facts.rope.turn(x, cos, sin)
