"""Recall@k of reduced keys (the paper's figure of recall per layer).

For each query the truth is the k keys with the largest q . k; its recall is the share of them that
is among the k keys with the largest reduced score. Ties go where the device's top-k puts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esa_cli.attention.compression import Linear

QUERIES = 512
"""Most held-out queries that recall is measured with, evenly spaced over those there are."""


def spaced_rows(x: Tensor, most: int) -> Tensor:
    """At most `most` rows of x (n, F), evenly spaced."""
    if x.shape[0] <= most:
        return x
    return x[torch.linspace(0, x.shape[0] - 1, most, device=x.device).long()]


def recall(full: Tensor, reduced: Tensor, k: int) -> float:
    """Mean recall@k over queries, of scores (Q, n) by reduced scores (Q, n)."""
    truth = torch.zeros(full.shape, dtype=torch.bool, device=full.device)
    truth.scatter_(1, full.topk(k, dim=1).indices, True)
    found = truth.gather(1, reduced.topk(k, dim=1).indices)
    return float(found.double().mean())


@dataclass(frozen=True)
class HeldOutTokens:
    """Folded queries and keys (n, F) of one layer, on which nothing was fitted."""

    queries: Tensor
    keys: Tensor

    def scores(self) -> Tensor:
        """Full scores (Q, n) of the measured queries."""
        return spaced_rows(self.queries, QUERIES) @ self.keys.T

    def reduced_scores(self, maps: Linear) -> Tensor:
        """Reduced scores (Q, n) of the same queries."""
        return maps.queries(spaced_rows(self.queries, QUERIES)) @ maps.keys(self.keys).T


def relative_error(full: Tensor, reduced: Tensor) -> float:
    """Eq. (7) over the pairs of scores (Q, n), relative to the full scores' square."""
    return float((full - reduced).square().sum() / full.square().sum())


def limited_ks(ks: Sequence[int], keys: int) -> list[int]:
    """The ks, ascending, each at most half of the keys, without repetitions."""
    return sorted({max(1, min(k, keys // 2)) for k in ks})
