"""Late interaction: scores of windows of tokens by reduced queries and keys.

A window's score is the sum over the question's tokens of their weight times the largest product
with a key in the window: the form of Eqs. (3) and (4), with a window in place of the whole text.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from esa_cli.qa.finding.reduced_keys import ReducedKeys

TILE = 4096
"""Tokens whose keys are decoded at once: 2 MB of R = 128 numbers, which stay in the processor's
cache until they are multiplied."""


def window_products(
    queries: Tensor, keys: Tensor | ReducedKeys, first: Tensor, last: Tensor
) -> Tensor:
    """The largest product of each query with a key in each window [first, last) of tokens, (W, M)
    float32; -1 for windows without tokens.

    The keys are read once, tile by tile, and nothing is kept that grows with N times R or M.

    Args:
        queries: (M, R). keys: (N, R). first, last: (W,).
    """
    first, last = first.contiguous(), last.contiguous()
    nothing = queries.new_full((first.shape[0], queries.shape[0]), -1.0, dtype=torch.float32)
    bounds = torch.unique(torch.cat((first, last)))
    if bounds.numel() < 2 or not keys.shape[0]:
        return nothing
    best = _largest_products(queries.float(), keys, bounds)
    begin, end = torch.searchsorted(bounds, first), torch.searchsorted(bounds, last)
    most = best[begin.clamp(max=best.shape[0] - 1)]
    for step in range(1, int((end - begin).max())):
        most = most.maximum(best[(begin + step).minimum(end - 1).clamp(min=0)])
    return torch.where((last > first)[:, None], most, nothing)


def products_around(products: Tensor, windows: int) -> Tensor:
    """The largest of the products (W, M) of each window and of `windows` before and after it."""
    if not products.shape[0]:
        return products
    size, columns = 2 * windows + 1, products.T[:, None]
    return nn.functional.max_pool1d(columns, size, 1, windows)[:, 0].T


def _largest_products(queries: Tensor, keys: Tensor | ReducedKeys, bounds: Tensor) -> Tensor:
    """The largest product of each query with a key between two neighbouring bounds, (B - 1, M).

    Windows overlap, so these pieces are multiplied once for all windows that have them.

    Args:
        bounds: (B,) ascending.
    """
    best = queries.new_full((bounds.shape[0] - 1, queries.shape[0]), -torch.inf)
    low, high = int(bounds[0]), int(bounds[-1])
    starts = torch.arange(low, high, TILE)
    # The bounds inside each tile, behind its first token.
    inner = torch.searchsorted(bounds, torch.stack((starts, (starts + TILE).clamp(max=high)), 1))
    after = torch.searchsorted(bounds, starts, right=True).tolist()
    for start, from_bound, (_, to_bound) in zip(
        starts.tolist(), after, inner.tolist(), strict=True
    ):
        stop = min(start + TILE, high)
        rows = keys.rows(start, stop) if isinstance(keys, ReducedKeys) else keys[start:stop].float()
        cuts = bounds[from_bound:to_bound]
        edges = torch.cat((cuts.new_tensor([start]), cuts, cuts.new_tensor([stop])))
        most = torch.segment_reduce(rows @ queries.T, "max", lengths=edges.diff(), axis=0)
        pieces = best[from_bound - 1 : to_bound]
        torch.maximum(pieces, most, out=pieces)
    return best
