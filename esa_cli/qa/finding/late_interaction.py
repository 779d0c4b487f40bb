"""Late interaction: scores of windows of tokens by reduced queries and keys.

A window's score is the sum over the question's tokens of their weight times the largest product
with a key in the window: the form of Eqs. (3) and (4), with a window in place of the whole text.
"""

from __future__ import annotations

import torch
from torch import Tensor


def window_scores(
    queries: Tensor, weights: Tensor, keys: Tensor, first: Tensor, last: Tensor
) -> Tensor:
    """Scores (W,) float32 of windows [first, last) of tokens; -1 for windows without tokens.

    Args:
        queries: (M, R). weights: (M,) that sum to 1. keys: (N, R). first, last: (W,).
    """
    first, last = first.contiguous(), last.contiguous()
    count = first.shape[0]
    bounds = torch.unique(torch.cat((first, last)))
    if bounds.numel() < 2 or not keys.shape[0]:
        return torch.full((count,), -1.0)
    # Windows overlap: the largest products are taken once for each piece between two bounds.
    products = keys[int(bounds[0]) : int(bounds[-1])].float() @ queries.float().T
    best = torch.segment_reduce(products, "max", lengths=bounds.diff(), axis=0)
    begin, end = torch.searchsorted(bounds, first), torch.searchsorted(bounds, last)
    most = best[begin.clamp(max=best.shape[0] - 1)]
    for step in range(1, int((end - begin).max())):
        most = most.maximum(best[(begin + step).minimum(end - 1).clamp(min=0)])
    scores = most @ weights
    return torch.where(last > first, scores, torch.full_like(scores, -1.0))
