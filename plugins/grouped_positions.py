"""A position encoding that groups far tokens: each group shares one position (Self-Extend).

A far token at p stands at floor(p / g), and query c at floor((start + c) / g) + L - floor(L / g),
so that distances go on from the local window instead of starting anew: the first token before L is
seen about L tokens away, and every further group of g tokens one more. The order and the rough
distance of far tokens are kept, in a window g times smaller than the document. Choose g so that
document / g + L fits the model's trained window. The selected tokens do not affect the encoding.
Source: Jin et al., "LLM Maybe LongLM: Self-Extend", arXiv 2401.01325.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esa_cli.attention.positions import make_consecutive_positions
from esa_cli.methods import PositionEncoding, Positions, register


@register("position", "grouped")
@dataclass(frozen=True)
class Grouped(PositionEncoding):
    """Places near tokens at exact positions, and far tokens at grouped positions.

    Args:
        group: g, tokens that share one far position; 1 gives true distances.
        distance: query position that stands for 'far' when tokens are scored rotated.
    """

    group: int = 8
    distance: int = 2048

    def __post_init__(self) -> None:
        if self.group < 1 or self.distance < 0:
            raise ValueError("group must be at least 1, and distance must not be negative")

    def near(self, local: int, chunk: int, start: int, far: int) -> Positions:
        """Returns consecutive positions (C,) of queries and (L + C,) of keys."""
        return make_consecutive_positions(local, chunk)

    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        """Returns grouped positions (C,) of queries and (n,) of keys; queries are shifted by L."""
        query = torch.arange(start, start + chunk) // self.group
        return Positions(query + local - local // self.group, at // self.group)
