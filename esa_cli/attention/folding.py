"""GQA folding: H query heads are summed by the G key heads they attend with, exact for sums.

    sum_h q_h . k_g(h)  =  sum_g (sum_{h in g} q_h) . k_g
so the sum over heads of Eq. (3) needs F = G * D dimensions, not H * D.
"""

from __future__ import annotations

from torch import Tensor


def fold(q: Tensor, groups: int) -> Tensor:
    """Folded queries: (H, C, D) -> (C, G * D)."""
    heads, count, dim = q.shape
    return q.view(groups, heads // groups, count, dim).sum(1).transpose(0, 1).reshape(count, -1)


def flatten_keys(k: Tensor) -> Tensor:
    """Keys (G, n, D) -> (n, G * D)."""
    return k.transpose(0, 1).reshape(k.shape[1], -1)
