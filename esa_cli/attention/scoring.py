"""Token importance F_s(m; C), Eq. 2-3: the sum over heads, normalised and maximised over the chunk.

Only (C, n) blocks are held in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from esa_cli.attention.step import Step

KEEP_ELEMENTS = 32 << 20
"""Scores kept between the two passes (128 MB in float32); larger ones are computed twice."""


@dataclass(frozen=True)
class SumScore:
    """The paper's: sum over heads (Eq. 2), less each query's maximum, then the chunk's maximum.

    Args:
        rotate: rotate the query to the far distance first. The paper does not say; default no.
    """

    rotate: bool = False
    features: bool = field(default=True, init=False)

    def scores(self, step: Step) -> Tensor:
        keep = step.queries.shape[1] * step.middle <= KEEP_ELEMENTS
        kept: list[tuple[int, Tensor]] = []
        top: Tensor | None = None
        for offset, raw in step.sums(self.rotate):
            block = raw.float()
            most = block.amax(dim=1)
            top = most if top is None else torch.maximum(top, most)
            if keep:
                kept.append((offset, block))
        out = torch.empty(step.middle, device=step.queries.device)
        if top is None:
            return out
        for offset, block in kept if keep else step.sums(self.rotate):
            out[offset : offset + block.shape[1]] = (block.float() - top[:, None]).amax(dim=0)
        return out
