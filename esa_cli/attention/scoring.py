"""Token importance F_s(m; C): Eq. (3) summed over heads, or (6) on reduced keys, then Eq. (4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from esa_cli.attention.parts import Score
from esa_cli.attention.step import Step

KEEP_ELEMENTS = 32 << 20
"""Most numbers kept between two passes (128 MB in float32); more are computed twice."""

Blocks = Iterator[tuple[int, Tensor]]
"""(offset of the first token or page, numbers (..., n) of the n from there on)."""


def twice(blocks: Callable[[], Blocks], elements: int) -> tuple[Blocks, Callable[[], Blocks]]:
    """Blocks for two passes: kept from the first if they are few, else computed again.

    Args:
        blocks: computes them. elements: numbers in all blocks.
    """
    if elements > KEEP_ELEMENTS:
        return blocks(), blocks
    kept: list[tuple[int, Tensor]] = []

    def first() -> Blocks:
        for offset, block in blocks():
            kept.append((offset, block))
            yield offset, block

    return first(), lambda: iter(kept)


@dataclass(frozen=True)
class SumScore(Score):
    """Sum over heads (Eq. (3)), less each query's maximum, then the chunk's maximum (Eq. (4)).

    Args:
        rotate: rotate queries to the far distance first; the paper does not say whether.
    """

    rotate: bool = False

    @property
    def features(self) -> bool:
        return True

    @property
    def rotates(self) -> bool:
        return self.rotate

    def scores(self, step: Step) -> Tensor:
        elements = step.queries.shape[1] * step.middle
        first, second = twice(lambda: step.sums(self.rotate), elements)
        top: Tensor | None = None
        for _, block in first:
            most = block.amax(dim=1)
            top = most if top is None else torch.maximum(top, most)
        out = torch.empty(step.middle, device=step.queries.device)
        if top is None:
            return out
        for offset, block in second():
            out[offset : offset + block.shape[1]] = (block - top[:, None]).amax(dim=0)
        return out
