"""InfLLM's positions: every far token is seen from the last distance inside the local window.

    far    query at n_local - 1, keys at 0
    near   true distances
n_local is l_L of the step. InfLLM cuts its window off at n_local tokens for each query; here, as in
Eq. 1, all of C sees all of L, so a chunk's last queries see near tokens up to l_C - 1 further away.
Source: Xiao et al., "InfLLM", 2024, and its published code.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from esa_cli.attention.interfaces import Positions
from esa_cli.attention.positions import ROTATED, FixedDistance
from esa_cli.methods.registry import register


@register(
    "position",
    "infllm",
    about="far tokens at one distance, the last inside L",
    source="Xiao et al., InfLLM, arXiv 2402.04617",
    cost=ROTATED,
)
@dataclass(frozen=True)
class InfLLM(FixedDistance):
    """Far queries at l_L - 1 and far keys at 0, near ones in order.

    Args:
        distance: where a far token is taken to be when it is scored; InfLLM scores at n_local - 1.
    """

    distance: int = 4095

    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        return FixedDistance(max(local - 1, 0)).far(at, local, chunk, start)
