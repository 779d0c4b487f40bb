"""Windows of neighbouring tokens, ranked by mean score and centred on it.

`consensus` selects them, and `esa heads` compares heads by them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from esa_cli.attention.precision import to_float64


def mean_scores(scores: Tensor, size: int, stride: int = 1) -> Tensor:
    """Mean scores of each window of `size` tokens, one every `stride` tokens: (X, M) -> (X, W)."""
    return functional.avg_pool1d(scores, size, stride)


def centred_start(centre: Tensor, size: int, middle: int) -> Tensor:
    """First tokens of the windows of `size` around `centre`, inside the M tokens."""
    return (centre - (size - 1) / 2).round().clamp(0, middle - size)


def best_windows(scores: Tensor, count: int, size: int, share: float = 0.0) -> Tensor:
    """Ascending offsets of whole windows of `size` tokens, those with the highest scores, at most
    `count` tokens; a count below `size` is one shorter window.

    Args:
        scores: (M,). share: windows with less than this share of the best one's score
            are left out; so are those without any.
    """
    size = min(size, count, scores.shape[0])
    if size < 1:
        return torch.arange(0, device=scores.device)
    # Logits may all be below zero: only differences count.
    left, first = to_float64(scores) - min(0.0, float(scores.min())), None
    taken = torch.zeros_like(left, dtype=torch.bool)
    for _ in range(count // size):
        means = mean_scores(left[None], size)[0]
        start = int(means.argmax())
        best = float(means[start])
        first = best if first is None else first
        if best <= 0 or best < share * first:
            break
        chosen = left[start : start + size]
        offsets = torch.arange(size, device=left.device)
        centre = start + (chosen * offsets).sum() / chosen.sum()
        start = int(centred_start(centre, size, scores.shape[0]))
        taken[start : start + size] = True
        left = torch.where(taken, 0.0, left)
    return torch.nonzero(taken)[:, 0].to(scores.device)
