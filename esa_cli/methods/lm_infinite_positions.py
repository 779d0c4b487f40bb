"""LM-Infinite's positions: no far token is seen further away than the local window is long.

    far    query at min(l_L, tokens in all - 1), keys at 0
    near   true distances
There are far tokens only where more than l_L tokens came before, so the minimum is l_L of the step.
InfLLM's own version of LM-Infinite has its query one lower: that is `infllm`.
Source: Han et al., "LM-Infinite", 2023, and its published code.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from esa_cli.attention.interfaces import Positions
from esa_cli.attention.positions import ROTATED, FixedDistance
from esa_cli.methods.registry import register


@register(
    "position",
    "lm-infinite",
    about="far tokens at one distance, the first beyond L",
    source="Han et al., LM-Infinite, arXiv 2308.16137",
    cost=ROTATED,
)
@dataclass(frozen=True)
class LMInfinite(FixedDistance):
    """Far queries at l_L and far keys at 0, near ones in order.

    Args:
        distance: where a far token is taken to be when it is scored.
    """

    distance: int = 2048

    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        return FixedDistance(local).far(at, local, chunk, start)
