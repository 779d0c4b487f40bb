"""StreamingLLM's positions as InfLLM's comparison has them: sinks in order, a whole window away.

    far    keys at 0 .. n - 1, all queries at n_local + n - 1
    near   true distances
With nothing selected the n far tokens are the sinks, n_init of them. The original StreamingLLM
gives every token its index among those kept instead: that is `contiguous`.
Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023; this form is
that of InfLLM's published code.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esa_cli.attention.interfaces import Positions
from esa_cli.attention.parts import PositionEncoding
from esa_cli.attention.positions import ROTATED, consecutive
from esa_cli.methods.registry import register


@register(
    "position",
    "streaming",
    about="far tokens in order, a whole L away",
    source="Xiao et al., StreamingLLM, arXiv 2309.17453, as InfLLM compares it",
    cost=ROTATED,
)
@dataclass(frozen=True)
class Streaming(PositionEncoding):
    """Far keys in order from 0, far queries l_L behind the last of them; near ones in order.

    Args:
        distance: where a far token is taken to be when it is scored; with sinks alone none is.
    """

    distance: int = 2048

    def near(self, local: int, chunk: int, start: int, far: int) -> Positions:
        return consecutive(local, chunk)

    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        count = at.shape[0]
        stand = max(local + count - 1, 0)
        return Positions(torch.full((chunk,), stand), torch.arange(count))
