"""What layers of an `AnswerCache` share: they attend from the next token of an answer to keys in
memory of fixed size, of which the device alone knows how many there are."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from esa_cli.attention.cap_and_sink import with_sink
from esa_cli.attention.kernels.dispatch import first_keys_kernel
from esa_cli.attention.rope import Rope
from esa_cli.attention.temperature import Temperature, with_temperature, without_temperature
from esa_cli.models.attachment.cached_rows import EsaLayer, in_memory

MULTIPLE = 16
"""Of which the number of rows is one: kernels with masks need that."""


def whole(rows: int) -> int:
    """Rows that there are room for, at least so many."""
    return -(-rows // MULTIPLE) * MULTIPLE


class TokenOperands(NamedTuple):
    """What a kernel takes: the token's query (H, 1, D), rotated; keys and values (G, rows, D); and
    `ends` (2,) int32, 0 and the number of rows it attends to."""

    query: Tensor
    keys: Tensor
    values: Tensor
    ends: Tensor


class LayerFacts(NamedTuple):
    """Of a layer: see `Attention`."""

    rope: Rope
    scale: float
    cap: float
    kernel: str
    temperature: Temperature | None


class AnswerLayer(EsaLayer):  # type: ignore[no-untyped-call]
    """One layer of an `AnswerCache`.

    Args:
        layer, latent: as of `EsaLayer`. start: position of the first new token in the text. room:
            how many are to come. heads: H. traced: queries and log-sum-exps of the new tokens are
            kept. step: (1,) number of the next token, from 0. like: any tensor (..., D) of the
            layer's dtype and device.

    Attributes:
        observed: queries (H, room, D) and log-sum-exps (H, room); None where they are not kept.
        chosen: absolute positions (room, n) of each new token's far ones; None where they are those
            of the token before, or not kept.
    """

    chosen: Tensor | None = None

    def __init__(
        self, layer: int, latent: bool, facts: LayerFacts, start: int, room: int, heads: int,
        traced: bool, step: Tensor, like: Tensor,
    ) -> None:  # fmt: skip
        super().__init__(layer, in_memory, latent)
        self.facts, self.start, self.step = facts, start, step
        self.observed: tuple[Tensor, Tensor] | None = None
        if traced:
            lse = torch.zeros(heads, room, device=step.device)
            self.observed = like.new_zeros(heads, room, like.shape[-1]), lse

    @property
    @abstractmethod
    def fresh(self) -> Tensor:
        """(2, G, room, D) keys and values of the new tokens, unrotated."""

    @abstractmethod
    def near_position(self) -> Tensor:
        """(1,) the token's position among near ones, by the encoding."""

    @abstractmethod
    def operands(self, q: Tensor, scaled: Tensor) -> TokenOperands:
        """Of the token's queries (H, 1, D), unrotated; `scaled` are those that attend."""

    def attend(self, q: Tensor, sink: Tensor | None) -> Tensor:
        """Attention output (H, 1, D) of the token's queries (H, 1, D), unrotated."""
        _, scale, cap, name, temperature = self.facts
        kernel = first_keys_kernel(q, name, cap)
        assert kernel is not None, "checked before"
        q = without_temperature(q, temperature, self.step + self.start)
        scaled = with_temperature(q, temperature, self.near_position())
        capped = {"cap": cap} if cap else {}
        out, lse = with_sink(*kernel(*self.operands(q, scaled), scale, **capped), sink)
        if self.observed is not None:
            self.observed[0].index_copy_(1, self.step, q)
            self.observed[1].index_copy_(1, self.step, lse)
        return out

    def get_seq_length(self) -> int:
        return self.start
