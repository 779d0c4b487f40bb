"""Scores and selections for each query head, and blocks of M with a row of numbers each.

All queries of a chunk share one selection for each head, by Eq. (4) for that head alone:

    s_h(m) = max over c of ( x_h,c(m) - max over m' of x_h,c(m') )

With one query this orders tokens as x itself does. M begins at the same token in every step and
grows at its end, so the row of a whole block stays until tokens are taken back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from esa_cli.attention.selection import Blocks, top_k, two_passes
from esa_cli.attention.step import LayerState, Step
from esa_cli.storage.memory_store import GrowingRows

TOKENS_AT_ONCE = 4096
"""Tokens whose rows are computed at once."""


def best_by_head(
    blocks: Callable[[], Blocks], queries: Tensor, count: int, budget: int
) -> list[Tensor]:
    """Returns the ascending indices (budget,) of each head's best tokens or pages.

    Args:
        blocks: computes the logits (H, C, n); called twice where they are too many to be kept.
        queries: (H, C, D). count: tokens or pages in all.
    """
    heads, chunk, _ = queries.shape
    scores = torch.empty(heads, count, device=queries.device)
    if chunk == 1:
        for offset, block in blocks():
            scores[:, offset : offset + block.shape[2]] = block[:, 0]
        return [top_k(row, budget) for row in scores]
    passes = two_passes(blocks, heads * chunk * count)
    top = torch.full((heads, chunk), float("-inf"), device=queries.device)
    for _, block in passes():
        top = torch.maximum(top, block.float().amax(dim=2))
    for offset, block in passes():
        relative = block.float() - top[..., None]
        scores[:, offset : offset + block.shape[2]] = relative.amax(dim=1)
    return [top_k(row, budget) for row in scores]


def tokens_of_blocks(blocks: Tensor, size: int, middle: int) -> Tensor:
    """Returns the offsets (K,) of the tokens of ascending blocks (n,); the last may be short."""
    tokens = blocks[:, None] * size + torch.arange(size, device=blocks.device)
    return tokens[tokens < middle]


@dataclass
class BlockRows(LayerState):
    """Rows (n, width) of the first n whole blocks of `size` tokens from token `low` on.

    Args:
        settled: tokens after a block that must be cached before its row is final.
    """

    low: int = 0
    size: int = 0
    rows: GrowingRows | None = None
    settled: int = 0

    def crop(self, length: int) -> None:
        if self.rows is not None:
            self.rows.truncate((length - self.settled - self.low) // self.size)

    def extend(
        self,
        step: Step,
        size: int,
        width: int,
        compute: Callable[[int, int], Tensor],
        settled: int = 0,
    ) -> GrowingRows:
        """Returns rows (at least M // size, width) of the whole blocks of M, in the keys' dtype.

        Args:
            compute: (first token, n) -> rows (n, width) of the n blocks there.
        """
        rows = self.rows
        if rows is None or (self.low, self.size, rows.width) != (step.low, size, width):
            rows = GrowingRows(width, step.queries.dtype, step.queries.device)
            self.low, self.size, self.rows = step.low, size, rows
        self.settled = settled
        whole = step.middle // size
        while rows.length < whole:
            count = min(whole - rows.length, max(1, TOKENS_AT_ONCE // size))
            rows.append(compute(step.low + rows.length * size, count))
        return rows
