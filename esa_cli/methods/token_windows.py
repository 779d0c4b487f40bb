"""Windows of neighbouring tokens, ranked by their votes and centred on them.

`consensus` selects by them, and `esa heads` judges heads by them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from esa_cli.attention.precision import to_float64


def mean_votes(votes: Tensor, size: int, stride: int = 1) -> Tensor:
    """Mean votes of each window of `size` tokens, one every `stride` tokens: (X, M) -> (X, W)."""
    return functional.avg_pool1d(votes, size, stride)


def centred_start(centre: Tensor, size: int, middle: int) -> Tensor:
    """First tokens of the windows of `size` that have `centre`, the mean place of their votes, in
    the middle, as far as the M tokens allow."""
    return (centre - (size - 1) / 2).round().clamp(0, middle - size)


def best_windows(votes: Tensor, count: int, size: int, share: float = 0.0) -> Tensor:
    """Ascending offsets of whole windows of `size` tokens, those with the most votes, at most
    `count` tokens; a count below `size` is one shorter window.

    Args:
        votes: (M,). share: windows with less than this share of the best one's votes
            are left out; so are those without any.
    """
    size = min(size, count, votes.shape[0])
    if size < 1:
        return torch.arange(0, device=votes.device)
    # Scores that are logits are all below zero; what counts is how far they stand out.
    left, first = to_float64(votes) - min(0.0, float(votes.min())), None
    taken = torch.zeros_like(left, dtype=torch.bool)
    for _ in range(count // size):
        means = mean_votes(left[None], size)[0]
        start = int(means.argmax())
        best = float(means[start])
        first = best if first is None else first
        if best <= 0 or best < share * first:
            break
        chosen = left[start : start + size]
        places = torch.arange(size, device=left.device)
        centre = start + (chosen * places).sum() / chosen.sum()
        start = int(centred_start(centre, size, votes.shape[0]))
        taken[start : start + size] = True
        left = torch.where(taken, 0.0, left)
    return torch.nonzero(taken)[:, 0].to(votes.device)
