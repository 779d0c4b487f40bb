"""The ESA paper's score (equations (3), (4), (6)) and top-k selector (equations (2), (8))."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial, reduce

import torch
from torch import Tensor
from torch.nn import functional

from esa_cli.attention.parts import Score, Selector, require_at_least
from esa_cli.attention.step import Step
from esa_cli.errors import ModelError

KEEP_ELEMENTS = 32 << 20
"""The largest number of scores that are cached for a second pass; more are computed twice."""

Blocks = Iterator[tuple[int, Tensor]]
"""Pairs of the offset of a block's first token or page, and the numbers (..., n) of the block."""


def cache_scores_if_few(
    compute_blocks: Callable[[], Blocks], score_count: int
) -> Callable[[], Iterable[tuple[int, Tensor]]]:
    """Returns a function that yields all blocks of scores, cached up to `KEEP_ELEMENTS`."""
    if score_count > KEEP_ELEMENTS:
        return compute_blocks
    kept = list(compute_blocks())
    return lambda: kept


@dataclass(frozen=True)
class LogitSum(Score):
    """The ESA paper's score, which sums logits over heads (equation (3)), subtracts each query's
    maximum, and takes the maximum over queries (equation (4))."""

    rotate: bool = False  # whether queries are rotated to the far distance; the paper does not say
    features = True

    @property
    def rotates(self) -> bool:
        return self.rotate

    def scores(self, step: Step) -> Tensor:
        chunk = step.queries.shape[1]
        sums = cache_scores_if_few(partial(step.sums, self.rotate), chunk * step.middle)
        none = torch.full((chunk,), -torch.inf, device=step.queries.device)
        top = reduce(torch.maximum, (block.amax(dim=1) for _, block in sums()), none)
        out = torch.empty(step.middle, device=step.queries.device)
        for offset, block in sums():
            out[offset : offset + block.shape[1]] = (block - top[:, None]).amax(dim=0)
        return out


def top_k(scores: Tensor, k: int) -> Tensor:
    """Returns the ascending indices of the k largest scores; among equal scores the earliest win.

    Unlike torch.topk, `top_k` selects the same of several equal scores on every device. Raises
    ModelError: a score is NaN."""
    if k <= 0 or k >= scores.shape[0]:
        return torch.arange(0 if k <= 0 else scores.shape[0], device=scores.device)
    largest = scores.topk(k).values  # NaN counts as larger than all numbers
    if bool(largest[0].isnan()):
        raise ModelError(
            "scores of tokens must be numbers, got NaN from the model's queries and keys",
            "load the model with --dtype float32 (in Python, dtype='float32'), or check its files",
        )
    threshold = largest[-1]
    above = torch.nonzero(scores > threshold)[:, 0]
    equal = torch.nonzero(scores == threshold)[: k - above.shape[0], 0]
    return torch.cat((above, equal)).sort().values


def proximity(scores: Tensor, epsilon: int) -> Tensor:
    """Raises each score (M,) to the largest score within `epsilon` tokens (equation (8))."""
    if epsilon == 0 or scores.numel() == 0:
        return scores
    return functional.max_pool1d(scores[None], 2 * epsilon + 1, stride=1, padding=epsilon)[0]


@dataclass(frozen=True)
class TopKSelector(Selector):
    """Selects the k middle tokens with the highest scores, once for all heads of the layer."""

    proximity: int = 1  # epsilon of Eq. (8), which is 3 in the main tables of the ESA paper

    def __post_init__(self) -> None:
        require_at_least(0, proximity=self.proximity)

    def select(self, step: Step, budget: int) -> Tensor:
        if budget >= step.middle:
            return torch.arange(step.middle, device=step.queries.device)
        return top_k(proximity(step.scores(), self.proximity), budget)
