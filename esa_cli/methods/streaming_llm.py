"""StreamingLLM: the document's first tokens (sinks) and the most recent ones.

    attended   I and the last K + L tokens: the rest of the budget goes to L
    position   a token's index among those attended to (`contiguous`)

Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", arXiv 2309.17453.
Unlike the original,
- it keeps 4 sinks; here I is the preset's, so that methods compare at one budget;
- its window moves with every token; here with every chunk, whose queries all have the same L;
- it evicts tokens that left the window; here they stay cached and are not attended to.

Position `streaming` is the form in InfLLM's published code: far keys at 0 .. n - 1, all queries at
n_local + n - 1, so that the sinks are in order, a whole window away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.interfaces import Positions
from esa_cli.attention.parts import PositionEncoding
from esa_cli.attention.positions import ROTATED, consecutive
from esa_cli.methods.part_registry import register
from esa_cli.methods.recipes import OWN_SCORE, Base, recipe


@recipe(
    "streaming-llm",
    about="first and most recent tokens only, numbered as one short text",
    source="Xiao et al., Efficient Streaming Language Models with Attention Sinks, "
    "arXiv 2309.17453",
    cost="2 F (I + L), L taking the whole budget",
)
def streaming_llm(base: Base) -> dict[str, Any]:
    return {
        "window": base.local_only(),
        "selector": {"name": "none"},
        **OWN_SCORE,
        "position": {"name": "contiguous"},
        "reading": "local",
    }


@register(
    "position",
    "streaming",
    about="far tokens in order, a whole L away",
    source="Xiao et al., StreamingLLM, arXiv 2309.17453, as InfLLM compares it",
    cost=ROTATED,
)
@dataclass(frozen=True)
class StreamingPositions(PositionEncoding):
    """Far keys in order from 0, far queries l_L behind the last of them; near ones in order.

    Args:
        distance: of far tokens when they are scored; sinks alone are not.
    """

    distance: int = 2048

    def near(self, local: int, chunk: int, start: int, far: int) -> Positions:
        return consecutive(local, chunk)

    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        count = at.shape[0]
        query = max(local + count - 1, 0)
        return Positions(torch.full((chunk,), query), torch.arange(count))
