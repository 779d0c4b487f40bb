"""Selectors: from scores to the tokens attended to. `topk` is the paper's, with Eq. 7."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from esa_cli.attention.plugin_errors import scored
from esa_cli.attention.step import Step


def top_k(scores: Tensor, k: int) -> Tensor:
    """Ascending indices of the k largest; among equals the earliest come first.

    torch.topk leaves ties to the device; this gives the same tokens everywhere.
    """
    if k >= scores.shape[0]:
        return torch.arange(scores.shape[0], device=scores.device)
    if k <= 0:
        return torch.arange(0, device=scores.device)
    threshold = scores.topk(k).values[-1]
    above = torch.nonzero(scores > threshold)[:, 0]
    equal = torch.nonzero(scores == threshold)[: k - above.shape[0], 0]
    return torch.cat((above, equal)).sort().values


def proximity(scores: Tensor, epsilon: int) -> Tensor:
    """Eq. 7: each token's score becomes the maximum within epsilon tokens of it, inside M.

    Args:
        scores: (M,). epsilon: distance in tokens; 0 changes nothing.
    """
    if epsilon == 0 or scores.numel() == 0:
        return scores
    return functional.max_pool1d(scores[None], 2 * epsilon + 1, stride=1, padding=epsilon)[0]


@dataclass(frozen=True)
class TopK:
    """The k middle tokens with the highest score, one selection for all heads of the layer.

    Args:
        proximity: epsilon of Eq. 7. The paper's main tables use 3.
    """

    proximity: int = 1

    def __post_init__(self) -> None:
        if self.proximity < 0:
            raise ValueError("proximity must not be negative")

    def select(self, step: Step, budget: int) -> Tensor:
        if budget >= step.middle:
            return torch.arange(step.middle, device=step.queries.device)
        return top_k(proximity(scored(step), self.proximity), budget)
