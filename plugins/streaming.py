"""StreamingLLM as a selector: the document's first tokens, the most recent ones, nothing between.

`attention` always attends to I (the sinks) and L (the recent tokens), so there is nothing left to
choose. To compare at an equal token budget, the budget goes to the middle tokens right before L.
It never looks at a query. The original numbers tokens by their place in the cache, which is the
position encoding `contiguous`. The recipe `streaming` puts both over any preset; the built-in one,
`streaming-llm`, spends the budget on L instead, which attends to the same tokens.
Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", arXiv 2309.17453.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.step import Step
from esa_cli.methods.recipes import OWN_SCORE, Base, recipe
from esa_cli.methods.registry import register


@register("selector", "streaming")
@dataclass(frozen=True)
class Streaming:
    """The most recent middle tokens, whatever is asked.

    Args:
        recent: spend the budget on them; False takes no middle token at all.
    """

    recent: bool = True

    def select(self, step: Step, budget: int) -> Tensor:
        """(K,) int64 offsets into M: the last min(budget, M), or none."""
        count = min(budget, step.middle) if self.recent else 0
        return torch.arange(step.middle - count, step.middle, device=step.queries.device)


@recipe(
    "streaming",
    about="first and most recent tokens only; as a plugin",
    source="Xiao et al., Efficient Streaming Language Models with Attention Sinks, "
    "arXiv 2309.17453",
    cost="2 F (I + K + L)",
)
def streaming(base: Base) -> dict[str, Any]:
    return {
        "selector": {"name": "streaming", "recent": True},
        **OWN_SCORE,
        "position": {"name": "contiguous"},
        "reading": "select",
    }
