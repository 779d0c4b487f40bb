"""StreamingLLM as a selector: the document's first tokens, the most recent ones, nothing between.

`attention` always attends to I (the sinks) and L (the recent tokens), so there is nothing left to
choose. To compare at an equal token budget, the budget goes to the middle tokens right before L.
It never looks at a query. The original numbers tokens by their place in the cache, which is the
position encoding `contiguous`. Source: Xiao et al., "Efficient Streaming Language Models with
Attention Sinks", arXiv 2309.17453.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esa_cli.registry import register
from esa_cli.step import Step


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
