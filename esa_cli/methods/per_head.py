"""Scores and selections for each query head, and blocks of M with a row of numbers each.

All queries of a chunk share one selection for each head, by Eq. (4) for that head alone:

    s_h(m) = max over c of ( x_h,c(m) - max over m' of x_h,c(m') )

With one query this orders tokens as x itself does.

M begins at the same token in every step and grows at its end, so a whole block does not change: its
row of numbers is kept in the selector's layer state, and computed again after a crop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from esa_cli.attention.selection import Blocks, top_k, two_passes
from esa_cli.attention.step import LayerState, Step
from esa_cli.storage.memory_store import GrowingRows


def max_over_queries(blocks: Callable[[], Blocks], queries: Tensor, count: int) -> Tensor:
    """Scores (H, count) of each head for the whole chunk.

    Args:
        blocks: computes the logits; called twice where they are too many to be kept.
        queries: (H, C, D). count: tokens or pages in all.
    """
    heads, chunk, _ = queries.shape
    out = torch.empty(heads, count, device=queries.device)
    if chunk == 1:
        for offset, block in blocks():
            out[:, offset : offset + block.shape[2]] = block[:, 0]
        return out
    passes = two_passes(blocks, heads * chunk * count)
    top = torch.full((heads, chunk), float("-inf"), device=queries.device)
    for _, block in passes():
        top = torch.maximum(top, block.float().amax(dim=2))
    for offset, block in passes():
        out[:, offset : offset + block.shape[2]] = (block.float() - top[..., None]).amax(dim=1)
    return out


def best_by_head(scores: Tensor, count: int) -> list[Tensor]:
    """Ascending indices (count,) of each row's best, for scores (H, n)."""
    return [top_k(row, count) for row in scores]


AT_ONCE = 4096
"""Tokens whose rows are computed at once."""


def tokens_of(blocks: Tensor, size: int, middle: int) -> Tensor:
    """Offsets (K,) of the tokens of ascending blocks (n,); the last block of M may be short."""
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

    def of(
        self,
        step: Step,
        size: int,
        width: int,
        make: Callable[[int, int], Tensor],
        settled: int = 0,
    ) -> GrowingRows:
        """Rows (at least M // size, width) of the whole blocks of M, in the dtype of the keys.

        Args:
            make: (first token, n) -> rows (n, width) of the n blocks there. settled: as above.
        """
        rows = self.rows
        if rows is None or (self.low, self.size, rows.width) != (step.low, size, width):
            rows = GrowingRows(width, step.queries.dtype, step.queries.device)
            self.low, self.size, self.rows = step.low, size, rows
        self.settled = settled
        whole = step.middle // size
        while rows.length < whole:
            done = rows.length
            count = min(whole - done, max(1, AT_ONCE // size))
            rows.append(make(step.low + done * size, count))
        return rows
