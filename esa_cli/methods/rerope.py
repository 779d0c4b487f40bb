"""ReRoPE's positions: distances min(i - j, w), queries scaled by the log of their position.

    far        query at w, keys at 0
    near       true distances, cut off at w by `max_distance`
    queries    query i times max(1, ln(i + 1) / ln L_train)
Exact where L has at least w tokens, or everything is near: closer far tokens are moved to w.
Source: Su, "Rectified Rotary Position Embeddings" (ReRoPE), 2023. The ESA paper takes the distances
and does not mention the factor, so it is off unless `trained` is given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from esa_cli.attention.parts import check_at_least
from esa_cli.attention.positions import ROTATED, FixedDistance
from esa_cli.methods.part_registry import register


@register(
    "position",
    "rerope",
    about="no token further away than a fixed distance",
    source="Su 2023, Rectified Rotary Position Embeddings (ReRoPE)",
    cost=f"{ROTATED}, those of L and C twice, for two kinds of logits",
)
@dataclass(frozen=True)
class ReRoPE(FixedDistance):
    """Distances of at most w.

    Args:
        distance: w, in tokens. trained: L_train of the query scale, the model's trained window in
            tokens; 0: queries are not scaled.
    """

    distance: int = 512
    trained: int = 0

    def __post_init__(self) -> None:
        check_at_least(1, distance=self.distance)
        if self.trained < 0 or self.trained == 1:
            raise ValueError(f"trained must be 0 or at least 2 tokens, got {self.trained}")

    @property
    def max_distance(self) -> int:
        return self.distance

    def query_scale(self, at: Tensor) -> Tensor | None:
        if not self.trained:
            return None
        return ((at + 1).float().log() / math.log(self.trained)).clamp(min=1.0)
