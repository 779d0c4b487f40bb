"""Scores of a chunk for each query head, and the top k of each, for methods that select by head.

All queries of a chunk share one selection a head, by Eq. (4) for each head alone:

    s_h(m) = max over c of ( x_h,c(m) - max over m' of x_h,c(m') )

With one query this orders tokens as x itself does.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from esa_cli.attention.scoring import Blocks, twice
from esa_cli.attention.selection import top_k
from esa_cli.attention.step import BLOCK_ELEMENTS


def most_at_once(rows: int) -> int:
    """Tokens in a block of logits with `rows` = H * C."""
    return max(256, BLOCK_ELEMENTS // max(rows, 1))


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
    first, second = twice(blocks, heads * chunk * count)
    top = torch.full((heads, chunk), float("-inf"), device=queries.device)
    for _, block in first:
        top = torch.maximum(top, block.float().amax(dim=2))
    for offset, block in second():
        out[:, offset : offset + block.shape[2]] = (block.float() - top[..., None]).amax(dim=1)
    return out


def best_by_head(scores: Tensor, count: int) -> list[Tensor]:
    """Ascending indices (count,) of each row's best, for scores (H, n)."""
    return [top_k(row, count) for row in scores]
